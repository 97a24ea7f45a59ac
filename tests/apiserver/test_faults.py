"""The operator's process against a real API server, through whatever can go wrong between them: the end is the same as without a fault."""

from typing import Any

import pytest

from apiserver.lab import TURNS, Lab, lab
from apiserver.proxy import Faults
from e2e.control_plane import ControlPlane
from extra import extra_but
from rljob_api import reasons

pytestmark = pytest.mark.slow

END = ("Succeeded", 4, 2, (2, reasons.APPLICATION_FAILED, "demo-trainer-1"))
"""Outcome, attempts, restarts, last failure."""
FAULTS = {
    "nothing": Faults(),
    "conflicts": Faults(refused={409: 0.3}),
    "too-many-requests": Faults(refused={429: 0.3}),
    "server-errors": Faults(refused={500: 0.15, 503: 0.15}),
    "lost-answers": Faults(lost=0.4),
    "slow-answers": Faults(delay=0.3),
    "cut-watches": Faults(watch_seconds=0.3),
    "doubled-events": Faults(doubled=True, watch_seconds=2.0),
    "everything": Faults(refused={409: 0.1, 429: 0.1, 500: 0.1}, lost=0.1, delay=0.05, watch_seconds=1.0, doubled=True),
}


FOUR_GANGS: dict[str, Any] = {
    "critic": {"processesPerNode": 1},
    "reference": {"nodes": 2, "processesPerNode": 1},
    "algorithm": {"advantage": "gae", "kl": {"coefficient": 0.01}},
    "rewards": [{"rule": "number"}, {"model": {"path": "/data/reward", "processesPerNode": 1}}],
}


async def live(world: Lab, **changes: Any) -> tuple[object, ...]:
    """Run, lose a pod, fail once, suspend, resume, succeed."""
    await world.submit(**changes)
    await world.until(state="Running", attempt=1, turns=TURNS)
    await world.remove_child("Pod", "demo-trainer-1")
    await world.until(state="Running", attempt=2, turns=TURNS)
    world.launcher(1).fail("application", "ValueError", world.now)
    await world.until(state="Running", attempt=3, turns=TURNS)
    await world.ask("n1", "suspend")
    await world.until(state="Suspended", turns=TURNS)
    await world.ask("n2", "resume")
    await world.until(state="Running", attempt=4, turns=TURNS)
    world.finish = True
    await world.until(state="Succeeded", turns=TURNS)
    s = world.status
    last = s.last_failure and (s.last_failure.attempt, s.last_failure.reason, s.last_failure.pod)
    return s.outcome, s.attempt and s.attempt.number, s.restarts.total, last


@pytest.mark.parametrize("fault", extra_but(("lost-answers", "everything"), FAULTS))
async def test_a_fault_delays_and_changes_nothing(plane: ControlPlane, fault: str) -> None:
    async with lab(plane, fault, FAULTS[fault]) as world:
        assert await live(world) == END


@pytest.mark.extra
async def test_all_faults_at_once_change_nothing_for_a_job_of_four_gangs(plane: ControlPlane) -> None:
    async with lab(plane, "four-gangs", FAULTS["everything"]) as world:
        assert await live(world, **FOUR_GANGS) == END


@pytest.mark.extra  # the same in a simulation: tests/operator/test_histories.py. Of a real operator, a few kills: test_lease.py, e2e
@pytest.mark.parametrize("gangs", [{}, FOUR_GANGS], ids=["one", "four"])
async def test_an_operator_killed_after_every_single_write_reaches_the_same_end(
    plane: ControlPlane, gangs: dict[str, Any]
) -> None:
    faults = Faults()
    async with lab(plane, f"killed-{len(gangs)}", faults) as world:
        operator = world.operator_process
        assert operator
        faults.after_write = lambda line: operator.kill() if "/events" not in line else None
        assert await live(world, **gangs) == END
        assert operator.kills >= 15
