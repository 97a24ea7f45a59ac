"""Pools, and the rewards that ask them."""

from typing import Any

import pytest

from api.specs import make_spec, raw_spec
from rljob_api import names
from rljob_api.rules import validate
from rljob_api.sizing.layout import required_pods

JUDGE = {"prompt": "Rate {response}", "score": r"Score: (\d+)"}


def pooled(*pools: dict[str, Any], **reward: Any) -> dict[str, Any]:
    """The smallest spec with these pools, and a reward that asks the first of them."""
    found = [{"name": "judge", "model": "/data/judge"} | pool for pool in pools]
    return raw_spec(pools=found, rewards=[{"vllm": {"pool": found[0]["name"]} | reward}])


def broken(spec: dict[str, Any]) -> list[str]:
    return [v.field for v in validate(spec, "demo").violations]


def test_a_pool_that_a_reward_asks_is_valid_with_and_without_a_judge() -> None:
    assert broken(pooled({"vllmArgs": {"runner": "pooling"}})) == []
    assert broken(pooled({"replicas": 2, "tensorParallel": 2}, judge=JUDGE)) == []


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (pooled({"name": "reward"}), "spec.pools[0].name"),
        (pooled({"name": "trainer"}), "spec.pools[0].name"),
        (pooled({}, {}), "spec.pools[1].name"),
        (pooled({}, {"name": "other"}), "spec.pools[1].name"),
        (pooled({"name": "along" * 2}), "spec.pools[0].name"),
        (pooled({"name": "b-trainer"}), "spec.pools[0].name"),
        (pooled({"vllmArgs": {"port": 1}}), "spec.pools[0].vllmArgs.port"),
        (pooled({"vllmArgs": {"runer": "pooling"}}), "spec.pools[0].vllmArgs.runer"),
        (pooled({"template": {"env": [{"name": "RANK", "value": "0"}]}}), "spec.pools[0].template.env[0].name"),
        (pooled({"template": {"labels": {"a b": "c"}}}), "spec.pools[0].template.labels.a b"),
        (pooled({}, url="http://judge"), "spec.rewards[0].vllm"),
        (raw_spec(rewards=[{"vllm": {"pool": "judge"}}]), "spec.rewards[0].vllm.pool"),
        (pooled({}, judge=JUDGE | {"prompt": "Rate it"}), "spec.rewards[0].vllm.judge.prompt"),
        (pooled({}, judge=JUDGE | {"score": "Score: ("}), "spec.rewards[0].vllm.judge.score"),
        (pooled({}, judge=JUDGE | {"score": "(a)(b)"}), "spec.rewards[0].vllm.judge.score"),
        (pooled({}, judge=JUDGE | {"score": "Score"}), "spec.rewards[0].vllm.judge.score"),
        (pooled({"vllmArgs": {"runner": "pooling"}}, judge=JUDGE), "spec.rewards[0].vllm.judge"),
    ],
)
def test_a_mistake_is_one_message_at_its_field(spec: dict[str, Any], field: str) -> None:
    assert broken(spec) == [field]


