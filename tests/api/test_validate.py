"""One clear message per broken rule, all of them at once."""

import pytest

from api.specs import raw_spec
from rljob_api.rules import validate


def test_a_valid_spec_has_no_violations() -> None:
    assert validate(raw_spec(), "demo").violations == ()


def test_a_violation_names_field_value_rule_and_fix() -> None:
    (v,) = validate(raw_spec(trainer={"device": "cpu", "nodes": 3, "parallelism": {"tensor": 2}}), "demo").violations
    assert str(v) == (
        "spec.trainer.parallelism = tensor 2 x pipeline 1 x context 1: nodes x processesPerNode = 3 is not divisible by tensor x pipeline x "
        "context = 2; make spec.trainer.nodes x spec.trainer.processesPerNode a multiple of it, or lower one of the sizes"
    )


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"trainer": {"device": "gpu", "nodes": 2, "parallelism": {"tensor": 2}}}, "spec.trainer.parallelism.tensor"),
        ({"train": {"miniBatches": 3}}, "spec.train.miniBatches"),
        ({"train": {"tokensPerMicroBatch": 23}}, "spec.train.tokensPerMicroBatch"),
        ({"train": {"samplesPerPrompt": 1}}, "spec.train.samplesPerPrompt"),
        ({"rewards": [{"dataSource": "a"}]}, "spec.rewards[0]"),
        ({"rewards": [{"rule": "exactMatch", "python": {"path": "/r.py"}}]}, "spec.rewards[0]"),
        ({"rollout": {"replicas": 0, "minReplicas": 0}}, "spec.rollout.replicas"),
        ({"rollout": {"replicas": 1, "minReplicas": 2}}, "spec.rollout.minReplicas"),
        ({"rollout": {"sampling": {"temperature": 0}, "vllmArgs": {}}}, "spec.rollout.sampling.temperature"),
        ({"evaluation": {"everySteps": 5}}, "spec.evaluation"),
        ({"env": [{"name": "MASTER_ADDR", "value": "x"}]}, "spec.env[0].name"),
        ({"volumes": [{"name": "d", "mountPath": "/other", "source": {"emptyDir": {}}}]}, "spec.checkpoint.path"),
        ({"volumes": [{"name": "d", "mountPath": "/data", "source": {"emptyDir": {}}},
                      {"name": "r", "mountPath": "/data/run", "readOnly": True, "source": {"emptyDir": {}}}]}, "spec.checkpoint.path"),
        ({"env": [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]}, "spec.env[0]"),
        ({"checkpoint": {"resumeFrom": "/data/run"}}, "spec.checkpoint.resumeFrom"),
        ({"checkpoint": {"resumeFrom": "/old/global_step_3/"}, "volumes": [{"name": "d", "mountPath": "/data", "source": {"emptyDir": {}}}]},
         "spec.checkpoint.resumeFrom"),
        ({"trainer": {"transformerConfig": {"hiden_size": 3}}}, "spec.trainer.transformerConfig.hiden_size"),
        ({"trainer": {"transformerConfig": {"tensor_model_parallel_size": 2}}}, "spec.trainer.transformerConfig.tensor_model_parallel_size"),
        ({"rollout": {"vllmArgs": {"port": 1}, "sampling": {"maxTokens": 8}}}, "spec.rollout.vllmArgs.port"),
        ({"rollout": {"vllmArgs": {"data-parallel-size": 2}}}, "spec.rollout.vllmArgs.data-parallel-size"),
        ({"rollout": {"vllmArgs": {"ssl-certfile": "/c"}}}, "spec.rollout.vllmArgs.ssl-certfile"),
        ({"model": {"path": "relative"}}, "spec.model.path"),
        ({"trainer": {"gpus": 8}}, "spec.trainer.gpus"),
    ],
)  # fmt: skip
def test_each_broken_rule_is_found_at_its_field(changes: dict, field: str) -> None:
    assert field in [v.field for v in validate(raw_spec(**changes), "demo").violations]


def test_all_violations_come_at_once() -> None:
    spec = raw_spec(
        trainer={"nodes": 3, "parallelism": {"pipeline": 2}}, train={"miniBatches": 3, "samplesPerPrompt": 1}
    )
    assert len(validate(spec, "Bad_Name").violations) == 4


