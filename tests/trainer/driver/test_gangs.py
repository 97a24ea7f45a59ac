"""Roles on ranks of their own, as the driver meets them: over a real socket, with a client in the place of their rank 0."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from api.specs import make_spec
from rljob_trainer.data.order import Cursor
from rljob_trainer.driver import server
from rljob_trainer.driver.buffer.measured import measured
from rljob_trainer.driver.buffer.sources import Ready
from rljob_trainer.driver.gangs import Critic, Gangs, RoleLost
from rljob_trainer.driver.pod_listener import HELLO_SECONDS, PodListener
from rljob_trainer.driver.reporter import Alarms, Reporter
from rljob_trainer.failure import classify
from rljob_trainer.machine import free_port
from rljob_trainer.rank.driver_client import DriverLost, RoleClient
from rljob_trainer.wire import arrays
from rljob_trainer.wire.batch import ROWS, SCORES, Batch
from rljob_trainer.wire.channel import encode
from rljob_trainer.wire.launcher_files import ProgressFile
from rljob_trainer.wire.trajectory import Trajectory

SECONDS = 120
"""Longer than anything here takes."""


def batch() -> Batch:
    """Responses of 1, 2 and 3 tokens."""
    fields = {"finish_reason": "stop", "reward": 1.0, "data_source": "s", "prompt_index": 0, "group": 0}
    made = [
        Trajectory.of_response([7, 8], list(range(n)), [-1.0] * n, policy_step=0, sample=n, **fields) for n in (1, 2, 3)
    ]
    return Batch.of(1, made, {"reward/mean": 1.0})


@asynccontextmanager
async def listening(*roles: str, seconds: float = SECONDS) -> AsyncIterator[tuple[Gangs, asyncio.Task[None], int]]:
    listener, port = PodListener(attempt=2, token="secret"), free_port()
    gangs = Gangs(roles, listener, seconds)
    await listener.listen("127.0.0.1", port)
    running = asyncio.create_task(gangs.run(lambda count: None))
    try:
        yield gangs, running, port
    finally:
        running.cancel()
        await listener.close()


async def ask(method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    return await asyncio.wait_for(asyncio.to_thread(method, *arguments, **named), SECONDS)


async def connect(port: int, role: str, token: str = "secret", attempt: int = 2) -> RoleClient:
    return await ask(RoleClient.connect, ("127.0.0.1", port), role, attempt, token, SECONDS)


async def asked(client: RoleClient) -> dict[str, Any]:
    while not (found := await ask(client.next)):
        pass
    return found


async def test_what_roles_say_becomes_a_part_of_the_batch():
    async with listening("reference", "reward0") as (gangs, _, port):
        reference, reward = await connect(port, "reference"), await connect(port, "reward0")
        measuring = asyncio.create_task(measured(batch(), gangs.measuring))
        for client in (reference, reward):
            found = await asked(client)
            assert (found["ask"], found["batch"]["step"]) == ("measure", 1)
            columns = await ask(client.read, found["batch"]["columns"])
            assert columns["length"].tolist() == [3, 4, 5]
            counts = await ask(client.part, [0, 2])
            block = np.empty(arrays.nbytes(counts), np.uint8)
            await ask(client.read_into, arrays.raw(block))
            assert arrays.cut(block, counts)["tokens"].tolist() == [7, 8, 0, 7, 8, 0, 1, 2]
        order = {ROWS: np.array([2, 0, 1], np.int32), "reference_log_probs": np.array([3, 4, 5, 0, 1, 2], np.float32)}
        await ask(reference.done, arrays.Stream.of(order))
        await ask(reward.done, arrays.Stream.of({SCORES: np.array([0.0, 0.5, -1.0])}))
        whole = await asyncio.wait_for(measuring, SECONDS)
    assert whole.columns.reward.tolist() == [1.0, 1.5, 0.0]
    assert {row: values.tolist() for row, values in whole.measured["reference_log_probs"].items()} == {
        0: [0.0],
        1: [1.0, 2.0],
        2: [3.0, 4.0, 5.0],
    }
    assert whole.metrics["reward/mean"] == 1.0 and whole.metrics["time/measure"] > 0


async def test_a_role_is_asked_for_one_thing_at_a_time_and_one_that_nobody_waits_for_is_dropped():
    async with listening("critic") as (gangs, _, port):
        client, gang = await connect(port, "critic"), gangs.critic
        assert gang
        given_up = asyncio.create_task(gang.ask("first"))
        following = asyncio.create_task(gang.ask("second"))
        assert (await asked(client))["ask"] == "first"
        given_up.cancel()
        await ask(client.done, metrics={"critic/loss": 1.0})
        assert (await asked(client))["ask"] == "second"
        await ask(client.done, metrics={"critic/loss": 2.0})
        assert (await asyncio.wait_for(following, SECONDS))["metrics"] == {"critic/loss": 2.0}


async def test_the_phase_is_loading_and_names_the_roles_until_each_has_loaded(tmp_path: Path):
    account = ProgressFile(tmp_path / "progress.json")

    def shown() -> tuple[str, list[str]]:
        return account.progress.phase, account.progress.loading

    async with listening("critic", "reference") as (gangs, _, port):
        reporter = Reporter(account, lambda: True, gangs.loading, str, Alarms(make_spec()))
        gangs.open(10, reporter.show_phase)
        reporter.work("generating")
        assert shown() == ("loading", []), "the trainer loads itself"
        reporter.enter("")
        assert shown() == ("loading", ["critic", "reference"])
        reference, critic = await connect(port, "reference"), await connect(port, "critic")
        for client, left in ((reference, ("loading", ["critic"])), (critic, ("generating", []))):
            before = shown()
            assert (await asked(client))["ask"] == "open"
            await ask(client.done)
            assert shown() == before, "it has only begun to load"
            await ask(client.next)
            assert shown() == left


@dataclass
class Waiting:
    """One batch that waits to be trained."""

    first: Ready | None

    def take(self) -> Ready | None:
        found, self.first = self.first, None
        return found


async def test_a_critic_values_a_batch_before_it_is_handed_out_then_learns_and_writes_what_it_learnt():
    changed, buffer = asyncio.Event(), Waiting(Ready(batch(), Cursor()))
    async with listening("critic") as (gangs, _, port):
        client = await connect(port, "critic")
        assert gangs.critic
        critic = Critic(gangs.critic, changed.set)
        assert critic.take(buffer) is None and not critic.is_idle
        found = await asked(client)
        assert found["ask"] == "measure"
        await ask(client.read, found["batch"]["columns"])
        values = {ROWS: np.arange(3, dtype=np.int32), "values": np.arange(6, dtype=np.float32)}
        await ask(client.done, arrays.Stream.of(values))
        await asyncio.wait_for(changed.wait(), SECONDS)
        assert buffer.first, "a checkpoint would have it"
        valued = critic.take(buffer)
        assert buffer.first is None and valued and valued.batch.measured["values"][2].tolist() == [3.0, 4.0, 5.0]

        returns = {"returns": dict(enumerate(np.split(np.arange(6, dtype=np.float32), [1, 3])))}
        critic.learn(Batch(1, valued.batch.columns, {}, {}, returns))
        critic.save(1, "/run/global_step_1.tmp-1/megatron", alongside=True)
        found = await asked(client)
        assert (found["ask"], found["batch"]["step"], found["batch"]["trajectories"]) == ("learn", 1, False)
        await ask(client.read, found["batch"]["columns"])
        assert await ask(client.part, [0, 2]) == {"returns": 4}, "and no tokens: it has them"
        block = np.empty(4, np.float32)
        await ask(client.read_into, arrays.raw(block))
        assert block.tolist() == [0.0, 3.0, 4.0, 5.0]
        assert critic.learnt() is None
        await ask(client.done, metrics={"critic/loss": 0.5})
        assert critic.learnt() == {"critic/loss": 0.5}
        assert (await asked(client))["ask"] == "save"
        await ask(client.done)
        assert critic.saved(1) == {}, "it is being written"
        await ask(client.saved, 1, "tp1-pp1-dp1", {"critic/a": (1, "digest")})
        assert critic.saved(1)["critic"]["files"] == {"critic/a": [1, "digest"]}
        assert critic.saved(2) == {}


@pytest.mark.parametrize("stranger", [{"token": "guess"}, {"attempt": 1}, {"role": "critic"}])
async def test_who_does_not_know_the_token_or_is_of_another_attempt_is_not_answered(stranger: dict[str, Any]):
    async with listening("reference") as (_gangs, _, port):
        with pytest.raises(DriverLost):
            await connect(port, **({"role": "reference"} | stranger))
        await connect(port, "reference")
        with pytest.raises(DriverLost):
            await connect(port, "reference")  # a role has one rank 0


async def test_a_stranger_cannot_make_the_driver_allocate_and_wait_for_arrays(monkeypatch: pytest.MonkeyPatch):
    allocated: list[Any] = []
    monkeypatch.setattr(
        server, "allocated", lambda described: allocated.append(described) or arrays.allocated(described)
    )
    hello = {"call": "hello", "role": "reference", "attempt": 2, "token": "guess", "arrays": [["x", "|u1", 2**20]]}
    async with listening("reference") as (_gangs, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(encode(hello))
        await asyncio.wait_for(reader.read(), HELLO_SECONDS / 2)
        writer.close()
    assert allocated == []


@pytest.mark.parametrize("end", ["closes", "says nothing", "never connects"])
async def test_a_role_that_is_gone_ends_the_attempt_with_its_name(end: str):
    async with listening("reference", seconds=1.0 if end != "closes" else SECONDS) as (_, running, port):
        if end != "never connects":
            client = await connect(port, "reference")
        if end == "closes":
            client._reader.close()
            client._socket.close()
        with pytest.raises(BaseExceptionGroup) as raised:
            await asyncio.wait_for(running, SECONDS)
    lost = raised.value.exceptions[0]
    assert isinstance(lost, RoleLost) and "role reference" in str(lost)
    assert classify(lost).kind == "collective"


async def test_roles_leave_when_nothing_more_is_asked():
    async with listening("reference") as (gangs, running, port):
        client = await connect(port, "reference")
        finishing = asyncio.create_task(gangs.finish("drained"))
        assert await asked(client) == {"over": "drained"}
        await ask(client.end)
        await asyncio.wait_for(finishing, SECONDS)
        assert not running.done()
