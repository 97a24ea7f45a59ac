"""Rules of workers of rewards; those of agents are in broken.py, as the first of these is."""

from typing import Any

import pytest

from api.specs import raw_spec
from rljob_api.rules import validate
from rljob_api.spec.processes import Workers

WORKERS: dict[str, Any] = {"workers": {"replicas": 3, "processes": 2, "shmSize": "2Gi", "template": {"image": "own:1"}}}


def violations(*rewards: dict[str, Any], **changes: Any) -> list[str]:
    return [str(v) for v in validate(raw_spec(rewards=list(rewards), **changes), "demo").violations]


def test_python_functions_and_mathematics_may_have_pods() -> None:
    python = {"python": {"path": "/data/judge.py"}, "dataSource": "code"}
    assert violations(python | WORKERS, {"rule": "math"} | WORKERS) == []


@pytest.mark.parametrize(
    "other",
    [
        {"rule": "exactMatch"},
        {"http": {"url": "http://judge"}},
        {"vllm": {"url": "http://judge"}},
        {"model": {"path": "/data/scores"}},
    ],
)
def test_what_runs_elsewhere_has_no_workers(other: dict[str, Any]) -> None:
    (found,) = violations({"rule": "math", "dataSource": "sums"}, other | WORKERS)
    assert found.startswith("spec.rewards[1].workers = set: only python and rule: math run in processes of their own")


def test_recorded_batches_are_scored_by_nobody() -> None:
    (found,) = violations({"rule": "math"} | WORKERS, train={"batches": {"replay": "/data/other/batches"}})
    assert found.startswith("spec.rewards[0].workers = set: recorded batches are replayed as they are")


@pytest.mark.parametrize("replicas", [0, 4097])
def test_their_number_is_bounded(replicas: int) -> None:
    (found,) = violations({"rule": "math", "workers": {"replicas": replicas}})
    assert found.startswith(f"spec.rewards[0].workers.replicas = {replicas}")


def test_no_pool_has_the_role_of_their_pods() -> None:
    (found,) = violations({"vllm": {"pool": "scorer0"}}, pools=[{"name": "scorer0", "model": "/m"}])
    assert found.startswith("spec.pools[0].name = scorer0: names another role of the job")


def test_a_setting_of_their_pods_is_checked_as_that_of_all_others() -> None:
    workers = {"workers": {"template": {"env": [{"name": "RLJOB_ROLLOUT_TOKEN", "value": "x"}]}}}
    (found,) = violations({"rule": "math"} | workers)
    assert found.startswith("spec.rewards[0].workers.template.env[0].name = RLJOB_ROLLOUT_TOKEN: is set by rljob")


def test_autoscaling_has_a_default_for_everything() -> None:
    assert violations({"rule": "math", "workers": {"replicas": 9, "autoscaling": {}}}) == []
    workers = Workers.model_validate({"replicas": 9, "autoscaling": {}})
    assert workers.fewest == 1 and [workers.bounded(n) for n in (0, 1, 5, 9, 10)] == [1, 1, 5, 9, 9]
    assert Workers(replicas=9).fewest == Workers(replicas=9).bounded(20) == 9


def test_where_the_number_of_pods_cannot_change_nothing_scales_them() -> None:
    own = {"workers": {"replicas": 3, "autoscaling": {}}}
    agent = {"python": {"path": "/data/agent.py"}, "maxTurns": 2, "maxTokens": 16} | own
    rollout = {"agent": agent, "sampling": {"maxTokens": 8}}
    kueue = {"backend": "kueue", "queue": "team"}
    found = violations({"rule": "math"} | own, rollout=rollout, scheduling=kueue)
    assert [text.partition(" = ")[0] for text in found] == [
        "spec.rollout.agent.workers.autoscaling",
        "spec.rewards[0].workers.autoscaling",
    ]
    assert "kueue keeps the number of pods with which it has admitted a job" in found[0]
    assert violations({"rule": "math"} | own, rollout=rollout) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("minReplicas", 0), ("minReplicas", 4097), ("callsPerReplica", 0), ("callsPerReplica", 16385), ("downSeconds", 0)],
)
def test_what_autoscaling_is_told_is_bounded(field: str, value: int) -> None:
    workers = {"replicas": 4000, "autoscaling": {field: value}}
    (found,) = violations({"rule": "math", "workers": workers})
    assert found.startswith(f"spec.rewards[0].workers.autoscaling.{field} = {value}")
