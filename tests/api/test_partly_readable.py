"""A spec with a broken schema is still held to every rule that does not depend on what is broken."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from api.specs import raw_spec
from rljob_api.rules import validate

RL: dict[str, Any] = {
    "critic": {"path": "/c", "clip": 0.2, "optimizer": {"learningRate": 1e-5, "warmupSteps": 1, "decay": "linear"}},
    "algorithm": {
        "advantage": "gae", "loss": "ppo", "gamma": 0.9, "gaeLambda": 0.9,
        "kl": {"coefficient": 0.1, "estimator": "k2", "adaptive": {"target": 0.1}},
        "clip": {"low": 0.1, "high": 0.3, "dual": 3},
        "rolloutCorrection": {"importanceSampling": "token", "cap": 2, "reject": {"low": 0.5, "high": 2}},
        "overlong": {"bufferTokens": 2, "penalty": 1}, "dynamicSampling": {"maxRounds": 2},
    },
    "reference": {"path": "/r", "offload": True},
    "model": {"path": "/data/model", "dtype": "bfloat16"},
    "trainer": {
        "device": "gpu", "nodes": 2, "processesPerNode": 8, "shmSize": "4Gi", "resourceName": "nvidia.com/gpu",
        "parallelism": {"tensor": 2, "pipeline": 2, "virtualPipeline": 2, "context": 2, "expert": 1, "sequence": True},
        "overlap": {"gradReduce": True, "paramGather": True}, "recompute": {"granularity": "selective", "modules": ["core_attn"]},
        "transformerConfig": {"moe_aux_loss_coeff": 0.1, "moe_router_load_balancing_type": "aux_loss"},
        "template": {
            "labels": {"a": "b"}, "annotations": {"a": "b"}, "nodeSelector": {"a": "b"}, "env": [{"name": "A", "value": "x"}],
            "tolerations": [{"operator": "Exists"}], "affinity": {"nodeAffinity": {}},
            "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
        },
    },
    "train": {
        "steps": 10, "promptsPerStep": 4, "samplesPerPrompt": 4, "miniBatches": 2, "epochsPerStep": 1, "tokensPerMicroBatch": 4096, "staleness": 1,
        "overSampling": 1.5, "partialRollouts": {"maxAge": 2}, "batches": {"record": True}, "optimizer": {"learningRate": 1e-6},
    },
    "rollout": {"replicas": 2, "minReplicas": 1, "tensorParallel": 2, "sampling": {"maxTokens": 8, "temperature": 0.9},
                "vllmArgs": {"max-num-seqs": 4}, "template": {"env": [{"name": "A", "value": "x"}]}},
    "evaluation": {"everySteps": 2, "sampling": {"temperature": 0.5}},
    "data": {"train": ["/data/a.jsonl"], "validation": ["/data/b.jsonl"], "maxPromptTokens": 16, "promptKey": "p"},
    "volumes": [{"name": "data", "mountPath": "/data", "source": {"persistentVolumeClaim": {"claimName": "d"}}}],
    "checkpoint": {"path": "/data/run", "resumeFrom": "/data/old/global_step_3", "everySteps": 5},
    "scheduling": {"backend": "builtin", "topologyLevels": ["rack"], "priority": 3},
    "lifecycle": {"maxRestarts": 1}, "env": [{"name": "B", "value": "y"}], "suspend": False,
    "rewards": [{"dataSource": "a", "rule": "number", "weight": 2}, {"python": {"path": "/r.py", "function": "f"}}],
}  # fmt: skip
DPO: dict[str, Any] = {
    "task": "dpo",
    "dpo": {"loss": "sigmoid", "beta": 0.2, "labelSmoothing": 0.1, "sftCoefficient": 0.1},
    "reference": {"offload": False},
    "train": {"steps": None, "epochs": 2, "samplesPerStep": 8, "miniBatches": 2},
    "data": {"weights": [1], "format": "columns", "chosenKey": "c"},
}
MODEL = {"model_type": "qwen2", "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 64,
         "num_hidden_layers": 8, "max_position_embeddings": 4096}  # fmt: skip


def spoilt(value: Any, at: str = "spec") -> Iterator[tuple[str, Any]]:
    """Copies of a value with one of its parts replaced by what no field takes, and the part's path."""
    wrong = 0.5 if isinstance(value, dict | list | str | bool) else ["wrong"]
    if at != "spec":
        yield at, wrong
    if isinstance(value, dict):
        for key, inner in value.items():
            for path, copy in spoilt(inner, f"{at}.{key}"):
                yield path, value | {key: copy}
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            for path, copy in spoilt(inner, f"{at}[{i}]"):
                yield path, [*value[:i], copy, *value[i + 1 :]]


@pytest.mark.parametrize("changes", [RL, DPO], ids=["rl", "dpo"])
def test_a_field_that_cannot_be_read_brings_its_own_message_only(changes: dict[str, Any]) -> None:
    spec = raw_spec(**deepcopy(changes))
    assert validate(spec, "demo", MODEL).violations == ()
    for path, copy in spoilt(spec):
        assert {v.field for v in validate(copy, "demo", MODEL).violations} <= {path}, path


@pytest.mark.parametrize("missing", ["model", "checkpoint", "image"])
def test_a_section_that_is_missing_brings_its_own_message_only(missing: str) -> None:
    spec = raw_spec(**deepcopy(RL)) | {missing: None}
    assert [v.field for v in validate(spec, "demo", MODEL).violations] == [f"spec.{missing}"]


@pytest.mark.parametrize(("missing", "needed"), [("data", "spec.data.train"), ("train", "spec.train.steps")])
def test_a_section_that_only_a_service_can_do_without_is_asked_for_by_what_it_must_say(
    missing: str, needed: str
) -> None:
    spec = raw_spec(**deepcopy(RL)) | {missing: None}
    assert needed in [v.field for v in validate(spec, "demo", MODEL).violations]


def test_a_type_error_hides_none_of_the_rules_that_other_fields_break() -> None:
    changes = {
        "image": 3,
        "trainer": {"nodes": 3, "parallelism": {"pipeline": 2}, "flavour": 8, "transformerConfig": {"hiden_size": 3}},
        "train": {"steps": "many", "miniBatches": 3, "samplesPerPrompt": 1, "staleness": 1},
        "env": [{"name": "MASTER_ADDR", "value": "x"}],
        "rewards": [{"rule": "number"}, {}],
    }
    found = [v.field for v in validate(raw_spec(**changes), "Bad_Name").violations]
    assert sorted(found) == sorted([
        "metadata.name", "spec.image", "spec.trainer.flavour", "spec.train.steps",
        "spec.trainer.parallelism", "spec.trainer.transformerConfig.hiden_size", "spec.train.miniBatches",
        "spec.train.samplesPerPrompt", "spec.train.staleness", "spec.env[0].name", "spec.rewards[1]",
    ])  # fmt: skip
