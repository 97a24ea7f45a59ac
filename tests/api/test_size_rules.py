"""How large a job may be."""

from typing import Any

import pytest

from api.specs import raw_spec
from rljob_api.policy import JobPolicy
from rljob_api.rules import validate

POOL = {"model": "/m", "replicas": 256}


def fields(**changes: Any) -> dict[str, str]:
    return {v.field: v.rule for v in validate(raw_spec(**changes), "demo").violations}


def test_a_job_of_1024_nodes_and_4096_pods_is_possible_and_one_pod_more_is_not() -> None:
    trainer = {"device": "cpu", "nodes": 1024}
    rollout = {"replicas": 3072, "sampling": {"maxTokens": 8}}
    train = {"promptsPerStep": 1024}
    assert fields(trainer=trainer, rollout=rollout, train=train) == {}
    found = fields(trainer=trainer, rollout=rollout | {"replicas": 3073}, train=train)
    assert found == {
        "spec.rollout.replicas": "with spec.trainer 1024 that makes 4097 pods; a job may have at most 4096 pods"
    }


def test_a_server_of_several_pods_counts_with_all_of_them() -> None:
    rollout = {"replicas": 100, "nodes": 64, "tensorParallel": 64, "sampling": {"maxTokens": 8}}
    (found,) = validate(raw_spec(rollout=rollout), "demo").violations
    assert (found.field, found.value) == ("spec.rollout.replicas", "100 of 64 pods")
    assert found.rule == "with spec.trainer 1 that makes 6401 pods; a job may have at most 4096 pods"


def test_servers_of_several_pods_may_have_2048_pods_together() -> None:
    pools = [{"name": "judge", "nodes": 2, "tensorParallel": 2} | POOL, {"name": "other"} | POOL]
    rollout = {"replicas": 1020, "nodes": 2, "tensorParallel": 2, "sampling": {"maxTokens": 8}}
    train = {"promptsPerStep": 1024}
    assert fields(rollout=rollout | {"replicas": 1024}, train=train) == {}
    rewards = [{"vllm": {"pool": pool["name"]}, "dataSource": pool["name"]} for pool in pools]
    (found,) = validate(raw_spec(rollout=rollout, train=train, pools=pools, rewards=rewards), "demo").violations
    assert str(found) == (
        "spec.rollout.replicas = 1020 of 2 pods: with spec.pools[0] 512 that makes 2552 pods; servers of several pods "
        "may have at most 2048 pods together; lower it, or the number of pods of each server"
    )


def test_spares_count_and_a_message_says_how_many_there_are() -> None:
    trainer = {"device": "cpu", "nodes": 1024}
    rollout = {"replicas": 3072, "sampling": {"maxTokens": 8}}
    found = fields(trainer=trainer, rollout=rollout, train={"promptsPerStep": 1024}, scheduling={"spareNodes": 1})
    assert found["spec.rollout.replicas"] == (
        "with spec.trainer 1024, spec.scheduling.spareNodes 1 that makes 4097 pods; a job may have at most 4096 pods"
    )
    (violation,) = (
        JobPolicy.model_validate({"maxPods": 4}).admit(raw_spec(scheduling={"spareNodes": 3}), "demo").result.violations
    )
    assert str(violation).startswith("spec.scheduling.spareNodes = 3: with spec.trainer 1, spec.rollout 1 that makes 5")
    agent = {"python": {"path": "/data/agent.py"}, "maxTurns": 2, "maxTokens": 16, "workers": {"replicas": 3}}
    rollout = {"agent": agent, "sampling": {"maxTokens": 8}}
    (violation,) = JobPolicy.model_validate({"maxPods": 4}).admit(raw_spec(rollout=rollout), "demo").result.violations
    assert str(violation).startswith(
        "spec.rollout.agent.workers.replicas = 3: with spec.trainer 1, spec.rollout 1 that makes 5 pods"
    )
    rewards = [{"rule": "math", "workers": {"replicas": 3}}]
    (violation,) = JobPolicy.model_validate({"maxPods": 4}).admit(raw_spec(rewards=rewards), "demo").result.violations
    assert str(violation).startswith("spec.rewards[0].workers.replicas = 3: with spec.trainer 1, spec.rollout 1 that")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"trainer": {"nodes": 1025}}, "spec.trainer.nodes"),
        ({"trainer": {"nodes": 100_000}}, "spec.trainer.nodes"),
        ({"trainer": {"processesPerNode": 65}}, "spec.trainer.processesPerNode"),
        ({"reference": {"nodes": 1025, "processesPerNode": 1}}, "spec.reference.nodes"),
        ({"reference": {"processesPerNode": 65}}, "spec.reference.processesPerNode"),
        ({"scheduling": {"spareNodes": 65}}, "spec.scheduling.spareNodes"),
        ({"rollout": {"replicas": 4097}}, "spec.rollout.replicas"),
        ({"rollout": {"minReplicas": 4097}}, "spec.rollout.minReplicas"),
        ({"rollout": {"nodes": 65}}, "spec.rollout.nodes"),
        ({"rollout": {"tensorParallel": 65}}, "spec.rollout.tensorParallel"),
        ({"rollout": {"pipelineParallel": 65}}, "spec.rollout.pipelineParallel"),
        ({"pools": [POOL | {"name": "judge", "replicas": 1, "nodes": 65}]}, "spec.pools[0].nodes"),
        ({"pools": [POOL | {"name": "judge", "replicas": 257}]}, "spec.pools[0].replicas"),
        ({"pools": [POOL | {"name": f"judge{i}"} for i in range(9)]}, "spec.pools"),
    ],
)
def test_every_number_of_pods_and_processes_has_a_bound(changes: dict[str, Any], field: str) -> None:
    assert "at most" in fields(**changes)[field]


def test_pools_and_gangs_count() -> None:
    pools = [POOL | {"name": f"judge{i}"} for i in range(8)]
    rewards = [{"vllm": {"pool": pool["name"]}, "dataSource": pool["name"]} for pool in pools]
    found = fields(pools=pools, rewards=rewards, rollout={"replicas": 2048, "sampling": {"maxTokens": 8}})
    assert found["spec.rollout.replicas"].endswith("that makes 4097 pods; a job may have at most 4096 pods")


def test_the_administrator_lowers_the_number_of_pods() -> None:
    policy = JobPolicy.model_validate({"maxPods": 4})
    spec = raw_spec(trainer={"device": "cpu", "nodes": 4})
    (violation,) = policy.admit(spec, "demo").result.violations
    assert str(violation) == (
        "spec.trainer.nodes = 4: with spec.rollout 1 that makes 5 pods; the administrator allows at most 4 pods; "
        "lower it, or ask the administrator of rljob"
    )
    assert policy.admit(raw_spec(), "demo").result.valid
