"""Whether the driver may have as many connections as a job has worker processes."""

from typing import Any

import pytest

from api.specs import raw_spec
from rljob_api.spec import RLJobSpec
from rljob_trainer.driver import pod_listener
from rljob_trainer.driver.pod_listener import PodListener, PodsOfWorkers
from rljob_trainer.failure import ConfigurationError


def spec(agents: dict[str, Any] | None, scorers: dict[str, Any] | None = None) -> RLJobSpec:
    """A job with these workers."""
    agent: dict[str, Any] = {"python": {"path": "/data/agent.py"}, "maxTurns": 2, "maxTokens": 16}
    rewards = [{"rule": "math"} | ({"workers": scorers} if scorers else {})]
    rollout = {"agent": agent | ({"workers": agents} if agents else {})}
    return RLJobSpec.model_validate(raw_spec(rollout=rollout, rewards=rewards))


@pytest.mark.parametrize(
    ("most", "given"),
    [(1024, spec({"replicas": 96, "processes": 8})), (1024, spec({"replicas": 768})), (64, spec(None))],
    ids=["all counted", "one each", "none"],
)
def test_workers_that_fit_into_the_limit_are_no_mistake(
    monkeypatch: pytest.MonkeyPatch, most: int, given: RLJobSpec
) -> None:
    monkeypatch.setattr(pod_listener, "most_open_files", lambda: most)
    pod_listener.require_open_files(given)


async def test_a_machine_that_does_not_let_a_connection_be_open_for_each_process_is_named_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pod_listener, "most_open_files", lambda: 1024)
    given = spec({"replicas": 12, "processes": 8}, {"replicas": 85, "processes": 8})
    with pytest.raises(ConfigurationError) as raised:
        PodsOfWorkers.of(given, PodListener(1, "token"))
    assert str(raised.value).startswith(
        "spec.rewards[0].workers.replicas = 85: the driver has a connection for each of 776 worker processes and 256 other files, "
        "and its machine lets it open 1024; lower replicas or processes"
    )


def limited(cpu: object, **workers: int) -> dict[str, Any]:
    """Workers whose pods may use so many CPUs."""
    return {"template": {"resources": {"limits": {"cpu": cpu}}}, **workers}


@pytest.mark.parametrize(
    ("workers", "connections"),
    [
        (limited("4", replicas=192), 768),
        (limited("4", replicas=193), 772),
        (limited("3900m", replicas=257), 771),
        (limited("500m", replicas=768), 768),
        (limited("500m", replicas=769), 769),
        (limited("64", replicas=96), 768),
        (limited("64", replicas=97), 776),
        (limited("64", replicas=384, processes=2), 768),
        (limited("1", replicas=385, processes=2), 770),
        ({"replicas": 769}, 769),
    ],
)
def test_processes_that_the_spec_does_not_count_are_those_of_the_pods_limit_of_cpus(
    monkeypatch: pytest.MonkeyPatch, workers: dict[str, Any], connections: int
) -> None:
    monkeypatch.setattr(pod_listener, "most_open_files", lambda: 1024)
    if connections <= 768:
        pod_listener.require_open_files(spec(workers))
    else:
        with pytest.raises(ConfigurationError, match=f"each of {connections} worker processes"):
            pod_listener.require_open_files(spec(workers))
