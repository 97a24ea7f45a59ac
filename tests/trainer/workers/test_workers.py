"""Which process in a pod gets the next trajectory, and how others wait for one."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rljob_api.spec.processes import Autoscaling, Workers
from rljob_trainer.agents.python_file import AT_ONCE, AgentPods, AgentProcess
from rljob_trainer.machine import loopback
from rljob_trainer.workers.process import WorkerLost, WorkerTaken
from rljob_trainer.workers.remote import framed
from rljob_trainer.workers.workers import NotLoaded
from trainer.pod.pods import SECONDS, until

HELLO = {"takes": [], "concurrent": True, "tools": []}


@asynccontextmanager
async def joined(
    count: int, hello: dict[str, object] = HELLO, replicas: int = 1, pods: AgentPods | None = None
) -> AsyncIterator[tuple[AgentPods, list[asyncio.StreamWriter]]]:
    """So many processes that have said this, and their ends of the connections. `pods`: those that they join."""
    found, writers = pods or AgentPods(AgentProcess, 5.0, Workers(replicas=replicas)), list[asyncio.StreamWriter]()
    names = iter([f"p{i}" for i in range(count)])

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await found.welcome(next(names), reader, writer)
        writer.close()

    server = await asyncio.start_server(accept, loopback(), 0)
    for _ in range(count):
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        writer.write(framed(json.dumps(hello).encode()))
        writers.append(writer)
    await until(lambda: len(found._places) == count or hello != HELLO)
    yield found, writers
    for writer in writers:
        writer.close()
    await found.stop()
    await until(lambda: not found.ready)
    server.close()


async def test_trajectories_go_to_the_process_with_the_fewest() -> None:
    async with joined(3) as (pods, _):
        taken = [pods.one() for _ in range(7)]
        chosen = [await one.__aenter__() for one in taken]
        assert sorted(chosen.count(process) for process in set(chosen)) == [2, 2, 3]
        for one in taken:
            await one.__aexit__(None, None, None)
        assert set(pods._places._taken.values()) == {0}


async def test_those_who_wait_are_served_in_their_order_and_one_that_gives_up_keeps_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rljob_trainer.agents.python_file.AT_ONCE", 1)
    served = list[str]()

    async def take(pods: AgentPods, name: str, until_then: asyncio.Event) -> None:
        async with pods.one():
            served.append(name)
            await until_then.wait()

    async with joined(1) as (pods, _):
        end = asyncio.Event()
        a, b, c, d = (asyncio.create_task(take(pods, name, end)) for name in "abcd")
        await until(lambda: served == ["a"])
        b.cancel()
        a.cancel()
        await until(lambda: served == ["a", "c"])
        c.cancel()
        await asyncio.wait([c])
        d.cancel()  # it has just been given a place, and has not run since
        await asyncio.wait([d])
        assert set(pods._places._taken.values()) == {0}
        end.set()
        await asyncio.wait_for(take(pods, "e", end), SECONDS)


async def test_a_process_that_is_gone_gets_nothing_and_one_that_joins_serves_who_waits() -> None:
    async with joined(2) as (pods, ends):
        ends[0].close()
        await until(lambda: len(pods._places) == 1)
        (left,) = pods._places
        for _ in range(3):
            async with pods.one() as process:
                assert process is left
        ends[1].close()
        await until(lambda: not pods.ready)
        waiting: asyncio.Task[AgentProcess] = asyncio.create_task(pods.one().__aenter__())
        async with joined(0):
            pass
        assert not waiting.done()
        waiting.cancel()


async def test_who_waits_hears_that_the_first_process_could_not_load_the_agent() -> None:
    async with joined(1, {"error": "no module named nowhere"}) as (pods, _):
        with pytest.raises(NotLoaded, match="nowhere"):
            async with pods.one():
                pass
        with pytest.raises(NotLoaded, match="nowhere"):
            await pods.start()


async def test_one_pod_that_cannot_load_the_agent_decides_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be on a node whose volume is missing, and fails before others have imported what they need."""
    pods = AgentPods(AgentProcess, 5.0, Workers(replicas=3))
    for _ in range(3):
        pods._refuse("bad", WorkerLost("no such file"))
    waiting = asyncio.create_task(pods.start())
    await asyncio.sleep(0)
    assert not waiting.done(), "the same pod, again and again"
    pods._refuse("worse", WorkerLost("no module named nowhere"))
    with pytest.raises(NotLoaded, match="no such file"):
        await asyncio.wait_for(waiting, SECONDS)


