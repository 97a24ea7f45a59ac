"""Agents in real worker processes that continue trajectories whose process was killed, asked by the whole driver."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rljob_api.spec.agent import AgentSpec
from rljob_trainer.agents.python_file import AgentProcess, WorkerAgent
from rljob_trainer.agents.session import Session
from rljob_trainer.driver import main
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.completions import Completion
from rljob_trainer.wire.rollout_server import unpack_tokens
from trainer.agents.in_pods import bench_of_agents, in_pods
from trainer.agents.losses import session_of
from trainer.agents.talker import Talker, first_step, with_agent
from trainer.driver.bench import Bench, Characters
from trainer.driver.servers import answer_of
from trainer.workers.pods import Pod

TURNS = 4
CONTINUES = """
import os, signal
from rljob_trainer.agents import Trajectory

def lose(turn):
    if turn == KILLED:
        try:
            os.mkdir("FIRST")
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

async def rollout(prompt, policy, row, history):
    turns = list(history.turns)
    while len(turns) < 4:
        context = turns[-1].whole + await policy.encode(f"[{len(turns)}]") if turns else prompt.tokens
        turns.append(await policy.generate(context))
        lose(len(turns))
    return Trajectory(turns[-1].whole, rewards=[len(turn.tokens) for turn in turns])
"""
"""The first trajectory that reaches turn KILLED ends its process."""
FORGETS = CONTINUES.replace(", history)", ")").replace("list(history.turns)", "[]")
"""The same, of a function that does not say that it continues."""


class Seeded(Talker):
    """What it says depends on the seed of the turn."""

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        body["prompt"] = unpack_tokens(body["prompt"])
        self.requests.append(body)
        tokens = [*map(ord, str(body["seed"] % 99991))]
        drawn = [Completion(tokens, [-float(t) for t in tokens], "stop")] * body["n"]
        return answer_of(drawn, self.policy_step)


def trained_on(batch: Batch) -> list[Any]:
    return [
        (
            s.group,
            s.sample,
            s.tokens.tolist(),
            s.response_mask.tolist(),
            s.response_log_probs.tolist(),
            s.response_turn_rewards.tolist(),
            s.reward,
        )
        for s in batch.samples
    ]


async def made(tmp_path: Path, killed: int, code: str = CONTINUES) -> tuple[Batch, list[int]]:
    """The batch, and the seeds of all turns that were asked for."""
    directory = tmp_path / f"killed-{killed}"
    directory.mkdir()
    bench = Bench(directory)
    bench.spec["rewards"] = []
    with_agent(bench.spec, directory, code.replace("KILLED", str(killed)).replace("FIRST", str(directory / "first")))
    batch, server = await first_step(bench, Seeded("demo-rollout-0"))
    assert batch.metrics["agent/failed"] == 0.0 and (directory / "first").exists() == (killed > 0)
    return batch, [body["seed"] for body in server.requests]


@pytest.fixture(autouse=True)
def characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "load_tokenizer", lambda spec: Characters())


async def test_a_process_that_is_killed_in_any_turn_changes_no_token_and_costs_no_turn_that_was_answered(
    tmp_path: Path,
) -> None:
    whole, seeds = await made(tmp_path, 0)
    assert len(seeds) == len(set(seeds)) == 12 * TURNS
    assert whole.metrics["agent/resumed"] == whole.metrics["agent/run_again"] == 0.0
    for killed in range(1, TURNS + 1):
        batch, asked = await made(tmp_path, killed)
        assert trained_on(batch) == trained_on(whole)
        lost = (batch.metrics["agent/resumed"] + batch.metrics["agent/run_again"]) * 12
        assert lost >= 1 and batch.metrics["agent/resumed"] * 12 >= 1
        assert set(asked) == set(seeds) and len(asked) < len(seeds) + lost, "one turn of each was under way at most"


@pytest.mark.parametrize(("killed", "gone", "resumed"), [(0, 0, 0), (2, 1, 1)])
async def test_a_process_that_is_gone_before_the_function_is_called_counts_as_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: int, gone: int, resumed: int
) -> None:
    """`gone`: the try in which it is, the second after the one whose process is killed."""
    file, tries, rollout = tmp_path / "agent.py", count(), AgentProcess.rollout
    file.write_text(CONTINUES.replace("KILLED", str(killed)).replace("FIRST", str(tmp_path / "first")))

    async def stopped_once(self: AgentProcess, values: dict[str, Any], session: Session) -> dict[str, Any]:
        if next(tries) == gone:
            await self.stop()
        return await rollout(self, values, session)

    monkeypatch.setattr(AgentProcess, "rollout", stopped_once)
    section = {"python": {"path": str(file)}, "maxTurns": TURNS, "maxTokens": 4096}
    agent = WorkerAgent(AgentSpec.model_validate(section))
    await agent.start()
    try:
        made = await agent.rollout(session_of(4096))
    finally:
        await agent.stop()
    assert (made.turns, made.resumed, made.run_again) == (TURNS, resumed, 0)


async def test_a_function_that_does_not_say_that_it_continues_is_run_again(tmp_path: Path) -> None:
    whole, seeds = await made(tmp_path, 0, FORGETS)
    batch, asked = await made(tmp_path, 3, FORGETS)
    assert trained_on(batch) == trained_on(whole)
    lost = batch.metrics["agent/run_again"] * 12
    assert batch.metrics["agent/resumed"] == 0.0 and lost >= 1 and len(asked) >= len(seeds) + 3


@pytest.mark.parametrize(
    "parameters", ["prompt, policy, history", "prompt, policy, row, history, /", "prompt, history"]
)
async def test_a_function_that_cannot_be_told_its_history_is_refused_before_anything_is_generated(
    tmp_path: Path, parameters: str
) -> None:
    bench = Bench(tmp_path)
    with_agent(bench.spec, tmp_path, f"async def rollout({parameters}): ...")
    bench.control()
    await bench.connect()
    with pytest.raises(
        ConfigurationError, match=r"cannot be called as async def rollout\(prompt, policy, row, history\)"
    ):
        await bench.driver


async def test_a_pod_that_is_lost_hands_its_trajectories_on_with_their_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, seeds = await made(tmp_path, 0)
    bench = bench_of_agents(tmp_path, monkeypatch)
    bench.spec["train"]["promptsPerStep"] = 4
    in_pods(bench, tmp_path, CONTINUES.replace("KILLED", "3").replace("FIRST", str(tmp_path / "first")))
    pods = [Pod(bench, f"demo-worker-{i}") for i in range(2)]
    batch, server = await first_step(bench, Seeded("demo-rollout-0"))
    assert trained_on(batch) == trained_on(whole) and batch.metrics["agent/resumed"] > 0.0
    assert {body["seed"] for body in server.requests} == set(seeds)
    for pod in pods:
        await pod.end()
