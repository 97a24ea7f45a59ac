"""`try`: what it shows of agents and tools, and that every mistake in one is named with its file, line and fix."""

from pathlib import Path

import pytest

from trainer.local.rehearsal import TOOLS, Trial, agent_job


def test_an_agent_talks_to_a_scripted_policy_and_what_it_learns_from_is_marked(tmp_path: Path) -> None:
    found = agent_job(tmp_path, "return Trajectory(turn.whole, metrics={'asked': 1})").run("hm", "{answer}")
    assert (found.code, found.err) == (0, "")
    assert (
        "its answer             reward 1, asked 1, read as '5'\n      2+3=«hm<|im_end|>» and then? «5<|im_end|>»"
        in found.out
    )


LOSES = """
import os, pathlib
from rljob_trainer.agents import Trajectory

async def rollout(PARAMETERS):
    turn = BEGUN await policy.generate(prompt.tokens)
    file = pathlib.Path("DIRECTORY") / prompt.answer
    if not file.exists():
        file.touch()
        os._exit(3)
    turn = await policy.generate(turn.whole + await policy.encode(" and then? "))
    return Trajectory(turn.whole)
"""
"""Ends its process behind the first turn of each row."""


@pytest.mark.parametrize(
    ("parameters", "begun"), [("prompt, policy, row", ""), ("prompt, policy, row, history", "history.last or")]
)
def test_an_agent_whose_process_is_lost_reads_the_same_turns_again(tmp_path: Path, parameters: str, begun: str) -> None:
    job, lost = agent_job(tmp_path, ""), tmp_path / "lost"
    lost.mkdir()
    code = LOSES.replace("PARAMETERS", parameters).replace("BEGUN", begun).replace("DIRECTORY", str(lost))
    job.write("agent.py", code)
    found = job.run("hm", "{answer}")
    assert (found.code, found.err) == (0, "") and sorted(file.name for file in lost.iterdir()) == ["5", "7"]
    for answer, prompt in (("5", "2+3="), ("7", "4+3=")):
        assert f"{prompt}«hm<|im_end|>» and then? «{answer}<|im_end|>»" in found.out


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ("return turn.text", "returned str, not a Trajectory of rljob_trainer.agents or None; return a Trajectory whose tokens"),
        ("return Trajectory(prompt.tokens)", "without one answer of policy.generate behind its context"),
        ("return row['nothing']", "KeyError: 'nothing' (line 8: return row['nothing']), where row has 'data_source', 'answer', 'prompt'"),
    ],
)  # fmt: skip
def test_a_mistake_in_an_agent_is_one_message_with_file_line_and_fix(tmp_path: Path, last: str, message: str) -> None:
    found = agent_job(tmp_path, last).run()
    mistakes = [line for line in found.err.splitlines() if line.startswith("spec.rollout.agent.python.path")]
    assert found.code == 1 and len(mistakes) == 1 and message in mistakes[0]


ENCODES = """
from rljob_trainer.agents import Trajectory

async def rollout(prompt, policy, row):
    turn = await policy.generate(prompt.tokens)
    turn = await policy.generate([*prompt.tokens, *await policy.encode(turn.text)])
    return Trajectory(turn.whole)
"""
"""Continues after the text of its first turn, which lacks the end of the turn."""
KEPT = "return Trajectory(turn.whole, reward=0.5)"


def test_turns_that_an_agent_leaves_out_of_its_trajectory_are_noted(tmp_path: Path) -> None:
    left_out = "is left out of the trajectory and not learnt"
    job = agent_job(tmp_path, KEPT)
    assert left_out not in job.run("hm", "{answer}").out
    job.write("agent.py", ENCODES)
    assert left_out in job.run("hm", "{answer}").out


@pytest.mark.parametrize(("last", "is_noted"), [("return Trajectory(turn.whole)", True), (KEPT, False)])
def test_an_agent_that_gives_the_only_reward_and_gives_none_is_noted(tmp_path: Path, last: str, is_noted: bool) -> None:
    found = agent_job(tmp_path, last, rewards=[]).run("hm", "{answer}")
    assert ("spec.rewards is empty, and the agent gives no reward" in found.out) == is_noted, found.err


@pytest.mark.slow
def test_tools_are_called_once_each_and_their_results_are_shown(tmp_path: Path) -> None:
    agent = {"tools": {"path": "/data/tools.py", "functions": ["add"]}, "maxTurns": 3, "maxTokens": 400}
    data = {"chatTemplate": {"texts": True}, "maxPromptTokens": 500}
    trial = Trial(tmp_path, data=data, rollout={"agent": agent, "sampling": {"maxTokens": 200}})
    trial.write("tools.py", TOOLS)
    found = trial.run()
    assert found.code == 0, found.err
    assert "its answer             reward 1, tool_calls 1, tool_errors 0" in found.out
    assert '"add", "arguments": {"a": 1, "b": 1}' in found.out and "<tool_response>\n      2\n" in found.out
