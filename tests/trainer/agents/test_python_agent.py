"""Agents in real worker processes, asked by the whole driver: what becomes of their trajectories, and of those that fail."""

import json
import os
from pathlib import Path

import pytest

from rljob_api import names
from rljob_trainer.agents import python_file
from rljob_trainer.agents.api import Policy
from rljob_trainer.driver import main
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.trajectory import Trajectory
from trainer.agents.talker import TWO_TURNS, Talker, first_step, with_agent
from trainer.driver.bench import Bench, Characters
from trainer.driver.servers import Server

ROOT = Path(__file__).parents[3]


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(main, "load_tokenizer", lambda spec: Characters())
    found = Bench(tmp_path)
    found.spec["rewards"] = []
    return found


async def step(bench: Bench, **settings: object) -> tuple[Batch, Server]:
    return await first_step(bench, Talker("demo-rollout-0"), **settings)


def said(sample: Trajectory) -> list[tuple[str, str]]:
    return [(s.source, "".join(map(chr, s.tokens))) for s in sample.segments]


async def test_a_trajectory_is_the_ids_that_were_generated_with_what_others_said_masked(bench, tmp_path):
    bench.spec["rewards"] = [{"python": {"path": str(tmp_path / "reward.py")}}]
    (tmp_path / "reward.py").write_text("def reward(response, tokens): return len(tokens) * (response == '!')\n")
    with_agent(bench.spec, tmp_path, TWO_TURNS)
    found, server = await step(bench)
    assert [(s.group, s.sample) for s in found.samples] == [(g, i) for g in range(4) for i in range(3)]
    for sample in found.samples:
        first, *rest = said(sample)
        assert first[0] == "prompt" and first[1].endswith("=")
        assert rest == [("policy", "t1"), ("environment", "[t1]"), ("policy", "!")]
        assert sample.response_mask.tolist() == [True] * 2 + [False] * 4 + [True]
        written = sample.response_tokens[sample.response_mask]
        assert sample.response_log_probs[sample.response_mask].tolist() == [-float(t) for t in written]
        assert sample.reward == 7.0, "a reward sees the last turn's text and all the tokens"
    assert (found.metrics["agent/turns"], found.metrics["agent/environment_tokens"]) == (2.0, 4.0)
    assert (found.metrics["agent/failed"], found.metrics["sampling/continued"]) == (0.0, 0.0)
    seeds = [body["seed"] for body in server.requests]
    assert len(set(seeds)) == len(seeds) == 24, "every turn of every sample has random numbers of its own"


async def test_an_agent_gives_rewards_and_metrics_of_its_own(bench, tmp_path):
    code = TWO_TURNS.replace(
        "Trajectory(context)", "Trajectory(context, reward=float(prompt.answer), metrics={'x': 2})"
    )
    with_agent(bench.spec, tmp_path, code)
    found, _ = await step(bench)
    assert len({s.reward for s in found.samples}) > 1
    assert found.metrics["reward_metrics/x"] == 2.0


async def test_the_reward_of_each_turn_is_at_its_end_and_in_the_sum(bench, tmp_path):
    code = TWO_TURNS.replace("Trajectory(context)", "Trajectory(context, reward=1.0, rewards=[0.5, -0.25])")
    with_agent(bench.spec, tmp_path, code)
    found, _ = await step(bench)
    assert {s.reward for s in found.samples} == {1.25}
    assert {tuple(s.response_turn_rewards) for s in found.samples} == {(0, 0.5, 0, 0, 0, 0, -0.25)}


async def test_rewards_that_are_not_one_for_each_turn_are_refused(bench, tmp_path):
    with_agent(bench.spec, tmp_path, TWO_TURNS.replace("Trajectory(context)", "Trajectory(context, rewards=[1.0])"))
    with pytest.raises(ConfigurationError, match="there are 1 rewards for 2 turns of the policy"):
        await step(bench)


FORGETS = """
from rljob_trainer.agents import Trajectory

async def rollout(prompt, policy, row):
    first = await policy.generate(prompt.tokens)
    kept = await policy.generate(first.whole + await policy.encode("[kept]"))
    forgot = await policy.generate(prompt.tokens + await policy.encode("[forgot]"))
    return Trajectory(forgot.whole, reward=float(row["answer"]), branches=[kept.whole])
"""
"""Goes back to the prompt behind its second turn."""


