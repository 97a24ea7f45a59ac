"""Jobs that learn from given data alone: a gang, and nothing that generates."""

import pytest

from rljob_api import names, reasons
from rljob_api.backends import BACKENDS, BackendName
from rljob_operator.schedulers import SCHEDULERS
from simulator.counted import counted
from simulator.life import end, kill_after_writes, live
from simulator.makers import META, make_job
from simulator.scraping import samples_of
from simulator.world import World, of_rollouts


@pytest.mark.parametrize(("task", "backend"), [("sft", "none"), ("dpo", "builtin")])
async def test_a_job_without_rollouts_lives_as_any_other(task: str, backend: BackendName) -> None:
    supervised = await live(World(steps=12), task=task, scheduling={"backend": backend})
    assert end(supervised) == end(await live(World(steps=12), scheduling={"backend": backend}))
    assert not of_rollouts(supervised)


async def test_an_operator_killed_after_a_write_changes_nothing() -> None:
    await kill_after_writes(every=3, task="sft")


async def test_conditions_roles_and_metrics_say_nothing_of_rollouts() -> None:
    world = World(steps=12)
    world.apply(task="dpo")
    await world.until(state="Running", step=2)
    (ready,) = [c for c in world.status.conditions if c.type == "RolloutsReady"]
    assert (ready.status, ready.reason, ready.message) == ("True", reasons.NOT_NEEDED, "task dpo has no rollouts")
    assert (world.status.rollout.text, world.status.rollout.selector) == ("", "")
    shown = {sample.name for sample in samples_of(world)}
    assert "rljob_job_ready_trainers" in shown and "rljob_job_ready_rollouts" not in shown


async def test_steps_of_epochs_are_those_that_the_trainer_reports() -> None:
    world = World(steps=7)
    world.apply(task="sft", train={"steps": None, "epochs": 2})
    await world.turn()
    assert world.status.progress.text == "0/?"
    await world.until(state="Running", step=2)
    assert (world.status.progress.steps, world.status.progress.text.partition("/")[2]) == (7, "7")
    await world.until(state="Succeeded")
    assert (world.status.progress.text, world.status.message) == ("7/7", "all 7 steps are done")


def test_a_report_does_not_change_the_steps_of_the_spec() -> None:
    assert make_job().with_attempt().running(step=2, steps=99).next().progress.text == "2/10"


@pytest.mark.parametrize("backend", SCHEDULERS)
def test_every_scheduler_counts_the_trainers_alone(backend: BackendName) -> None:
    queue = {"queue": "team"} if "queue" in BACKENDS[backend].fields else {}
    spec = make_job(task="sft", scheduling={"backend": backend} | queue).spec
    settings = SCHEDULERS[backend].pod_settings(META, spec, names.ROLE_TRAINER)
    assert settings.annotations.get("kueue.x-k8s.io/pod-group-total-count", "2") == "2"
    groups = SCHEDULERS[backend].objects(META, spec)
    assert not groups or counted(backend, groups) == {names.ROLE_TRAINER: 2}