def test_an_unknown_megatron_key_suggests_the_nearest() -> None:
    (v,) = validate(raw_spec(trainer={"transformerConfig": {"recompute_granularty": "full"}}), "demo").violations
    assert v.fix == "did you mean recompute_granularity?"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pipeline-parallel-size", 2),
        ("logits-processors", ["mine.Processor"]),
        ("max-num-seqs", "many"),
        ("gpu-memory-utilization", 0),
        ("max-num-seqs", 0.5),
        ("gpu-memory-utilization", 1.5),
        ("kv-cache-memory-bytes", "4G"),
        ("kv-cache-memory-bytes", 10**400),
        ("cpu-offload-gb", "abc"),
        ("cpu-offload-gb", -50),
        ("cpu-offload-gb", True),
    ],
)
def test_an_argument_of_vllm_that_a_pod_or_a_plan_cannot_follow_is_refused(key: str, value: object) -> None:
    found = validate(raw_spec(rollout={"vllmArgs": {key: value}}), "demo").violations
    assert [v.field for v in found] == [f"spec.rollout.vllmArgs.{key}"]


@pytest.mark.parametrize(
    ("given", "fix"),
    [(90, "write the share, 0.9"), ("85%", "write the share, 0.85"), (1.5, "write it as a plain number, or remove it")],
)
def test_a_share_of_a_gpu_in_percent_is_said_as_the_share(given: object, fix: str) -> None:
    (found,) = validate(raw_spec(rollout={"vllmArgs": {"gpu-memory-utilization": given}}), "demo").violations
    assert found.fix == fix


@pytest.mark.parametrize(
    "arguments",
    [{"gpu-memory-utilization": 1, "max-num-seqs": 1, "cpu-offload-gb": 0}, {"cpu-offload-gb": 0.5, "max-num-seqs": 9}],
)
def test_the_least_and_the_most_that_a_plan_is_computed_with_is_allowed(arguments: dict[str, float]) -> None:
    assert validate(raw_spec(rollout={"vllmArgs": arguments}), "demo").violations == ()


def test_a_job_name_keeps_to_the_budget_of_its_children() -> None:
    assert validate(raw_spec(), "a" * 42).violations == ()
    assert [v.field for v in validate(raw_spec(), "a" * 43).violations] == ["metadata.name"]


def test_the_model_is_checked_against_the_layout() -> None:
    config = {"num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 100, "num_hidden_layers": 5}
    spec = raw_spec(trainer={"nodes": 8, "parallelism": {"tensor": 4, "pipeline": 2}})
    found = validate(spec, "demo", config).violations
    assert [(v.field, v.rule) for v in found] == [
        (
            "spec.trainer.parallelism.tensor",
            "num_attention_heads = 6 of the model is not divisible by it, and "
            "num_key_value_heads = 3 of the model must be a multiple or a divisor of it",
        ),
        ("spec.trainer.parallelism.pipeline", "num_hidden_layers = 5 of the model is not divisible by it"),
    ]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"rollout": {"replicas": 2}}, "spec.rollout.replicas"),
        (
            {"train": {"staleness": 1}, "algorithm": {"rolloutCorrection": {"bypass": True}}},
            "spec.train.staleness",
        ),
        ({"rollout": {"tensorParallel": 2}}, "spec.rollout.tensorParallel"),
        ({"rollout": {"template": {"env": [{"name": "A", "value": "x"}]}}}, "spec.rollout.template"),
        ({"rollout": {"shmSize": "8Gi"}}, "spec.rollout.shmSize"),
    ],
)
def test_colocated_servers_take_the_ranks_of_their_pods_between_steps(changes: dict, field: str) -> None:
    colocated = {"placement": "colocated"}
    assert validate(raw_spec(rollout=colocated), "demo").violations == ()
    assert validate(raw_spec(rollout=colocated, trainer={"nodes": 2}), "demo").violations == ()
    broken = raw_spec(**{**changes, "rollout": colocated | changes.get("rollout", {})})
    assert [v.field for v in validate(broken, "demo").violations] == [field]