async def test_branches_of_a_trajectory_are_rows_that_share_its_reward(bench, tmp_path):
    with_agent(bench.spec, tmp_path, FORGETS)
    found, _ = await step(bench)
    columns = found.columns
    assert columns.branch.tolist() == [0, 1] * 12 and columns.trajectory.tolist() == [i // 2 for i in range(24)]
    for first, other in zip(found.samples[::2], found.samples[1::2], strict=True):
        assert (first.group, first.sample, first.reward) == (other.group, other.sample, other.reward)
        assert said(first)[0][1].endswith("=[forgot]") and [author for author, _ in said(first)] == ["prompt", "policy"]
        assert said(other)[1:] == [("policy", "t1"), ("environment", "[kept]"), ("policy", "!")]
    assert (found.metrics["agent/branches"], found.metrics["agent/turns"]) == (2.0, 3.0)
    assert found.metrics["agent/tokens_left_out"] == 0.0
    assert found.metrics["reward/mean"] == columns.reward[::2].mean(), "each trajectory once"
    lines = [json.loads(line) for line in names.samples_file(bench.root, 1).read_text().splitlines()]
    assert [line.get("branch", 0) for line in lines[:2]] == [0, 1]


async def test_the_function_gets_the_row_of_the_file_and_its_environment(bench, tmp_path):
    code = TWO_TURNS.replace(
        "    context =", "    import os\n    assert row['prompt'] == prompt.text, row\n    context =", 1
    )
    code = code.replace("Trajectory(context)", "Trajectory(context, reward=float(os.environ['WORTH']))")
    with_agent(bench.spec, tmp_path, code, env={"WORTH": "0.25"})
    found, _ = await step(bench)
    assert {s.reward for s in found.samples} == {0.25}


async def test_libraries_of_its_environment_come_before_those_of_the_pod_which_stay(bench, tmp_path, monkeypatch):
    """An image may have this package in its PYTHONPATH alone."""
    for directory, word in (("pods", "pod"), ("own", "own")):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "both.py").write_text(f"WORD = {word!r}\n")
    (tmp_path / "pods" / "pods_alone.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "pods"), os.environ.get("PYTHONPATH", "")]))
    code = "import both, pods_alone\n" + TWO_TURNS.replace(
        "(context)\n", "(context, reward=float(both.WORD == 'own'))\n"
    )
    with_agent(bench.spec, tmp_path, code, env={"PYTHONPATH": str(tmp_path / "own")})
    found, _ = await step(bench)
    assert {s.reward for s in found.samples} == {1.0}


@pytest.mark.parametrize(
    ("limits", "turns", "length"),
    [({"maxTurns": 3}, 3, 2 + 4 + 2 + 4 + 2), ({"maxTokens": 14}, 3, 14), ({"maxTokens": 13}, 3, 13), ({"maxTokens": 12}, 2, 8)],
)  # fmt: skip
async def test_no_trajectory_has_more_turns_or_tokens_than_it_may(bench, tmp_path, limits, turns, length):
    with_agent(bench.spec, tmp_path, TWO_TURNS, **limits)
    found, _ = await step(bench, last=99)
    assert {s.response_length for s in found.samples} == {length}
    assert {s.finish_reason for s in found.samples} == {"length"}
    assert found.metrics["agent/turns"] == turns


FAILS = """
import asyncio, os, time
from rljob_trainer.agents import Trajectory

async def rollout(prompt, policy, row):
    turn = await policy.generate(prompt.tokens)
    if prompt.answer == "3":
        HOW
    return Trajectory(turn.whole)
"""


@pytest.mark.parametrize(
    ("how", "kind", "reason"),
    [
        ("raise ValueError('x')", "raised", "rollout() in agent.py: ValueError: x (line 8: raise ValueError('x'))"),
        ("await asyncio.sleep(60)", "timeout", "took longer than 5 s of its own"),
        ("return None", "none", "the function returned None"),
        ("return [1, 2]", "value", "returned list, not a Trajectory"),
        ("return Trajectory(prompt.tokens)", "value", "without one answer of policy.generate"),
        ("return Trajectory([-1])", "value", "-1 is no token id"),
        ("return Trajectory(turn.whole, reward=float('nan'))", "value", "not a finite number"),
        ("await policy.generate([])", "raised", "PolicyError: nothing to continue"),
        ("await policy.generate([1], max_tokens=1.5)", "raised", "TypeError: max_tokens: 1.5 is no whole number"),
        ("await policy.generate([1], stop=[3])", "raised", "TypeError: stop: 3 is no text"),
    ],
)
async def test_a_sample_whose_agent_fails_leaves_the_batch_and_is_counted(bench, tmp_path, caplog, how, kind, reason):
    bench.spec["train"]["promptsPerStep"] = 12
    with_agent(bench.spec, tmp_path, FAILS.replace("HOW", how), timeoutSeconds=5)
    found, _ = await step(bench)
    assert len(found.samples) == 30, "two of the twelve prompts have the answer 3"
    assert {name: value for name, value in found.metrics.items() if name.startswith("agent/failed") and value} == {
        "agent/failed": 6.0,
        f"agent/failed_{kind}": 6.0,
    }
    assert found.metrics["reward/failed"] == 0.0
    assert reason in caplog.text


BREAKS = """
import os, time
from rljob_trainer.agents import Trajectory

async def rollout(prompt, policy, row):
    turn = await policy.generate(prompt.tokens)
    try:
        os.mkdir("FIRST")
    except FileExistsError:
        return Trajectory(turn.whole)
    HOW
"""
"""The first trajectory ends its process, or holds it."""


@pytest.mark.parametrize(("how", "least", "most"), [("os._exit(3)", 0, 0), ("time.sleep(60)", 1, 3)])
async def test_trajectories_of_a_process_that_ended_begin_anew_in_another(
    bench, tmp_path, monkeypatch, how, least, most
):
    """In one that is held, nobody knows by whom: the time of all of them is over. The others work on."""
    monkeypatch.setattr(python_file, "AT_ONCE", 3)
    bench.spec["train"]["promptsPerStep"] = 12
    with_agent(bench.spec, tmp_path, BREAKS.replace("FIRST", str(tmp_path / "first")).replace("HOW", how))
    found, _ = await step(bench)
    failed = found.metrics["agent/failed"]
    assert least <= failed == found.metrics["agent/failed_timeout"] <= most
    assert len(found.samples) == 36 - failed


async def test_a_trajectory_that_ends_every_process_in_which_it_runs_fails(bench, tmp_path, caplog):
    monkey = FAILS.replace("HOW", "os._exit(3)")
    bench.spec["train"] |= {"promptsPerStep": 12, "samplesPerPrompt": 1}
    with_agent(bench.spec, tmp_path, monkey)
    found, _ = await step(bench)
    assert found.metrics["agent/failed"] == found.metrics["agent/failed_raised"] == 2.0, "and no other in its processes"
    assert len(found.samples) == 10
    assert "its process ended during the call" in caplog.text


async def test_a_step_in_which_every_agent_fails_ends_the_job_with_what_the_first_said(bench, tmp_path):
    with_agent(bench.spec, tmp_path, FAILS.replace('if prompt.answer == "3":', "if True:").replace("HOW", "1 / 0"))
    with pytest.raises(ConfigurationError) as caught:
        await step(bench)
    assert "spec.rollout.agent.python.path" in str(caught.value) and "ZeroDivisionError" in str(caught.value)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def rollout(prompt, policy, row): ...", "has to be async"),
        ("async def rollout(prompt, policy): ...", "too many positional arguments"),
        ("async def other(prompt, policy, row): ...", "the file has no such function"),
        ("import nothing_of_that_name", "No module named 'nothing_of_that_name'"),
    ],
)
async def test_a_file_that_is_no_agent_is_refused_before_anything_is_generated(bench, tmp_path, code, reason):
    with_agent(bench.spec, tmp_path, code)
    bench.control()
    await bench.connect()
    with pytest.raises(ConfigurationError) as caught:
        await bench.driver
    assert reason in str(caught.value)


