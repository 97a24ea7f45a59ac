"""What the GPUs of a job were used for: all of them, at every moment, and nothing twice."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from rljob_api import reasons
from rljob_api.accounting import PHASES, Accounting, divided, goodput
from rljob_api.protocol import Failure, Progress
from rljob_api.status import JobStatus
from rljob_api.status_parts import ProgressStatus
from rljob_operator.kube.api import ApiError
from rljob_operator.policies.describe import is_display
from rljob_operator.times import seconds, stamp
from simulator.cluster import Crash
from simulator.makers import NOW, Job, checkpoint, make_job
from simulator.world import NAMESPACE, World

EACH = 4
TRAINER = {"device": "gpu", "nodes": 2, "processesPerNode": EACH}
BATCH = {"promptsPerStep": 8, "samplesPerPrompt": 8}


def gpu_world(steps: int, seed: int = 0, **fields: Any) -> World:
    world = World(steps=steps, random=Random(seed), **fields)
    world.install_gpus(8 * EACH)
    world.apply(
        trainer=TRAINER,
        train={"steps": steps, **BATCH},
        rollout={"replicas": 1, "tensorParallel": EACH},
        lifecycle={"backoffSeconds": 1, "maxRestarts": 1000, "strandedSeconds": 30, "nodeLossSeconds": 5},
    )
    return world


def held(world: World) -> int:
    """GPUs that pods on nodes hold."""
    pods = [p for p in world.cluster.pods(NAMESPACE) if p["spec"].get("nodeName")]
    return EACH * sum(p["status"].get("phase") not in ("Failed", "Succeeded") for p in pods)


def counted(world: World) -> dict[str, float]:
    known = world.status.accounting
    return known.at(seconds(stamp(world.now)) - seconds(known.until)) if known.until else {}


def disturb(world: World, random: Random) -> None:
    """What users, nodes, processes and the API server do, now and then."""
    pods = sorted(p["metadata"]["name"] for p in world.cluster.pods(NAMESPACE))
    running = [one for _, one in sorted(world.launchers.items()) if one.state == "running"]
    kinds = [
        "kill",
        "delete",
        "fail",
        "evict",
        "suspend",
        "resume",
        "resume",
        "restart attempt",
        "go back",
        "restart",
        "crash",
    ]
    what = random.choice(kinds)
    if what == "restart attempt":
        world.request(f"n{world.now}", "restart")
    elif what == "go back":
        world.request(f"n{world.now}", "resume", random.choice([0, *(c.step for c in world.status.checkpoint.kept)]))
    elif what in ("suspend", "resume"):
        world.request(f"n{world.now}", what)
    elif what == "restart":
        world.restart_operator()
    elif what == "crash":
        world.cluster.crash_after = len(world.cluster.writes) + random.randint(1, 4)
    elif what == "fail" and running:
        random.choice(running).fail("application", "ValueError", world.now)
    elif what in ("kill", "delete", "evict") and pods:
        name = random.choice(pods)
        {"kill": world.kill_pod, "delete": world.delete_pod}.get(what, lambda n: world.fail_pod(n, "Evicted"))(name)


@pytest.mark.parametrize("seed", range(5))
async def test_the_phases_of_any_history_sum_up_to_the_gpus_that_were_held_over_time(seed: int) -> None:
    random = Random(seed)
    world = gpu_world(10**6, seed)
    integral, last = 0.0, 0.0
    for _ in range(300):
        if random.random() < 0.06:
            disturb(world, random)
        try:
            await world.turn()
        except (Crash, ApiError):
            world.restart_operator()
        integral += held(world)
        now = sum(counted(world).values())
        assert last <= now <= last + 3 * EACH * 6, "nothing is taken back, and nothing counted twice"
        last = now
    found = counted(world)
    assert integral > 1000
    assert sum(found.values()) == pytest.approx(integral, rel=0.02)
    assert set(found) <= set(PHASES) and len(found) >= 5
    assert found["generate"] == pytest.approx(4 * found["score"], rel=0.05), "as the trainer reports it"


async def test_a_job_that_nothing_disturbs_divides_its_time_as_its_trainer_does() -> None:
    world = gpu_world(40, save_every=10**6)
    await world.until(state="Succeeded")
    await world.turn()
    found = counted(world)
    steps = 3 * EACH * 40
    assert found["generate"] == pytest.approx(0.5 * steps, rel=0.1)
    assert found["train"] == pytest.approx(0.25 * steps, rel=0.1)
    assert "lost" not in found and world.status.accounting.gpus == 0
    assert 0.8 < (goodput(found) or 0.0) < 1.0, "it had to start"
    before = world.status.accounting
    for _ in range(50):
        await world.turn()
    assert world.status.accounting == before, "a job without GPUs costs nothing"


async def test_steps_that_a_failure_undoes_are_lost_with_the_time_until_the_next_one() -> None:
    world = gpu_world(60, save_every=20)
    await world.until(state="Running", step=30)
    before = counted(world)
    world.launcher(1).fail("application", "ValueError", world.now)
    await world.until(state="Running", step=22, attempt=2)
    after = counted(world)
    ten_steps = 3 * EACH * 10
    assert ten_steps <= after["lost"] <= 2 * ten_steps, "ten steps, and the restart"
    assert after["generate"] < before["generate"]
    assert "lost" not in before


async def test_a_drain_and_a_wait_lose_nothing() -> None:
    world = gpu_world(60, save_every=20)
    await world.until(state="Running", step=30)
    world.request("n1", "suspend")
    await world.until(state="Suspended")
    for _ in range(100):
        await world.turn()
    suspended = counted(world)
    for _ in range(100):
        await world.turn()
    assert counted(world) == suspended, "nothing is held"
    world.request("n2", "resume")
    await world.until(state="Succeeded")
    assert "lost" not in counted(world)


async def test_an_operator_that_is_killed_after_any_write_counts_the_same() -> None:
    async def life(crash_after: int | None) -> float:
        world = gpu_world(12)
        world.cluster.crash_after = crash_after
        await world.until(state="Running", step=5)
        world.kill_pod("demo-trainer-1")
        await world.until(state="Succeeded")
        await world.turn()
        return sum(counted(world).values())

    expected = await life(None)
    for crash_after in range(5, 60, 7):
        assert await life(crash_after) == pytest.approx(expected, abs=3 * EACH * 2), crash_after


async def test_the_running_pods_hold_their_gpus_although_the_next_spec_names_another_resource() -> None:
    world = gpu_world(10**6)
    await world.until(state="Running", step=3)
    world.edit_spec(trainer=TRAINER | {"resourceName": "amd.com/gpu"})
    for _ in range(3):
        await world.turn()
    assert world.status.attempt and world.status.attempt.number == 1
    assert world.status.accounting.gpus == 3 * EACH


async def test_waiting_with_gpus_is_read_from_the_status_without_further_writes() -> None:
    world = gpu_world(60)
    world._boot = lambda: None  # type: ignore[method-assign]  # no launcher ever reports
    while held(world) < 3 * EACH:
        await world.turn()
    for _ in range(5):
        await world.turn()
    writes, before = len(world.cluster.writes), counted(world)
    for _ in range(60):
        await world.turn()
    assert counted(world)["waiting"] == pytest.approx(before["waiting"] + 3 * EACH * 60)
    assert len(world.cluster.writes) == writes


def running(**progress: Any) -> Job:
    """For a minute, of a job on eight GPUs."""
    known = Accounting(until=stamp(NOW - 60), gpus=8, phase="generate")
    shown = ProgressStatus(attempt=1, step=4, started_from=0, updated_at=stamp(NOW - 60))
    return make_job().with_attempt().with_status(accounting=known, progress=shown).running(**progress).having(gpus=8)


def test_what_is_not_reported_yet_counts_for_the_present_phase() -> None:
    job = running(step=5, phase="generating", spent={"loading": 5.0, "training": 20.0, "generating": 10.0})
    found = job.next().accounting
    assert found.gpu_seconds == {"starting": 40.0, "train": 160.0, "generate": 8 * 35.0}
    assert found.reported == {"starting": 5.0, "train": 20.0, "generate": 35.0}
    later = job.with_status(accounting=found).running(step=6, phase="generating", spent={"generating": 60.0})
    assert later.next(NOW + 60).accounting.gpu_seconds["generate"] == 8 * 95.0


def test_a_report_cannot_claim_more_than_has_passed() -> None:
    spent = {"training": 1e8, "saving": 1e8, "brewing": 5.0, "syncing": -3.0, "loading": float("inf")}
    progress = Progress.model_validate({"phase": "training", "spent": spent})
    assert set(progress.spent) == {"training", "saving"}
    found = running(step=5, phase="training", spent=progress.spent).next().accounting
    assert found.gpu_seconds == {"train": 240.0, "save": 240.0}


def test_a_checkpoint_makes_safe_what_came_before_its_step() -> None:
    job = running(step=8, phase="training", spent={"training": 60.0}, checkpoints=[checkpoint(6)])
    saved = job.next()
    assert saved.accounting.unsaved == {"train": 8 * 60.0 * 2 / 8}, "two of eight steps came behind it"
    failed = replace(job, status=saved).failing(1).reporting(0, state="stopped", result="failed")
    assert failed.next(NOW).accounting.gpu_seconds == {"train": 360.0, "lost": 120.0}


def test_a_checkpoint_that_is_the_only_news_makes_its_steps_safe() -> None:
    job = running(step=10, phase="training", spent={"training": 60.0})
    trained = job.next()
    assert trained.accounting.unsaved == {"train": 480.0}
    job = replace(job, status=trained).running(
        step=10, phase="training", spent={"training": 60.0}, checkpoints=[checkpoint(10)]
    )
    saved = job.next(NOW + 1)
    assert saved.progress == trained.progress and saved.accounting.unsaved == {}
    failed = replace(job, status=saved).failing(1).reporting(0, state="stopped", result="failed")
    assert "lost" not in failed.next(NOW + 1).accounting.gpu_seconds


def ending(reason: str, result: str, command: str = "drain", **fields: Any) -> JobStatus:
    """Of a job whose first attempt ends in the reconcile that opens the second one."""
    known = Accounting(
        until=stamp(NOW - 60),
        gpus=8,
        phase="train",
        gpu_seconds={"train": 1000.0},
        unsaved={"train": 1000.0},
        reported={"train": 125.0},
    )
    job = make_job(scheduling={"backend": "none"}).with_attempt(1, command=command, reason=reason, **fields)
    job = job.with_status(accounting=known).running(step=10, phase="training", spent={"training": 185.0}).having(gpus=8)
    job = job.reporting(0, state="stopped", result=result)
    if reason in reasons.FAILURES:
        job = job.changing_pod(1, uid="pod-1b")
        found = job.reporting(1, pod_uid="pod-1b", boot_id="boot-1b", attempt=0, state="idle").next()
    else:
        found = job.reporting(1, state="stopped", result=result).next()
    assert found.attempt and (found.attempt.number, found.attempt.ended_at) == (2, "")
    assert found.accounting.reported == {} and found.accounting.unsaved == {}, "those were of the first attempt"
    assert found.accounting.phase == ("lost" if found.accounting.recovering else "starting")
    return found


@pytest.mark.parametrize("reason", [reasons.POD_DISRUPTED, reasons.POD_DELETED])
def test_a_failure_loses_its_steps_although_the_next_attempt_opens_at_once(reason: str) -> None:
    failure = Failure(kind="killed", exception=reason, message="pod demo-trainer-1: gone")
    found = ending(
        reason, "stopped", "stop", failure=failure, failed_pod="demo-trainer-1", commanded_at=stamp(NOW - 20)
    )
    assert found.accounting.recovering and found.accounting.gpu_seconds == {"lost": 1480.0}


@pytest.mark.parametrize(
    ("reason", "result"), [(reasons.RESTART_REQUESTED, "drained"), (reasons.RESUME_REQUESTED, "stopped")]
)
def test_a_request_loses_no_steps_although_the_next_attempt_opens_at_once(reason: str, result: str) -> None:
    found = ending(reason, result)
    assert not found.accounting.recovering and found.accounting.gpu_seconds == {"train": 1480.0}


def test_a_change_of_the_accounting_alone_waits_as_counts_do() -> None:
    job = running(step=4)
    before = job.next()
    after = replace(job, status=before).having(gpus=16).next(NOW + 5)
    assert after.accounting != before.accounting and is_display(before, after)


def test_a_clock_that_is_set_back_takes_nothing_back() -> None:
    job = running(step=5, phase="training")
    found = job.next(NOW - 3600).accounting
    assert found.gpu_seconds == {} and found.until == stamp(NOW - 3600)


@pytest.mark.parametrize("due", [{}, {"train": 4.0}, {"train": 30.0, "save": 10.0}, {"train": -5.0, "save": 3.0}])
def test_an_interval_is_divided_without_a_rest(due: dict[str, float]) -> None:
    assert sum(divided(due, "generate", 20.0).values()) == pytest.approx(20.0)