def taught(*pools: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A spec with a teacher and no reward."""
    found = [{"name": "teacher", "model": "/data/teacher"} | pool for pool in pools]
    algorithm = {"distillation": {"pool": "teacher"}} | spec.pop("algorithm", {})
    return raw_spec(pools=found, rewards=[], algorithm=algorithm) | spec


def top_k(count: int) -> dict[str, Any]:
    return {"distillation": {"pool": "teacher", "where": "loss", "topK": count}}


def test_as_many_likeliest_tokens_may_be_asked_for_as_the_server_gives() -> None:
    assert broken(taught({}, algorithm=top_k(20))) == []
    assert broken(taught({"vllmArgs": {"max-logprobs": 64}}, algorithm=top_k(64))) == []
    assert broken(taught({"vllmArgs": {"max-logprobs": -1}}, algorithm=top_k(64))) == []


def test_the_reference_may_be_the_teacher_at_any_temperature_and_on_a_gang_of_its_own() -> None:
    sampling = {"sampling": {"maxTokens": 8, "temperature": 0.7}}
    algorithm = {"distillation": {"reference": True}}
    for further in ({}, {"processesPerNode": 1}):
        reference = {"path": "/data/teacher"} | further
        assert broken(raw_spec(rewards=[], algorithm=algorithm, reference=reference, rollout=sampling)) == []


def test_a_teacher_needs_no_reward() -> None:
    assert broken(taught({})) == []
    assert broken(taught({}, train={"steps": 1, "samplesPerPrompt": 1})) == []
    assert broken(taught({}) | {"algorithm": {}}) == ["spec.rewards", "spec.pools[0].name"]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (taught(), "spec.algorithm.distillation.pool"),
        (taught({"vllmArgs": {"runner": "pooling"}}), "spec.algorithm.distillation.pool"),
        (taught({}, {"name": "other"}), "spec.pools[1].name"),
        (taught({}, rollout={"sampling": {"maxTokens": 8, "temperature": 0.7}}), "spec.rollout.sampling.temperature"),
        (taught({}, algorithm={"dynamicSampling": {}}), "spec.algorithm.dynamicSampling"),
        (taught({}, algorithm={"difficulty": {}}), "spec.algorithm.difficulty"),
        (taught({}, algorithm=top_k(21)), "spec.algorithm.distillation.topK"),
        (taught({"vllmArgs": {"max-logprobs": 4}}, algorithm=top_k(5)), "spec.algorithm.distillation.topK"),
    ],
)
def test_a_mistake_about_the_teacher_is_one_message_at_its_field(spec: dict[str, Any], field: str) -> None:
    assert broken(spec) == [field]


@pytest.mark.parametrize(("key", "value"), [("gpu-memory-utilization", "most"), ("kv-cache-memory-bytes", -1)])
def test_what_a_plan_of_a_pools_memory_is_computed_with_is_a_number(key: str, value: object) -> None:
    assert broken(pooled({"vllmArgs": {key: value}})) == [f"spec.pools[0].vllmArgs.{key}"]


def test_a_pool_that_cannot_be_read_brings_its_own_message_only() -> None:
    assert broken(pooled({"replicas": "many"})) == ["spec.pools[0].replicas"]
    assert broken(pooled({"model": 3}, judge=JUDGE)) == ["spec.pools[0].model"]


def test_gpus_of_a_pool_follow_from_its_servers() -> None:
    gpu = {"device": "gpu", "resourceName": "nvidia.com/gpu"}
    spec = pooled({"tensorParallel": 4, "template": {"resources": {"limits": {"nvidia.com/gpu": "1"}}}})
    (violation,) = validate(spec | {"trainer": gpu}, "demo").violations
    assert violation.field == "spec.pools[0].template.resources.limits.nvidia.com/gpu"
    assert violation.rule == "is set by spec.pools[0]: tensorParallel x pipelineParallel x dataParallel / nodes"
    whole = make_spec(**(pooled({"tensorParallel": 4}) | {"trainer": gpu}))
    assert whole.container_resources("judge") == {"limits": {"nvidia.com/gpu": "4"}}


def test_all_of_a_pool_is_required_and_only_the_minimum_of_the_rollouts() -> None:
    spec = make_spec(**(pooled({"replicas": 3}) | {"rollout": {"replicas": 4, "minReplicas": 2}}))
    assert spec.pod_counts == {"trainer": 1, "rollout": 4, "judge": 3}
    assert required_pods(spec) == {"trainer": 1, "rollout": 2, "judge": 3}


def test_names_of_a_pools_pods_fit_for_the_longest_names() -> None:
    job, pool = "j" * names.MAX_JOB_NAME, "p" * names.MAX_POOL_NAME
    assert broken(pooled({"name": pool})) == []
    assert len(names.gang(job, pool)) <= 52