EXAMPLE = (ROOT / "examples/calculator/agent.py").read_text()


def test_the_page_shows_the_agent_of_the_example() -> None:
    body = EXAMPLE[EXAMPLE.index("    context =") :]
    assert body.replace("prompt.tokens", "list(prompt.tokens)") in (ROOT / "docs/agents.md").read_text()


async def test_the_agent_of_the_example_calls_its_tool_and_is_stopped_behind_the_call(bench, tmp_path):
    with_agent(bench.spec, tmp_path, EXAMPLE)
    bench.spec["rollout"]["sampling"]["maxTokens"] = 16
    found, server = await step(bench, script=("add(37,48)", "85"))
    assert said(found.samples[0])[1:] == [("policy", "add(37,48)"), ("environment", "85;"), ("policy", "85")]
    assert {tuple(body["stop"]) for body in server.requests} == {(")",)}


async def test_readable_samples_say_who_wrote_what(bench, tmp_path):
    with_agent(bench.spec, tmp_path, TWO_TURNS)
    await step(bench)
    line = json.loads(names.samples_file(bench.root, 1).read_text().splitlines()[0])
    assert [(s["source"], s["text"], s.get("policy_step")) for s in line["segments"]][1:] == [
        ("policy", "t1", 0),
        ("environment", "[t1]", None),
        ("policy", "!", 0),
    ]
    assert line["response"] == "t1[t1]!"


@pytest.mark.parametrize(
    ("given", "stop"), [("</tool>", ["</tool>"]), (("a", "b"), ["a", "b"]), ((), []), (None, None)]
)
async def test_a_single_text_may_end_a_turn(given, stop):
    asked = {}

    async def ask(method, arguments):
        asked.update(arguments)

    await Policy(ask).generate([1], stop=given)
    assert asked["stop"] == stop
