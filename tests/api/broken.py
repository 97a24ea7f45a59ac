"""For every rule of single objects a spec that breaks it, and nothing else."""

from typing import Any

CORRECTED = {"rolloutCorrection": {"importanceSampling": "token"}}
AGENT = {"python": {"path": "/data/agent.py"}, "maxTurns": 2, "maxTokens": 16}
COLOCATED = {"placement": "colocated", "sampling": {"maxTokens": 8}}

FUNCTION = {"path": "/data/algorithm.py", "function": "f"}
POOL = {"name": "judge", "model": "/judge"}
SERVERS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"nodes": 3, "tensorParallel": 2, "pipelineParallel": 2}, "nodes"),
    ({"tensorParallel": 64, "pipelineParallel": 2}, "nodes"),
    ({"pipelineParallel": 2, "expertParallel": True}, "expertParallel"),
    ({"nodes": 4, "tensorParallel": 2, "dataParallel": 2, "expertParallel": True}, "nodes"),
    ({"pipelineParallel": 2, "dataParallel": 2, "expertParallel": True}, "dataParallel"),
    ({"dataParallel": 2}, "dataParallel"),
)
"""Servers that no number of pods can be made of."""

WHOLE: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({}, {"algorithm": {"rolloutCorrection": {"routerReplay": "rollout"}}}),
    ({"interrupt": "keep"}, {"train": {"staleness": 2}, "algorithm": CORRECTED}),
    ({}, {"model": {"lora": {"sync": "adapters"}}}),
)
"""What needs servers of one stage, without copies: more of their section, and of others."""

FEW = {"replicas": 2, "autoscaling": {"minReplicas": 3}}
"""Fewer workers than there have to be."""
GUESSING = {"speculation": {"method": "ngram"}}

