"""A rollout server in the test's own process that takes part in a conversation, and the driver's spec with an agent."""

import asyncio
from pathlib import Path
from typing import Any

from aiohttp import web

from rljob_trainer.rank.driver_client import DriverLost
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.completions import Completion
from rljob_trainer.wire.rollout_server import unpack_tokens
from trainer.driver.bench import Bench, batch, call, publish, until
from trainer.driver.servers import Server, answer_of

TWO_TURNS = """
from rljob_trainer.agents import Trajectory

async def rollout(prompt, policy, row):
    context = list(prompt.tokens)
    while turn := await policy.generate(context):
        context = turn.whole
        if turn.text.endswith("!"):
            break
        context += await policy.encode("[" + turn.text + "]")
    return Trajectory(context)
"""
"""Repeats what the policy says, until the policy shouts."""


class Talker(Server):
    """Says the number of the turn, until in turn `last` it says "!": a turn ends with a bracket. The log-probability of a token is less its id."""

    last = 2
    script: tuple[str, ...] = ()
    """What it says in place of that, turn after turn; a turn is behind a closing bracket."""

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        body["prompt"] = unpack_tokens(body["prompt"])
        self.requests.append(body)
        await asyncio.sleep(self.delay)
        context = "".join(map(chr, body["prompt"]))
        turn = context.count("]") + context.count(")") + 1
        text = self.script[turn - 1] if self.script else "!" if turn >= self.last else f"t{turn}"
        tokens = [*map(ord, text)][: body["max_tokens"]]
        reason = "length" if len(tokens) == body["max_tokens"] else "stop"
        drawn = [Completion(tokens, [-float(t) for t in tokens], reason)] * body["n"]
        return answer_of(drawn, self.policy_step)


def with_agent(spec: dict[str, Any], tmp_path: Path, code: str, **agent: Any) -> None:
    """The driver's spec gets an agent of this code."""
    file = tmp_path / "agent.py"
    file.write_text(code)
    section = {"python": {"path": str(file)}, "maxTurns": 4, "maxTokens": 64, "timeoutSeconds": 5} | agent
    spec["rollout"] |= {"agent": section, "sampling": {"maxTokens": 8}}


async def first_step(bench: Bench, server: Server, **settings: object) -> tuple[Batch, Server]:
    """The first batch, from this server, and the server. Raises what the driver does."""
    for name, value in settings.items():
        setattr(server, name, value)
    async with server:
        bench.control(rollouts=(server.endpoint,))
        rank = await bench.connect()
        await call(rank.start, 0, None, [], "")
        await until(rank, "newcomers")
        await publish(rank, 0, [server])
        try:
            return await batch(rank), server
        except DriverLost:
            await bench.driver  # which raises why
            raise
        finally:
            bench.driver.cancel()
