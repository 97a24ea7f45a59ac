"""Two operators of one cluster: one waits for the other."""

import asyncio
import time
from argparse import Namespace
from pathlib import Path

import pytest

from apiserver.lab import TURNS, Operator, lab, until
from apiserver.proxy import Faults
from benchmarks import replicas
from e2e.control_plane import ControlPlane

pytestmark = pytest.mark.slow


@pytest.mark.extra
def test_an_operator_ends_when_it_is_told_to_while_it_waits_for_the_lease_and_when_it_holds_it(
    plane: ControlPlane, tmp_path: Path
) -> None:
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": "lease"}})
    first, second = (Operator(plane.kubeconfig, "lease", tmp_path / f"{name}.log", identity=name) for name in "ab")
    try:
        first.keep_alive()
        wait_for_log(first, "a holds the lease")
        second.keep_alive()
        wait_for_log(second, "is held by a")
        assert second.end() == 0
        second.keep_alive()
        assert first.end() == 0
        wait_for_log(second, "b holds the lease")
    finally:
        first.kill()
        second.kill()


async def test_a_second_operator_completes_what_one_that_ends_or_is_killed_has_begun(plane: ControlPlane) -> None:
    async with lab(plane, "pair", Faults(watch_seconds=2.0)) as world:
        first = world.process
        second = Operator(first.kubeconfig, "pair", plane.directory / "operator-second.log", identity="two")
        try:
            await world.submit()
            await world.until(state="Starting", turns=TURNS)
            second.keep_alive()
            await until(lambda: second.tells("is held by one"))
            assert await asyncio.to_thread(first.end) == 0
            world.operator_process = second
            await world.until(state="Running", attempt=1, turns=TURNS)
            first.keep_alive()
            await until(lambda: first.tells("is held by two"))
            await world.remove_child("Pod", "demo-trainer-1")
            await world.until(state="Restarting", turns=TURNS)
            second.kill()
            world.operator_process = first
            await world.until(state="Running", attempt=2, turns=TURNS)
            assert (world.status.restarts.total, first.deaths, second.deaths) == (1, 0, 0)
            world.finish = True
            await world.until(state="Succeeded", turns=TURNS)
        finally:
            second.kill()


def wait_for_log(operator: Operator, words: str) -> None:
    """Its log says so."""
    end = time.monotonic() + 180
    while not operator.log.exists() or words not in operator.log.read_text():
        assert time.monotonic() < end, operator.log.read_text()
        time.sleep(0.1)


@pytest.mark.extra
def test_nothing_is_lost_or_done_twice_when_the_leader_of_many_jobs_is_killed_replaced_or_frozen(
    tmp_path: Path,
) -> None:
    """In a control plane of its own, with real controllers and scheduler; larger in docs/evidence/cpus.md."""
    assert replicas.run(tmp_path, Namespace(steady=3, cycled=2, short=2, rounds=1, seed=0)) == []
