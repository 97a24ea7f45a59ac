"""An API server that is away, credentials that are replaced, a lease that is lost: the process stays, and so does the outcome."""

import asyncio

import pytest

from apiserver.lab import TURNS, lab, until
from apiserver.proxy import Faults
from e2e.control_plane import ControlPlane
from rljob_operator.kube import leader_election

pytestmark = pytest.mark.slow
AWAY_SECONDS = [40, pytest.param(120, marks=pytest.mark.extra)]
"""Longer than a lease lasts, and than any request is tried; and the two minutes that an upgrade takes."""


@pytest.mark.parametrize("seconds", AWAY_SECONDS)
async def test_an_api_server_that_is_away_neither_ends_the_operator_nor_changes_an_outcome(
    plane: ControlPlane, seconds: int
) -> None:
    """The operator loses its lease. The same process waits and gets it again, so no back-off of the kubelet delays that."""
    faults = Faults(watch_seconds=2.0)
    async with lab(plane, f"away-{seconds}", faults) as world:
        await world.submit()
        await world.until(state="Running", attempt=1, turns=TURNS)
        faults.away = True
        operator = world.process
        for _ in range(seconds):
            operator.keep_alive()
            await asyncio.sleep(1.0)
        await until(lambda: operator.tells("could not be renewed"))
        faults.away = False
        await world.until(state="Running", step=1, turns=TURNS)
        assert world.status.attempt and world.status.attempt.number == 1, "nobody failed"
        world.finish = True
        await world.until(state="Succeeded", turns=TURNS)
        assert operator.deaths == 0


async def test_a_token_that_is_replaced_is_read_again_by_watches_and_by_writes(plane: ControlPlane) -> None:
    faults = Faults(token="first", watch_seconds=2.0)
    async with lab(plane, "rotated", faults) as world:
        operator = world.process
        operator.use_token("first")
        await world.submit()
        await world.until(state="Running", attempt=1, turns=TURNS)
        operator.use_token("second")
        faults.token = "second"
        await world.remove_child("Pod", "demo-trainer-1")
        await world.until(state="Running", attempt=2, turns=TURNS)
        world.finish = True
        await world.until(state="Succeeded", turns=TURNS)
        assert operator.tells("Re-authentication has finished")


async def test_an_operator_that_loses_its_lease_while_it_writes_stops_and_completes_the_attempt_when_it_has_it_again(
    plane: ControlPlane,
) -> None:
    faults, written = Faults(delay=0.2), list[str]()
    faults.after_write = written.append
    async with lab(plane, "thief", faults) as world:
        operator = world.process
        await world.submit()
        await world.until(state="Starting", turns=TURNS)
        await world.edit_child("Lease", leader_election.NAME, {"spec": {"holderIdentity": "thief"}})
        await until(lambda: operator.tells("another operator may act now"))
        faults.delay = 0.0
        await until(lambda: not faults.writing)  # what it had sent is still under way, slowly
        count = len(written)
        await asyncio.sleep(2.0)  # a write would be seen
        assert written[count:] == [], "it writes no more"
        await world.remove_child("Lease", leader_election.NAME)
        await world.until(state="Running", step=1, turns=TURNS)
        assert world.status.attempt and world.status.attempt.number == 1, "nobody failed"
        world.finish = True
        await world.until(state="Succeeded", turns=TURNS)
