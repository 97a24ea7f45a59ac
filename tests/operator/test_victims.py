"""A job that has to give up its nodes: it ends its step, saves, waits and continues."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from rljob_api import reasons
from rljob_api.status_parts import Preemption
from simulator.makers import NOW, Job, make_job
from simulator.objects import job_object, node_object
from simulator.site import NAMESPACE
from simulator.world import World


@dataclass(kw_only=True)
class Rivals(World):
    """`demo` trains, and `high` competes for its nodes without training."""

    trained: list[int] = field(default_factory=list)
    """Steps, in the order in which they were done."""
    repeated: bool = False
    """Whether an attempt began before the last of them."""

    def submit(self) -> None:
        self.cluster.put(job_object("high", replace_scheduling(self.job["spec"], priority=10)))

    async def turn(self) -> None:
        await super().turn()
        if any(key[2] == "high" for key in self.cluster.objects):
            await self.pass_over("high")
        done = [x.progress for x in self.launchers.values() if x.progress]
        if done and done[0].step > max(done[0].started_from or 0, self.trained[-1] if self.trained else 0):
            self.trained.append(done[0].step)
        elif done and done[0].step < (self.trained or [0])[-1]:
            self.repeated = True


def replace_scheduling(spec: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return spec | {"scheduling": {"backend": "builtin"} | changes}


@pytest.mark.parametrize("crash_after", [None, *range(40, 90, 7)])
async def test_a_preempted_job_saves_waits_and_trains_every_step_once(crash_after: int | None) -> None:
    world = Rivals(steps=30, save_every=10**6)
    world.cluster.remove(world.cluster.objects[("Node", None, "node-1")])
    world.cluster.put(node_object(True, name="node-1", pods=3))
    world.restart_operator()
    world.apply(scheduling={"backend": "builtin"})
    await world.until(state="Running", step=10)
    world.cluster.crash_after = len(world.cluster.writes) + crash_after - 38 if crash_after else None
    world.submit()
    for _ in range(40):
        await world.turn()
    held = [p["metadata"]["name"] for p in world.cluster.pods(NAMESPACE) if p["spec"].get("nodeName")]
    assert sorted(held) == ["high-rollout-0", "high-trainer-0", "high-trainer-1"]
    status = world.status
    assert status.attempt.reason == reasons.PREEMPTED and status.checkpoint.latest.step == status.progress.step
    assert (status.state, status.restarts.total, status.suspended) == ("Pending", 0, False)
    assert "Suspending" in world.seen and (crash_after or reasons.PREEMPTED in world.events())
    for obj in [o for key, o in world.cluster.objects.items() if key[2].startswith("high")]:
        world.cluster.remove(obj)
    await world.until(state="Succeeded")
    assert world.trained == list(range(1, 31)) and not world.repeated
    assert world.status.lost_steps == 0 and world.status.preemption is None


def needed(**changes: Any) -> Job:
    return make_job(scheduling={"backend": "builtin"}, **changes).having(preemptor="research/high")


def test_a_victim_finishes_its_step_and_saves() -> None:
    found = needed().with_attempt().running(step=7).decide()
    assert found.status.attempt.command == "drain" and found.status.attempt.reason == reasons.PREEMPTED
    assert not found.delete and found.status.state == "Suspending"
    assert [event.reason for event in found.events] == [reasons.PREEMPTED]


def test_a_victim_that_cannot_save_in_time_is_stopped() -> None:
    draining = needed(lifecycle={"drainTimeoutSeconds": 60}).with_attempt().running(step=7)
    draining = replace(draining, status=draining.next())
    assert draining.next(NOW + 59).attempt.command == "drain"
    assert draining.next(NOW + 61).attempt.command == "stop"


def test_a_victim_without_an_attempt_leaves_at_once_and_opens_none() -> None:
    found = needed().with_pods().reported(state="idle").decide()
    assert {pod.name for pod in found.delete} == {"demo-trainer-0", "demo-trainer-1"}
    assert found.status.attempt is None and found.status.is_leaving


def test_a_victim_goes_on_leaving_when_nobody_needs_its_nodes_any_more() -> None:
    leaving = Preemption(by="research/high", since="2026-01-01T00:00:00Z")
    found = needed().having(preemptor="").with_status(preemption=leaving).with_pods().reported(state="idle").decide()
    assert len(found.delete) == 2
    gone = needed().having(preemptor="").with_status(preemption=leaving).next()
    assert gone.preemption.released


@pytest.mark.parametrize(
    "held", [{"lost_since": NOW - 121}, {"deleting": True, "delete_by": NOW - 121}], ids=["a lost node", "no end"]
)
def test_a_victim_does_not_wait_for_a_pod_that_may_never_free_its_node(held: dict[str, Any]) -> None:
    leaving = Preemption(by="research/high", since="2026-01-01T00:00:00Z")
    job = needed().with_status(preemption=leaving).with_pods()
    job = replace(job, pods=(replace(job.pods[0], **held),))
    assert not job.next(NOW - 2).preemption.released
    found = job.decide()
    assert found.status.preemption.released and not found.status.is_leaving
    again = replace(job, status=found.status).decide()
    assert again.status.preemption == found.status.preemption and not again.events, "it leaves once"


def test_a_job_that_runs_again_has_not_been_preempted() -> None:
    left = Preemption(by="research/high", since="2026-01-01T00:00:00Z", released=True)
    status = needed().having(preemptor="").with_status(preemption=left).with_attempt(2).next()
    assert status.preemption is None
    assert next(c for c in status.conditions if c.type == "Preempted").status == "False"


def test_a_suspension_takes_the_place_of_a_preemption() -> None:
    status = needed(suspend=True).with_attempt().running(step=7).next()
    assert status.attempt.reason == reasons.SUSPENDED and status.preemption is None
