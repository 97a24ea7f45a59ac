"""Which server a request goes to, and who gets a place that has become free."""

import asyncio
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any

from rljob_trainer.driver.slots import AT_ONCE, Home, LoadedServer, Slots


async def settled() -> None:
    """Every task that can run has run."""
    for _ in range(3):
        await asyncio.sleep(0)


def begun(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.create_task(work)


async def test_a_free_place_wakes_the_request_that_waits_longest_and_nobody_else() -> None:
    slots, server = Slots[LoadedServer](2), LoadedServer()
    slots.add(server)
    need = slots.need(1, 1)
    held = [await slots.reserve(need, Home()) for _ in range(2)]
    assert held == [server] * 2
    waiting = [begun(slots.reserve(need, Home())) for _ in range(1000)]
    await settled()
    for number in range(3):
        slots.release(server, need)
        await settled()
        assert [task.done() for task in waiting] == [True] * (number + 1) + [False] * (999 - number)
    slots.interrupt()
    assert [await task for task in waiting] == [server] * 3 + [None] * 997


async def test_a_large_request_is_not_overtaken_for_ever() -> None:
    slots, server = Slots[LoadedServer](8), LoadedServer()
    slots.add(server)
    one, eight = slots.need(1, 1), slots.need(1, 8)
    await slots.reserve(one, Home())
    large, small = begun(slots.reserve(eight, Home())), begun(slots.reserve(one, Home()))
    await settled()
    assert not small.done(), "it came later"
    slots.release(server, one)
    assert await large is server
    slots.release(server, eight)
    assert await small is server


async def test_the_server_whose_cache_is_filled_least_gets_a_request() -> None:
    slots, small, large = Slots[LoadedServer](256), LoadedServer(cache_tokens=1000), LoadedServer(cache_tokens=10_000)
    for server in (small, large):
        slots.add(server)
    found = [await slots.reserve(slots.need(400, 1), Home()) for _ in range(12)]
    assert found.count(small) == 2 and found.count(large) == 10, "by the part that is filled, not by requests"
    assert small.tokens <= small.cache_tokens


async def test_no_server_gets_more_tokens_than_its_cache_holds_but_an_idle_one_takes_any_request() -> None:
    slots, server = Slots[LoadedServer](256), LoadedServer(cache_tokens=1000)
    slots.add(server)
    need = slots.need(600, 1)
    assert await slots.reserve(need, Home()) is server
    second = begun(slots.reserve(need, Home()))
    await settled()
    assert not second.done()
    slots.release(server, need)
    assert await second is server
    slots.release(server, need)
    assert await slots.reserve(slots.need(5000, 1), Home()) is server


async def test_a_response_counts_with_half_the_mean_length_of_those_before() -> None:
    slots = Slots[LoadedServer](256)
    assert slots.need(100, 4).tokens == 100
    for length in (10, 30):
        slots.answered(length)
    assert slots.need(100, 4).tokens == 100 + 4 * 20 / 2


async def test_the_turns_of_a_trajectory_stay_where_its_cache_is_until_that_server_is_full_or_gone() -> None:
    slots, first, second = Slots[LoadedServer](2), LoadedServer(), LoadedServer()
    slots.add(first)
    home, need = Home(), slots.need(10, 1)
    assert await slots.reserve(need, home) is first
    slots.add(second)
    slots.release(first, need)
    await slots.reserve(slots.need(1, 1), home)
    assert home.server is first, "the other one has less to do"
    await slots.reserve(need, Home(first))
    assert await slots.reserve(need, home) is second, "the first one is full"
    slots.release(second, need)
    slots.remove(second)
    slots.release(first, need)
    assert await slots.reserve(need, home) is first


async def test_a_place_that_is_given_to_a_cancelled_request_goes_to_the_next_one() -> None:
    slots, server = Slots[LoadedServer](1), LoadedServer()
    slots.add(server)
    need = slots.need(1, 1)
    await slots.reserve(need, Home())
    left, next_one = begun(slots.reserve(need, Home())), begun(slots.reserve(need, Home()))
    await settled()
    slots.release(server, need)
    left.cancel()
    assert await next_one is server
    assert left.cancelled() and server.samples == 1


async def test_a_new_server_gets_requests_that_wait() -> None:
    slots, server = Slots[LoadedServer](4), LoadedServer()
    waiting = [begun(slots.reserve(slots.need(1, 1), Home())) for _ in range(6)]
    await settled()
    assert not any(task.done() for task in waiting)
    slots.add(server)
    await settled()
    assert [task.done() for task in waiting] == [True] * 4 + [False] * 2


async def test_nothing_is_reserved_between_interrupt_and_resume() -> None:
    slots = Slots[LoadedServer](4)
    slots.add(LoadedServer())
    slots.interrupt()
    assert await slots.reserve(slots.need(1, 1), Home()) is None
    slots.resume()
    assert await slots.reserve(slots.need(1, 1), Home()) is not None


async def test_many_free_places_are_given_over_several_turns_of_the_loop() -> None:
    slots = Slots[LoadedServer](1000)
    waiting = [begun(slots.reserve(slots.need(1, 1), Home())) for _ in range(300)]
    await settled()
    slots.add(LoadedServer())
    done = []
    while not all(task.done() for task in waiting):
        done.append(sum(task.done() for task in waiting))
        await asyncio.sleep(0)
    assert max(b - a for a, b in pairwise([*done, 300])) <= AT_ONCE
