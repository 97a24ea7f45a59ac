"""Rules that need nothing but the object: the CRD has them as CEL, so that the API server answers at once, and `validate` has them in Python."""

from rljob_api.spec.job import PAIRED
from rljob_api.spec.model import LORA_RANKS
from rljob_api.validation.expression import count, either, field, present, size
from rljob_api.validation.rule import Rule

GROUP_ADVANTAGES = ("grpo", "rloo", "reinforce++-baseline", "opo")
"""Advantages that compare the samples of one prompt."""
VALUED = ("gae", "python")
"""Advantages that read the values of a critic."""
REWARD_KINDS = ("rule", "python", "http", "vllm", "model")
AGENT_KINDS = ("python", "tools", "environment")
QUEUED = ("kueue", "volcano")

SIZES = "trainer.parallelism"
TENSOR, PIPELINE, CONTEXT = (field(f"{SIZES}.{size}") for size in ("tensor", "pipeline", "context"))
RANKS = (field("trainer.nodes") * field("trainer.processesPerNode")).named("nodes x processesPerNode")
RANKS_OF_A_COPY = (TENSOR * PIPELINE * CONTEXT).named("tensor x pipeline x context")

RL, PAIRS = field("task").equals("rl"), field("task").is_in(PAIRED)
TEACHER = present("algorithm.distillation")
AGENT, TURN = present("rollout.agent"), field("rollout.sampling.maxTokens")
LONGEST = (field("data.maxPromptTokens") + either(AGENT, field("rollout.agent.maxTokens"), TURN)).named(
    "maxPromptTokens + maxTokens"
)
ALIGNMENT = TENSOR * either(CONTEXT > 1, CONTEXT * 2, 1)
"""`Layout.alignment` as an expression."""
ALIGNED = ((LONGEST + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT).named("rounded up for tensor and context parallelism")
LONGEST_EXAMPLE = ((field("data.maxTokens") + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT * either(PAIRS, 2, 1)).named(
    "data.maxTokens, rounded up for tensor and context parallelism, twice for a pair"
)

TOP_K, TAUGHT_BY_REFERENCE = present("algorithm.distillation.topK"), field("algorithm.distillation.reference")

ONLY_TAUGHT = TEACHER & size("rewards").equals(0)
"""The job has a teacher and no rewards, so that samples are not compared."""
REPLICAS, MINIMUM = field("rollout.replicas"), field("rollout.minReplicas")
REPLAYED, COLOCATED = present("train.batches.replay"), field("rollout.placement").equals("colocated")
CONTINUES = field("rollout.interrupt").equals("continue")
ADVANTAGE = field("algorithm.advantage")
BACKEND = field("scheduling.backend")
UPDATES = (field("train.miniBatches") * field("train.epochsPerStep")).named("miniBatches x epochsPerStep")

LORA = present("model.lora")
ALONE = LORA & field("model.lora.sync").equals("adapters")
"""Rollouts receive adapters alone, without the model."""

KINDS = count(tuple(present(kind) for kind in REWARD_KINDS))

LAYOUT_RULES = (
    Rule(
        SIZES,
        RANKS_OF_A_COPY.divides(RANKS),
        "{0} is not divisible by {1}",
        "make spec.trainer.nodes x spec.trainer.processesPerNode a multiple of it, or lower one of the sizes",
        (RANKS, RANKS_OF_A_COPY),
        lambda spec: f"tensor {TENSOR.of(spec)} x pipeline {PIPELINE.of(spec)} x context {CONTEXT.of(spec)}",
    ),
    Rule(
        f"{SIZES}.virtualPipeline",
        (field(f"{SIZES}.virtualPipeline") > 1).implies(PIPELINE > 1),
        "parts of a stage can only be interleaved between stages, and there is one stage",
        "raise pipeline, or remove it",
    ),
    Rule(
        "trainer.overlap.paramGather",
        field("trainer.overlap.paramGather").implies(field("trainer.overlap.gradReduce")),
        "parameters are gathered into the buckets from which gradients are reduced",
        "set spec.trainer.overlap.gradReduce: true, or remove it",
    ),
    Rule(
        "trainer.overlap.paramGather",
        field("trainer.overlap.paramGather").implies(UPDATES > 1),
        "parameters are gathered during the forward pass of the next update, and {0} leaves one update in a step",
        "remove it, or raise spec.train.miniBatches",
        (UPDATES,),
    ),
)

IMAGE_RULES = (
    Rule(
        "data.imageKey",
        present("data.imageKey").implies(~AGENT),
        "samples of an agent have no images",
        "remove spec.rollout.agent, or the images",
    ),
)

LORA_RULES = (
    Rule(
        "model.lora.rank",
        LORA.implies(TENSOR.divides(field("model.lora.rank"))),
        "the columns of an adapter are shared by the tensor-parallel ranks, and {0} does not divide it",
        "choose a multiple of it",
        (TENSOR,),
    ),
    Rule(
        "model.megatronCheckpoint",
        LORA.implies(~present("model.megatronCheckpoint")),
        "adapters belong to the weights in spec.model.path, by whose name others find them",
        "export that checkpoint as a Hugging Face directory and name it in spec.model.path, or remove spec.model.lora",
    ),
    Rule(
        "reference.offload",
        LORA.implies(present("reference.path") | field("reference.offload")),
        "the reference is the policy without its adapters: there is no second copy that could stay on the device",
        "remove it, or name another model in spec.reference.path",
    ),
    Rule(
        "model.lora.sync",
        ALONE.implies(RL),
        "only task rl has rollouts that get the policy",
        "remove it, or set spec.task: rl",
    ),
    Rule(
        "model.lora.sync",
        ALONE.implies(~COLOCATED),
        "colocated servers drop their weights while the policy is trained, and get whole models only",
        "set merged, or spec.rollout.placement: separate",
    ),
    Rule(
        "model.lora.rank",
        ALONE.implies(field("model.lora.rank") <= LORA_RANKS[-1]),
        f"vLLM has room for adapters of rank {LORA_RANKS[-1]} or less",
        "lower it, or set spec.model.lora.sync: merged",
    ),
)

TASK_RULES = (
    Rule(
        "rewards",
        RL.implies((size("rewards") > 0) | AGENT | TEACHER),
        "without a reward or a teacher nothing tells good responses from bad ones",
        "name at least one, for example [{rule: exactMatch}], or set spec.algorithm.distillation, or another spec.task",
        value=lambda _: "[]",
    ),
    Rule(
        "rewards",
        RL | size("rewards").equals(0),
        "{0} learns from its data alone and generates nothing that could be rewarded",
        "remove them, or set spec.task: rl",
        (field("task"),),
        lambda _: "set",
    ),
    Rule(
        "train.steps",
        count((present("train.steps"), present("train.epochs"))).equals(1),
        "the length of the job is given by exactly one of steps and epochs",
        "set spec.train.steps or spec.train.epochs, and remove the other",
        value=lambda spec: "none" if spec.train.steps is None else "both",
    ),
)

BATCH_RULES = (
    Rule(
        "checkpoint.keepExports",
        (field("checkpoint.exportEverySteps") > 0) | field("checkpoint.keepExports").equals(3),
        "only the exports of spec.checkpoint.exportEverySteps are counted, and there are none",
        "remove it, or set spec.checkpoint.exportEverySteps",
    ),
    Rule(
        "train.miniBatches",
        RL.implies(field("train.miniBatches").divides(field("train.promptsPerStep"))),
        "the samples of a prompt stay in one mini-batch, and {0} is not divisible by it",
        "choose a divisor of spec.train.promptsPerStep",
        (field("train.promptsPerStep"),),
    ),
    Rule(
        "train.miniBatches",
        RL | field("train.miniBatches").divides(field("train.samplesPerStep")),
        "all mini-batches are of one size, and {0} is not divisible by it",
        "choose a divisor of spec.train.samplesPerStep",
        (field("train.samplesPerStep"),),
    ),
    Rule(
        "train.tokensPerMicroBatch",
        RL.implies(field("train.tokensPerMicroBatch") >= ALIGNED),
        "the longest sample must fit into a micro-batch: {0}, {1}",
        "raise it, or lower spec.data.maxPromptTokens or maxTokens of spec.rollout.agent or else spec.rollout.sampling",
        (LONGEST, ALIGNED),
    ),
    Rule(
        "train.tokensPerMicroBatch",
        RL | (field("train.tokensPerMicroBatch") >= LONGEST_EXAMPLE),
        "the longest sample must fit into a micro-batch: {0}",
        "raise it, or lower spec.data.maxTokens",
        (LONGEST_EXAMPLE,),
    ),
    Rule(
        "data.weights",
        size("data.weights").equals(0) | size("data.weights").equals(size("data.train")),
        "there is one number for each file of spec.data.train",
        "give as many numbers as files, or remove it",
        value=lambda spec: f"{len(spec.data.weights)} numbers, {len(spec.data.train)} files",
    ),
    Rule(
        "evaluation",
        (field("evaluation.everySteps").equals(0) & ~field("evaluation.only"))
        | (size("data.validation") > 0)
        | (size("evaluation.sets") > 0),
        "there is no held-out data",
        "name files in spec.data.validation, for task rl also in spec.evaluation.sets, or remove everySteps and only",
        value=lambda spec: "only" if spec.evaluation.only else f"everySteps: {spec.evaluation.every_steps}",
    ),
)

ROLLOUT_RULES = (
    Rule(
        "rollout.replicas",
        RL | REPLICAS.equals(1),
        "only task rl has rollouts, which are what `kubectl scale` changes",
        "remove it; spec.trainer.nodes is the size of the gang",
    ),
    Rule(
        "rollout.replicas",
        RL.implies((REPLICAS > 0) | REPLAYED | COLOCATED),
        "nothing would generate",
        "set at least 1, or spec.train.batches.replay",
    ),
    Rule(
        "rollout.replicas",
        COLOCATED.implies(REPLICAS <= 1),
        "colocated servers are on all of the trainer's GPUs, one for every tensorParallel of its ranks, and never on a part of them",
        "remove it, or set spec.rollout.placement: separate",
    ),
    Rule(
        "rollout.minReplicas",
        RL.implies((MINIMUM <= REPLICAS) | REPLAYED | COLOCATED),
        "generation would wait forever for more servers than {0}",
        "set at most spec.rollout.replicas",
        (REPLICAS,),
    ),
    Rule(
        "rollout.tensorParallel",
        COLOCATED.implies(field("rollout.tensorParallel").divides(field("trainer.processesPerNode"))),
        "{0} is not divisible by it",
        "choose a divisor of spec.trainer.processesPerNode",
        (field("trainer.processesPerNode"),),
    ),
    Rule(
        "train.staleness",
        COLOCATED.implies(field("train.staleness").equals(0)),
        "colocated servers sleep while the policy is trained, so they cannot generate the next batch at that time",
        "set 0, or spec.rollout.placement: separate",
    ),
    Rule(
        "train.staleness",
        REPLAYED.implies(field("train.staleness").equals(0)),
        "recorded batches are replayed as they are",
        "remove it",
    ),
    Rule(
        "rollout.interrupt",
        CONTINUES.implies(field("train.staleness") > 0),
        "nothing is generated when a new policy comes, because spec.train.staleness is 0",
        "set spec.train.staleness of at least 1, or remove it",
    ),
    Rule(
        "rollout.interrupt",
        CONTINUES.implies(field("train.overSampling").equals(1.0)),
        "every prompt that is begun is trained within spec.train.staleness, and spec.train.overSampling begins more than that",
        "remove spec.train.overSampling, or set wait",
    ),
    Rule(
        "rollout.interrupt",
        CONTINUES.implies(~ADVANTAGE.equals("remax")),
        "the baseline of remax is the greedy response of one policy, the samples would be of several",
        "set wait, or choose another advantage",
    ),
    Rule(
        "rollout.sampling.temperature",
        field("rollout.sampling.temperature") > 0.0,
        "all greedy responses to a prompt are equal, so there is nothing to compare",
        "set a temperature above 0; spec.evaluation.sampling may be greedy",
    ),
    Rule(
        "rollout.agent",
        AGENT.implies(count(tuple(present(f"rollout.agent.{kind}") for kind in AGENT_KINDS)).equals(1)),
        f"needs exactly one of {', '.join(AGENT_KINDS)}",
        "keep one of them",
        value=lambda spec: " and ".join(k for k in AGENT_KINDS if present(f"rollout.agent.{k}").of(spec)) or "none",
    ),
    Rule(
        "rollout.agent.maxTokens",
        AGENT.implies(field("rollout.agent.maxTokens") >= TURN),
        "a turn may have {0} tokens, and has to fit into the trajectory",
        "raise it, or lower spec.rollout.sampling.maxTokens",
        (TURN,),
    ),
)

ALGORITHM_RULES = (
    Rule(
        "train.samplesPerPrompt",
        ADVANTAGE.is_in(GROUP_ADVANTAGES).implies((field("train.samplesPerPrompt") > 1) | ONLY_TAUGHT),
        "{0} compares the samples of one prompt",
        "set at least 2",
        (ADVANTAGE,),
    ),
    Rule(
        "algorithm.advantage",
        ADVANTAGE.equals("gae").implies(present("critic")),
        "gae needs the values of a critic",
        "add spec.critic, {} for the defaults",
    ),
    Rule(
        "critic",
        present("critic").implies(ADVANTAGE.is_in(VALUED)),
        "{0} does not read values",
        "remove it, or set spec.algorithm.advantage: gae",
        (ADVANTAGE,),
        lambda _: "set",
    ),
    *(
        rule
        for name in ("advantage", "loss")
        for rule in (
            Rule(
                f"algorithm.{name}",
                field(f"algorithm.{name}").equals("python").implies(present(f"algorithm.{name}Function")),
                "python needs the function that it calls",
                f"add spec.algorithm.{name}Function with path and function",
            ),
            Rule(
                f"algorithm.{name}Function",
                present(f"algorithm.{name}Function").implies(field(f"algorithm.{name}").equals("python")),
                "{0} does not call it",
                f"remove it, or set spec.algorithm.{name}: python",
                (field(f"algorithm.{name}"),),
                lambda _: "set",
            ),
        )
    ),
    Rule(
        "algorithm.aggregation",
        field("algorithm.loss").equals("gspo").implies(field("algorithm.aggregation").equals("sequenceMeanTokenMean")),
        "gspo weighs whole responses",
        "set sequenceMeanTokenMean",
    ),
    Rule(
        "",
        KINDS.equals(1),
        f"needs exactly one of {', '.join(REWARD_KINDS)}",
        "keep one of them",
        value=lambda reward: " and ".join(kind for kind in REWARD_KINDS if present(kind).of(reward)) or "none",
        items="rewards",
    ),
    Rule(
        "vllm",
        present("vllm").implies(count((present("vllm.pool"), present("vllm.url"))).equals(1)),
        "needs exactly one of pool and url",
        "name one of spec.pools, or give the address of a server outside the job",
        value=lambda reward: "both" if reward.vllm.pool else "none",
        items="rewards",
    ),
)

DISTILLATION_RULES = (
    Rule(
        "algorithm.distillation",
        TEACHER.implies(count((present("algorithm.distillation.pool"), TAUGHT_BY_REFERENCE)).equals(1)),
        "needs exactly one of pool and reference",
        "name one of spec.pools, or set reference: true for the model of spec.reference",
        value=lambda spec: "both" if spec.algorithm.distillation.reference else "none",
    ),
    Rule(
        "algorithm.distillation.reference",
        (TEACHER & TAUGHT_BY_REFERENCE).implies(present("reference.path") | present("reference.megatronCheckpoint")),
        "the reference is the policy as it begins, which has nothing to teach it",
        "name the teacher in spec.reference.path or spec.reference.megatronCheckpoint",
    ),
    Rule(
        "algorithm.kl.coefficient",
        (TEACHER & TAUGHT_BY_REFERENCE).implies(field("algorithm.kl.coefficient").equals(0.0)),
        "the reference is the teacher, so that the penalty would draw towards it a second time",
        "remove it, and set spec.algorithm.distillation.coefficient",
    ),
    Rule(
        "algorithm.distillation.topK",
        (TEACHER & TOP_K).implies(field("algorithm.distillation.where").equals("loss")),
        "a reward is of the token that was sampled, and of no other",
        "set where: loss, or remove it",
    ),
    Rule(
        "algorithm.distillation.topK",
        (TEACHER & TOP_K).implies(present("algorithm.distillation.pool")),
        "the reference says of the sampled tokens alone how likely they are",
        "name a pool as the teacher, or remove it",
    ),
)

SCHEDULING_RULES = (
    Rule(
        "scheduling.queue",
        BACKEND.is_in(QUEUED).implies(present("scheduling.queue")),
        "{0} takes no job without a queue",
        "name one",
        (BACKEND,),
        lambda _: "unset",
    ),
    Rule(
        "scheduling.queue",
        present("scheduling.queue").implies(BACKEND.is_in(QUEUED)),
        "{0} has no queues",
        "remove it, or set spec.scheduling.backend to kueue or volcano",
        (BACKEND,),
        lambda _: "set",
    ),
    Rule(
        "scheduling.topologyLevels",
        BACKEND.is_in(("builtin", "kueue")) | size("scheduling.topologyLevels").equals(0),
        "{0} does not read labels of nodes",
        "remove them, or set spec.scheduling.backend to builtin or kueue",
        (BACKEND,),
        lambda _: "set",
    ),
    Rule(
        "scheduling.priority",
        BACKEND.equals("builtin") | field("scheduling.priority").equals(0),
        "{0} does not read it: it orders the jobs of the builtin backend",
        "remove it; spec.trainer.template.priorityClassName is for the others",
        (BACKEND,),
    ),
)

POD_RULES = (
    Rule(
        "podSecurity.runAsUser",
        present("podSecurity.runAsUser").implies(field("podSecurity.runAsUser") > 0),
        "is root, which the restricted Pod Security standard forbids",
        "set the id of a user who may write the job's volumes, or remove it for the administrator's default",
    ),
)

OBJECT_RULES = (
    *(
        *TASK_RULES,
        *IMAGE_RULES,
        *LORA_RULES,
        *LAYOUT_RULES,
        *BATCH_RULES,
        *ROLLOUT_RULES,
        *ALGORITHM_RULES,
        *DISTILLATION_RULES,
        *SCHEDULING_RULES,
    ),
    *POD_RULES,
)
