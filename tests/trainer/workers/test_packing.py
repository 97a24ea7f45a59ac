"""Where calls go when pods come and go with them, and what the driver counts."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from rljob_api.protocol import WorkerLoad
from rljob_api.spec.common import MOST_PODS
from rljob_api.spec.processes import Autoscaling
from rljob_trainer.workers.load import Peak, PodsNeeded
from rljob_trainer.workers.places import PackedPlaces, ordinal


@dataclass(eq=False)
class Process:
    pod: int
    room: int = 256
    gone: bool = False


def packed(least: int = 1, each: int = 4) -> PackedPlaces[Process]:
    autoscaling = Autoscaling(min_replicas=least, calls_per_replica=each, down_seconds=60)
    return PackedPlaces(lambda p: p.room, lambda p: p.gone, lambda p: p.pod, autoscaling)


def with_pods(places: PackedPlaces[Process], *pods: int, processes: int = 1) -> list[Process]:
    found = [Process(pod) for pod in pods for _ in range(processes)]
    for process in found:
        places.add(process)
    return found


async def taken(places: PackedPlaces[Process], stack: AsyncExitStack, count: int) -> list[int]:
    """The pods of so many calls more."""
    return [(await stack.enter_async_context(places.one())).pod for _ in range(count)]


async def test_the_lowest_pods_are_filled_first_and_the_highest_become_free() -> None:
    places = packed()
    with_pods(places, 2, 0, 1)
    async with AsyncExitStack() as stack:
        assert await taken(places, stack, 9) == [0] * 4 + [1] * 4 + [2]
        assert (places.running, places.waiting, places.busy) == (9, 0, 3)
        async with AsyncExitStack() as more:
            assert await taken(places, more, 3) == [2] * 3
            late = asyncio.create_task(places.one().__aenter__())
            await asyncio.sleep(0)
            assert not late.done() and (places.running, places.waiting) == (12, 1), "each pod has what it may have"
            with_pods(places, 3)
            assert (await late).pod == 3, "a call that waits goes to the pod that comes"
        assert places.busy == 4
    assert (places.running, places.busy) == (1, 4)


async def test_calls_are_spread_over_the_pods_that_never_go_and_over_the_processes_of_each() -> None:
    places = packed(least=2)
    processes = with_pods(places, 0, 1, 2, processes=2)
    async with AsyncExitStack() as stack:
        assert sorted(await taken(places, stack, 4)) == [0, 0, 1, 1]
        assert [places._taken[process] for process in processes] == [1, 1, 1, 1, 0, 0]
        assert sorted(await taken(places, stack, 6)) == [0, 0, 1, 1, 2, 2]
        assert [places._taken[process] for process in processes] == [2, 2, 2, 2, 1, 1]


async def test_a_process_without_room_or_that_is_gone_gets_nothing() -> None:
    places = packed()
    for process in (Process(0, gone=True), Process(0, room=1), Process(1)):
        places.add(process)
    async with AsyncExitStack() as stack:
        assert await taken(places, stack, 3) == [0, 1, 1]


async def test_who_runs_alone_is_one_call_and_its_pod_gets_no_other() -> None:
    places = packed()
    with_pods(places, 0, 1)
    async with places.one(alone=True) as alone, places.one() as other:
        assert (alone.pod, other.pod, places.running) == (0, 1, 2)
    assert (places.running, places.busy) == (0, 0)


async def test_a_process_that_is_lost_takes_its_calls_along() -> None:
    places = packed()
    (first, _) = with_pods(places, 0, 1)
    async with AsyncExitStack() as stack:
        assert await taken(places, stack, 5) == [0, 0, 0, 0, 1]
        places.remove(first)
        assert (places.running, places.busy) == (1, 2)
        with_pods(places, 0)
        assert await taken(places, stack, 1) == [0], "its pod is back, and empty"
    assert (places.running, places.busy) == (0, 0)


async def test_the_load_says_what_the_calls_need_and_what_was_enough() -> None:
    places, clock = packed(), 0.0
    with_pods(places, 0, 1)
    needed = PodsNeeded(places, Autoscaling(calls_per_replica=4, down_seconds=60), lambda: clock)
    assert needed.now() == WorkerLoad()
    async with AsyncExitStack() as stack:
        await taken(places, stack, 8)
        late = asyncio.create_task(places.one().__aenter__())
        await asyncio.sleep(0)
        clock = 30.0
        assert needed.now() == WorkerLoad(calls=9, needed=3)
        late.cancel()
    clock = 80.0
    assert needed.now() == WorkerLoad(needed=3, enough=3)
    clock = 90.5
    assert needed.now() == WorkerLoad(enough=0)
    async with AsyncExitStack() as stack:
        async with AsyncExitStack() as others:
            await taken(places, others, 4)
            await taken(places, stack, 1)
        clock += 61
        assert needed.now() == WorkerLoad(calls=1, needed=1, enough=2), "a call runs in the second pod"


async def test_calls_for_which_the_processes_of_a_pod_have_no_room_need_other_pods() -> None:
    clock = 0.0
    scaling = Autoscaling(calls_per_replica=64, down_seconds=60)
    places = PackedPlaces[Process](lambda p: p.room, lambda p: p.gone, lambda p: p.pod, scaling, lambda: clock)
    needed = PodsNeeded(places, scaling, lambda: clock)
    for process in (Process(0, room=1) for _ in range(8)):
        places.add(process)
    async with AsyncExitStack() as stack:
        await taken(places, stack, 8)
        others = [asyncio.create_task(places.one().__aenter__()) for _ in range(56)]
        await asyncio.sleep(0)
        assert needed.now().needed == 1, "more processes of the pod may be about to come"
        clock = 30.0
        assert needed.now() == WorkerLoad(calls=64, needed=8)
        for other in others:
            other.cancel()


def test_a_peak_is_that_of_the_last_seconds_once_there_have_been_so_many() -> None:
    clock = 100.0
    peak = Peak(10, lambda: clock)
    found = []
    for at, value in ((100, 4), (105, 6), (109, 2), (110, 1), (115, 3), (116, 1), (121, 0), (126, 0), (127, 5)):
        clock = float(at)
        found.append((peak.of(value), peak.is_whole))
    largest = [4, 6, 6, 6, 6, 3, 3, 1, 5]
    assert found == list(zip(largest, [False] * 3 + [True] * 6, strict=True))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("demo-worker-0", 0), ("demo-worker-17", 17), ("p", MOST_PODS), ("a-99999999999", MOST_PODS), ("", MOST_PODS)],
)
def test_the_ordinal_of_a_pod_is_the_end_of_its_name(name: str, expected: int) -> None:
    assert ordinal(name) == expected
