"""Status and events name the step that a job really resumes from."""

import pytest

from rljob_api import names, reasons
from rljob_api.protocol import RESUME_STEP
from rljob_api.status_parts import CheckpointStatus
from simulator.makers import checkpoint, make_job
from simulator.world import NAMESPACE, World


def messages(world: World, reason: str) -> list[str]:
    return [
        o["message"] for (kind, _, _), o in world.cluster.objects.items() if kind == "Event" and o["reason"] == reason
    ]


async def test_a_checkpoint_that_was_deleted_by_hand_is_told_of() -> None:
    world = World(steps=10**6)
    world.apply()
    await world.until(state="Running", step=6)
    world.checkpoints = [c for c in world.checkpoints if c.step <= 4]
    world.kill_pod("demo-trainer-1")
    await world.until(state="Running", attempt=2)
    gone = messages(world, reasons.CHECKPOINT_MISSING)
    assert len(gone) == 1
    assert gone[0].startswith("attempt 2 resumes from step 4: the checkpoint of step ")
    assert world.status.progress.started_from == 4
    assert not [m for m in messages(world, reasons.CHECKPOINT_SAVED) if m.startswith("step 4 ")][1:], "it is no news"


async def test_a_job_whose_checkpoints_are_all_gone_ends_and_starts_over_only_when_it_is_asked_to() -> None:
    world = World(steps=10**6)
    world.apply()
    await world.until(state="Running", step=6)
    world.checkpoints = []
    world.kill_pod("demo-trainer-1")
    await world.until(state="Failed", attempt=2)
    assert "no complete checkpoint of its lineage is left" in world.status.message
    assert world.status.outcome_reason == reasons.CONFIGURATION_ERROR
    world.request("n1", "resume", 0)
    await world.until(state="Running", attempt=3)
    assert world.status.progress.started_from == 0
    await world.until(step=6)
    world.kill_pod("demo-trainer-1")
    await world.until(state="Running", attempt=4)


async def test_a_suspended_job_whose_checkpoints_were_all_removed_does_not_start_over_when_it_resumes() -> None:
    world = World(steps=10**6)
    world.apply()
    await world.until(state="Running", step=6)
    world.request("n1", "suspend")
    await world.until(state="Suspended")
    world.checkpoints = []
    world.request("n2", "resume")
    await world.until(state="Failed")
    assert "no complete checkpoint of its lineage is left" in world.status.message


@pytest.mark.parametrize(("field", "left"), [(RESUME_STEP, [20, 60]), ("spec.model.path", [20, 40, 60])])
def test_a_step_whose_manifest_is_gone_is_offered_once_only(field: str, left: list[int]) -> None:
    kept = [checkpoint(step) for step in (20, 40, 60)]
    known = CheckpointStatus(latest=kept[-1], kept=kept)
    job = make_job().with_attempt(2, resume_step=40).with_status(checkpoint=known)
    status = job.failing(0, kind="configuration", field=field).failing(1, kind="collective").next()
    assert status.outcome == "Failed"
    assert [c.step for c in status.checkpoint.kept] == left
    assert status.checkpoint.latest == kept[-1]


async def test_from_step_0_starts_over_from_the_initial_weights() -> None:
    world = World(steps=10)
    world.apply()
    await world.until(state="Succeeded")
    world.request("n1", "resume", 0)
    await world.until(state="Running", attempt=2)
    assert world.status.progress.started_from == 0
    assert "attempt 2 starts on 2 pods from the initial weights" in messages(world, reasons.ATTEMPT_OPENED)
    assert messages(world, reasons.CHECKPOINT_MISSING) == [], "it was asked for"
    await world.until(state="Succeeded")


async def test_a_request_with_endless_words_is_refused_and_does_not_enter_the_status() -> None:
    world = World(steps=10**6)
    world.apply()
    await world.until(state="Running")
    world.request("n" * 10_000, "suspend")
    await world.turn()
    await world.turn()
    assert len(world.status.request) < 100
    assert "REQUEST_REFUSED" not in world.status.message
    assert messages(world, reasons.REQUEST_REFUSED)
    assert world.cluster.objects[("RLJob", NAMESPACE, "demo")]["metadata"]["annotations"][names.ANNOTATION_REQUEST]