@pytest.mark.parametrize(
    ("given", "pods_that_refuse", "fails"),
    [
        (Workers(replicas=1), 1, True),
        (Workers(replicas=2), 1, False),
        (Workers(replicas=16), 8, False),
        (Workers(replicas=16), 9, True),
        (Workers(replicas=16, autoscaling=Autoscaling(calls_per_replica=8)), 1, True),
        (Workers(replicas=16, autoscaling=Autoscaling(calls_per_replica=8, min_replicas=3)), 1, False),
        (Workers(replicas=16, autoscaling=Autoscaling(calls_per_replica=8, min_replicas=3)), 2, True),
    ],
)
async def test_what_all_pods_that_there_are_cannot_load_fails_the_job_at_once(
    given: Workers, pods_that_refuse: int, fails: bool
) -> None:
    """Where their number follows their calls, no other would ever come: nothing is called before one has loaded it."""
    pods = AgentPods(AgentProcess, 5.0, given)
    for i in range(pods_that_refuse):
        pods._refuse(f"pod-{i}", WorkerLost(f"no such file on {i}"))
    waiting = asyncio.create_task(pods.start())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert waiting.done() is fails
    if fails:
        with pytest.raises(NotLoaded, match="no such file on 0"):
            await waiting
    waiting.cancel()


async def test_a_minority_that_cannot_load_the_agent_is_named_and_the_others_get_the_calls(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with joined(0, replicas=5) as (pods, _):
        for _ in range(3):
            pods._refuse("old-image", WorkerLost("no module named nowhere"))
        pods._refuse("bad-mount", WorkerLost("no such file"))
    assert not pods._loaded.done()
    async with joined(1, replicas=5) as (pods, _):
        for name in ("late", "later", "latest"):
            pods._refuse(name, WorkerLost("no such file"))
        async with pods.one() as process:
            assert process is await pods.start(), "one that has loaded it decides, also against most"
    assert caplog.text.count("'old-image' cannot load what it should run: no module named nowhere") == 1
    assert caplog.text.count("'bad-mount' cannot load what it should run: no such file") == 1


async def test_a_minority_that_comes_first_waits_for_those_that_load_slowly() -> None:
    pods = AgentPods(AgentProcess, 5.0, Workers(replicas=5))
    waiting = asyncio.create_task(pods.start())
    for name in ("old-image", "bad-mount"):
        pods._refuse(name, WorkerLost(f"{name}: no such file"))
    async with joined(1, pods=pods):
        assert (await asyncio.wait_for(waiting, SECONDS)).hello["tools"] == []


async def test_the_job_fails_with_what_most_pods_say_and_says_how_many() -> None:
    pods = AgentPods(AgentProcess, 5.0, Workers(replicas=5))
    for name, said in (("a", "no such file"), ("b", "SyntaxError"), ("c", "SyntaxError")):
        pods._refuse(name, WorkerLost(said))
    with pytest.raises(NotLoaded, match=r"^SyntaxError \(so say 2 of 3 pods that cannot, of 5\)$"):
        await pods.start()


async def test_who_wants_to_be_alone_gets_a_process_once_the_others_in_it_have_ended() -> None:
    async with joined(2) as (pods, _):
        first, second = pods.one(), pods.one()
        chosen = [await one.__aenter__() for one in (first, second)]
        alone = asyncio.create_task(pods.one(alone=True).__aenter__())
        await until(lambda: sorted(pods._places._taken.values()) == [1, AT_ONCE + 1])
        other = next(process for process in chosen if pods._places._taken[process] == 1)
        async with pods.one() as process:
            assert process is other, "nothing joins it"
        assert not alone.done()
        await (second if other is chosen[0] else first).__aexit__(None, None, None)
        assert await alone is not other
        async with pods.one() as process:
            assert process is other
        await (first if other is chosen[0] else second).__aexit__(None, None, None)


async def test_who_waits_to_be_alone_in_a_process_that_ends_does_not_wait_for_ever() -> None:
    async with joined(1) as (pods, ends), pods.one():
        alone = pods.one(alone=True)
        waiting = asyncio.create_task(alone.__aenter__())
        await until(lambda: set(pods._places._taken.values()) == {AT_ONCE + 1})
        ends[0].close()
        assert (await asyncio.wait_for(waiting, SECONDS)).ended
        await alone.__aexit__(None, None, None)


async def test_whoever_shares_a_process_that_another_holds_is_not_to_blame() -> None:
    async with joined(1) as (pods, _), pods.one() as process:
        call = asyncio.create_task(process.call({}))
        with pytest.raises(WorkerLost, match="took longer"):
            async with pods.one():
                raise WorkerLost("took longer", "timeout")
        with pytest.raises(WorkerTaken):
            await call


@pytest.mark.parametrize("strange", [{"error": "no module named nowhere"}, {"takes": []}])
async def test_who_waits_hears_of_a_process_that_does_not_say_what_it_has_loaded(strange: dict[str, object]) -> None:
    async with joined(1, strange) as (pods, _):
        with pytest.raises(NotLoaded, match=r"nowhere|in place of what it has loaded"):
            await asyncio.wait_for(pods.start(), SECONDS)