BROKEN: tuple[tuple[dict[str, Any], str], ...] = (
    ({"rewards": []}, "spec.rewards"),
    ({"task": "sft", "rewards": [{"rule": "exactMatch"}]}, "spec.rewards"),
    ({"train": {"epochs": 2}}, "spec.train.steps"),
    ({"data": {"train": []}}, "spec.data.train"),
    ({"task": "service", "train": {"tokensPerMicroBatch": 63}}, "spec.train.tokensPerMicroBatch"),
    ({"task": "service", "service": {"clients": [{"name": "ann"}]}}, "spec.service.clients"),
    ({"task": "service", "service": {"maxRank": 0}}, "spec.service.maxModels"),
    ({"task": "dpo", "train": {"miniBatches": 3}}, "spec.train.miniBatches"),
    ({"task": "dpo", "train": {"tokensPerMicroBatch": 63}}, "spec.train.tokensPerMicroBatch"),
    ({"task": "pretrain", "data": {"weights": [1, 2]}}, "spec.data.weights"),
    ({"task": "sft", "rollout": {"replicas": 0}}, "spec.rollout.replicas"),
    (
        {"model": {"lora": {"rank": 3}}, "trainer": {"nodes": 2, "parallelism": {"tensor": 2}}},
        "spec.model.lora.rank",
    ),
    ({"model": {"lora": {"sync": "adapters"}}, "task": "pretrain"}, "spec.model.lora.sync"),
    ({"model": {"lora": {"sync": "adapters", "rank": 513}}}, "spec.model.lora.rank"),
    ({"model": {"lora": {"sync": "adapters"}}, "rollout": {"placement": "colocated"}}, "spec.model.lora.sync"),
    ({"model": {"lora": {}, "megatronCheckpoint": "/data/global_step_9"}}, "spec.model.megatronCheckpoint"),
    (
        {"model": {"lora": {}}, "reference": {"offload": False}, "algorithm": {"kl": {"coefficient": 0.1}}},
        "spec.reference.offload",
    ),
    ({"trainer": {"nodes": 3, "parallelism": {"tensor": 2}}}, "spec.trainer.parallelism"),
    ({"trainer": {"parallelism": {"virtualPipeline": 2}}}, "spec.trainer.parallelism.virtualPipeline"),
    ({"trainer": {"overlap": {"paramGather": True}}, "train": {"miniBatches": 2}}, "spec.trainer.overlap.paramGather"),
    ({"trainer": {"overlap": {"gradReduce": True, "paramGather": True}}}, "spec.trainer.overlap.paramGather"),
    ({"trainer": {"offload": {"optimizer": True, "update": True}}}, "spec.trainer.offload.optimizer"),
    ({"train": {"miniBatches": 3}}, "spec.train.miniBatches"),
    ({"train": {"tokensPerMicroBatch": 23}}, "spec.train.tokensPerMicroBatch"),
    ({"evaluation": {"everySteps": 5}}, "spec.evaluation"),
    ({"rollout": {"replicas": 0, "minReplicas": 0}}, "spec.rollout.replicas"),
    ({"rollout": COLOCATED | {"replicas": 2}}, "spec.rollout.replicas"),
    ({"rollout": {"replicas": 1, "minReplicas": 2}}, "spec.rollout.minReplicas"),
    ({"rollout": COLOCATED | {"tensorParallel": 2}}, "spec.rollout.tensorParallel"),
    (
        {"rollout": COLOCATED | {"nodes": 2, "tensorParallel": 2}, "trainer": {"processesPerNode": 2}},
        "spec.rollout.nodes",
    ),
    ({"rollout": COLOCATED | {"pipelineParallel": 2}}, "spec.rollout.pipelineParallel"),
    ({"rollout": COLOCATED | {"dataParallel": 2, "expertParallel": True}}, "spec.rollout.dataParallel"),
    ({"rollout": {"serversPerGpu": 2}}, "spec.rollout.serversPerGpu"),
    (
        {"rollout": COLOCATED | {"serversPerGpu": 2, "tensorParallel": 2}, "trainer": {"processesPerNode": 2}},
        "spec.rollout.serversPerGpu",
    ),
    *(
        broken
        for servers, name in SERVERS
        for broken in (
            ({"rollout": servers}, f"spec.rollout.{name}"),
            ({"pools": [POOL | servers], "rewards": [{"vllm": {"pool": "judge"}}]}, f"spec.pools[0].{name}"),
        )
    ),
    *(
        ({"rollout": cut | rollout} | needed, f"spec.rollout.{next(iter(cut))}")
        for cut in ({"pipelineParallel": 2}, {"dataParallel": 2, "expertParallel": True})
        for rollout, needed in WHOLE
    ),
    ({"rollout": COLOCATED, "train": {"staleness": 1}, "algorithm": CORRECTED}, "spec.train.staleness"),
    (
        {"train": {"staleness": 1, "batches": {"replay": "/data/batches"}}, "algorithm": CORRECTED},
        "spec.train.staleness",
    ),
    ({"rollout": {"interrupt": "continue"}}, "spec.rollout.interrupt"),
    (
        {
            "rollout": {"interrupt": "continue"},
            "train": {"staleness": 2, "overSampling": 1.5},
            "algorithm": CORRECTED,
        },
        "spec.rollout.interrupt",
    ),
    (
        {
            "rollout": {"interrupt": "continue"},
            "train": {"staleness": 2},
            "algorithm": CORRECTED | {"advantage": "remax"},
        },
        "spec.rollout.interrupt",
    ),
    ({"rollout": {"sampling": {"temperature": 0, "maxTokens": 8}}}, "spec.rollout.sampling.temperature"),
    ({"rollout": {"speculation": {"method": "eagle3"}}}, "spec.rollout.speculation.draft"),
    ({"rollout": {"speculation": {"method": "ngram", "draft": "/draft"}}}, "spec.rollout.speculation.draft"),
    ({"rollout": {"speculation": {"method": "mtp"}}}, "spec.rollout.speculation.method"),
    ({"rollout": GUESSING, "train": {"batches": {"replay": "/batches"}}}, "spec.rollout.speculation"),
    (
        {"rollout": GUESSING, "algorithm": {"rolloutCorrection": {"routerReplay": "rollout"}}},
        "spec.rollout.speculation",
    ),
    (
        {
            "rollout": GUESSING | {"interrupt": "keep"},
            "train": {"staleness": 2},
            "algorithm": CORRECTED,
        },
        "spec.rollout.speculation",
    ),
    ({"rollout": GUESSING | {"pipelineParallel": 2, "nodes": 2}}, "spec.rollout.speculation"),
    ({"rollout": GUESSING | {"dataParallel": 2, "expertParallel": True}}, "spec.rollout.speculation"),
    ({"rollout": GUESSING, "model": {"lora": {"rank": 8, "sync": "adapters"}}}, "spec.rollout.speculation"),
    ({"rollout": GUESSING, "data": {"imageKey": "images"}}, "spec.rollout.speculation"),
    (
        {"rollout": COLOCATED | {"speculation": {"method": "eagle3", "draft": "/draft"}}},
        "spec.rollout.speculation",
    ),
    ({"model": {"multiTokenPrediction": True, "lora": {"rank": 8}}}, "spec.model.multiTokenPrediction"),
    (
        {
            "model": {"multiTokenPrediction": True},
            "algorithm": {"rolloutCorrection": {"routerReplay": "trainer"}},
            "train": {"epochsPerStep": 2},
        },
        "spec.model.multiTokenPrediction",
    ),
    (
        {"model": {"multiTokenPrediction": True}, "trainer": {"overlap": {"gradReduce": True}}},
        "spec.model.multiTokenPrediction",
    ),
    ({"rollout": {"agent": {"maxTurns": 2, "maxTokens": 16}, "sampling": {"maxTokens": 8}}}, "spec.rollout.agent"),
    ({"rollout": {"agent": AGENT | {"maxTokens": 4}, "sampling": {"maxTokens": 8}}}, "spec.rollout.agent.maxTokens"),
    (
        {
            "rollout": {
                "agent": {"environment": {"url": "http://e"}, "maxTurns": 2, "maxTokens": 16, "workers": {}},
                "sampling": {"maxTokens": 8},
            }
        },
        "spec.rollout.agent.workers",
    ),
    (
        {
            "rollout": {"agent": AGENT | {"workers": {}}, "sampling": {"maxTokens": 8}},
            "train": {"batches": {"replay": "/data/other/batches"}},
        },
        "spec.rollout.agent.workers",
    ),
    (
        {
            "rollout": {
                "agent": {"environment": {"url": "http://e"}, "maxTurns": 2, "maxTokens": 16},
                "sampling": {"maxTokens": 8},
            },
            "environments": [{"name": "python"}],
        },
        "spec.environments",
    ),
    (
        {
            "rollout": {"agent": AGENT, "sampling": {"maxTokens": 8}},
            "environments": [{"name": "python"}],
            "train": {"batches": {"replay": "/data/other/batches"}},
        },
        "spec.environments",
    ),
    (
        {
            "rollout": {"agent": AGENT, "sampling": {"maxTokens": 8}},
            "environments": [{"name": "python"}],
            "scheduling": {"backend": "kueue", "queue": "team"},
        },
        "spec.environments",
    ),
    (
        {"rollout": {"agent": AGENT | {"workers": {"replicas": 4000, "processes": 9}}, "sampling": {"maxTokens": 8}}},
        "spec.rollout.agent.workers.processes",
    ),
    ({"rewards": [{"rule": "number", "workers": {}}]}, "spec.rewards[0].workers"),
    (
        {"rollout": {"agent": AGENT | {"workers": FEW}, "sampling": {"maxTokens": 8}}},
        "spec.rollout.agent.workers.autoscaling.minReplicas",
    ),
    ({"rewards": [{"rule": "math", "workers": FEW}]}, "spec.rewards[0].workers.autoscaling.minReplicas"),
    (
        {"rewards": [{"rule": "math", "workers": {"replicas": 4000, "processes": 9}}]},
        "spec.rewards[0].workers.processes",
    ),
    ({"train": {"samplesPerPrompt": 1}}, "spec.train.samplesPerPrompt"),
    ({"algorithm": {"advantage": "gae"}}, "spec.algorithm.advantage"),
    ({"critic": {}}, "spec.critic"),
    ({"checkpoint": {"path": "/data/run", "keepExports": 1}}, "spec.checkpoint.keepExports"),
    ({"algorithm": {"distillation": {}}}, "spec.algorithm.distillation"),
    ({"algorithm": {"distillation": {"reference": True}}}, "spec.algorithm.distillation.reference"),
    (
        {"algorithm": {"distillation": {"reference": True}, "kl": {"coefficient": 0.1}}, "reference": {"path": "/t"}},
        "spec.algorithm.kl.coefficient",
    ),
    (
        {"algorithm": {"distillation": {"pool": "t", "topK": 4}}, "pools": [{"name": "t", "model": "/data/t"}]},
        "spec.algorithm.distillation.topK",
    ),
    (
        {"algorithm": {"distillation": {"reference": True, "where": "loss", "topK": 4}}, "reference": {"path": "/t"}},
        "spec.algorithm.distillation.topK",
    ),
    ({"algorithm": {"advantage": "python"}}, "spec.algorithm.advantage"),
    ({"algorithm": {"advantageFunction": FUNCTION}}, "spec.algorithm.advantageFunction"),
    ({"algorithm": {"loss": "python"}}, "spec.algorithm.loss"),
    ({"algorithm": {"lossFunction": FUNCTION}}, "spec.algorithm.lossFunction"),
    ({"algorithm": {"loss": "gspo", "clip": {"low": 3e-4, "high": 4e-4}}}, "spec.algorithm.aggregation"),
    ({"rewards": [{"rule": "number"}, {"dataSource": "a"}]}, "spec.rewards[1]"),
    ({"rewards": [{"rule": "number"}, {"vllm": {}}]}, "spec.rewards[1].vllm"),
    ({"scheduling": {"backend": "kueue"}}, "spec.scheduling.queue"),
    ({"scheduling": {"backend": "none", "queue": "q"}}, "spec.scheduling.queue"),
    ({"scheduling": {"backend": "kai", "queue": "my queue!"}}, "spec.scheduling.queue"),
    ({"scheduling": {"backend": "none", "topologyLevels": ["rack"]}}, "spec.scheduling.topologyLevels"),
    ({"scheduling": {"backend": "none", "priority": 1}}, "spec.scheduling.priority"),
    ({"scheduling": {"backend": "none", "preemptionPolicy": "Never"}}, "spec.scheduling.preemptionPolicy"),
    ({"podSecurity": {"runAsUser": 0}}, "spec.podSecurity.runAsUser"),
)
