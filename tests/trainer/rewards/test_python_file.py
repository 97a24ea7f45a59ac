"""What a reward function of the user's may take and return, in real worker processes."""

import pickle
import re
from datetime import date
from pathlib import Path

import pytest

from rljob_api.spec.model import PythonReward, RewardSpec
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards.manager import RewardManager
from rljob_trainer.rewards.request import Reward, RewardFailed, RewardRequest
from rljob_trainer.workers.workers import LoadingLost

ROW = {"prompt": "1+1=", "image": b"\x00\xff", "day": date(2026, 1, 2), "extra_info": {"index": 7, "tags": ["a"]}}
CASE = RewardRequest("1+1=", "2", "2", "sum", (5, 6, 7, 1), prompt_length=2, truncated=True, row=lambda: ROW)


async def ask(tmp_path: Path, code: str, case: RewardRequest = CASE, **fields: object) -> Reward:
    file = tmp_path / "reward.py"
    file.write_text(code)
    manager = RewardManager([RewardSpec(python=PythonReward(path=str(file), **fields))])
    try:
        await manager.start()
        return await manager.score(case)
    finally:
        await manager.stop()


async def refused(tmp_path: Path, code: str, **fields: str) -> RewardFailed:
    with pytest.raises(RewardFailed) as caught:
        await ask(tmp_path, code, **fields)
    return caught.value


def noted(tmp_path: Path, parameters: str, names: str) -> str:
    """A function that writes what it got."""
    note = f"pathlib.Path({str(tmp_path / 'got')!r}).write_bytes(pickle.dumps(({names})))"
    return f"import pathlib, pickle\ndef reward({parameters}):\n    {note}\n    return 1\n"


async def test_a_function_gets_the_values_that_its_signature_names_in_any_order(tmp_path):
    names = "truncated, tokens, row, extra_info, data_source, answer, response, prompt"
    assert await ask(tmp_path, noted(tmp_path, names.replace("row", "*, row"), names)) == Reward(1.0)
    got = pickle.loads((tmp_path / "got").read_bytes())
    assert got == (True, [7, 1], ROW, ROW["extra_info"], "sum", "2", "2", "1+1=")


async def test_a_function_with_keyword_arguments_of_any_name_gets_all_values(tmp_path):
    await ask(tmp_path, noted(tmp_path, "response, **rest", "sorted(rest)"))
    got = pickle.loads((tmp_path / "got").read_bytes())
    assert got == ["answer", "data_source", "extra_info", "prompt", "row", "tokens", "truncated"]


async def test_a_parameter_with_a_default_keeps_it_where_there_is_no_such_value(tmp_path):
    assert (await ask(tmp_path, "def reward(response, scale=3.0): return scale * float(response)\n")).score == 6.0


@pytest.mark.parametrize("extra_info", [{}, {"extra_info": None}])
async def test_a_row_without_further_information_has_an_empty_one(tmp_path, extra_info):
    case = RewardRequest("q", "2", "2", "sum", row=lambda: extra_info)
    assert (await ask(tmp_path, "def reward(extra_info): return extra_info == {}\n", case)).score == 1.0


async def test_a_row_is_read_only_for_a_function_that_asks_for_it(tmp_path):
    def unread():
        raise AssertionError("was read")

    case = RewardRequest("q", "2", "2", "sum", row=unread)
    assert (await ask(tmp_path, "def reward(response, data_source): return 1\n", case)).score == 1.0
    with pytest.raises(AssertionError, match="was read"):
        await ask(tmp_path, "def reward(row): return 1\n", case)


@pytest.mark.parametrize(
    ("parameters", "name"),
    [("response, ground_truth", "ground_truth"), ("response, *, gold", "gold"), ("response, /", "response")],
)
async def test_a_parameter_that_nothing_is_known_for_is_refused_at_the_start(tmp_path, parameters, name):
    with pytest.raises(ConfigurationError) as caught:
        await ask(tmp_path, f"def reward({parameters}): return 1\n")
    message = str(caught.value)
    assert f"spec.rewards[0].python.path = {tmp_path}/reward.py: cannot be loaded: reward() in reward.py" in message
    assert f"nothing to give as {name!r}" in message and "by name, out of prompt, response, answer, data" in message


@pytest.mark.parametrize(
    ("ending", "error", "message"),
    [
        (
            "os._exit(3)",
            ConfigurationError,
            "cannot be loaded: its process ended with exit code 3 while it was imported",
        ),
        (
            "os._exit(0)",
            ConfigurationError,
            "cannot be loaded: its process ended with exit code 0 while it was imported",
        ),
        (
            "os.kill(os.getpid(), 9)",
            LoadingLost,
            "reward.py: its process was ended by signal 9 (SIGKILL) while it was imported",
        ),
    ],
)
async def test_a_file_that_ends_its_process_is_refused_and_one_that_was_killed_may_be_tried_again(
    tmp_path, ending, error, message
):
    """Memory that ran out on this node is no mistake in the file."""
    with pytest.raises(error, match=re.escape(message)):
        await ask(tmp_path, f"import os\n{ending}\ndef reward(response): return 1\n")


async def test_the_score_of_a_dict_counts_and_its_other_numbers_are_metrics(tmp_path):
    code = "def reward(response): return {'score': 0.5, 'acc': True, 'pred': '7', 'unknown': float('nan')}\n"
    assert await ask(tmp_path, code) == Reward(0.5, {"acc": 1.0}, "7")


async def test_what_is_no_reward_is_told_with_file_and_function(tmp_path):
    failed = await refused(tmp_path, "def mine(response): return {'acc': 1.0, 'pred': 'x'}\n", function="mine")
    assert failed.kind == "value"
    assert failed.reason == "mine() in reward.py returned a dict without 'score': its keys are acc, pred"


async def test_a_dict_of_any_size_is_answered_for(tmp_path):
    """An answer is one line of bounded length."""
    code = "def reward(response): return {f'metric_{i}' * 1000: i for i in range(1000)} | {'x' * 10**7: 'x'}\n"
    assert "without 'score'" in (await refused(tmp_path, code)).reason
    code = "def reward(response): return {'score': 'x' * 10**7}\n"
    assert len((await refused(tmp_path, code)).reason) < 1000


VERL = """
from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Verdict:
    score: float
    acc: bool


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "openai/gsm8k", data_source
    if extra_info and extra_info.get("split") == "test":
        return 0.25
    verdict = Verdict(1.0 if float(solution_str) == ground_truth else -1.0, float(solution_str) == ground_truth)
    return {"score": verdict.score, "acc": verdict.acc, "pred": solution_str}
"""


def of_verl(ground_truth: object, **extra_info: object) -> RewardRequest:
    row = {"reward_model": {"ground_truth": ground_truth}, "extra_info": extra_info}
    return RewardRequest(
        "q", "72", str(ground_truth), "openai/gsm8k", row=lambda: row, answer_value=lambda: ground_truth
    )


async def test_a_file_that_was_written_for_verl_runs_as_it_is(tmp_path):
    """As verl calls it: by name, with the ground truth of the type that its column holds."""
    assert await ask(tmp_path, VERL, of_verl(72), interface="verl") == Reward(1.0, {"acc": 1.0}, "72")
    assert await ask(tmp_path, VERL, of_verl(73, index=1), interface="verl") == Reward(-1.0, {"acc": 0.0}, "72")
    assert await ask(tmp_path, VERL, of_verl(72, split="test"), interface="verl") == Reward(0.25)


async def test_a_function_of_another_name_and_with_fewer_parameters_is_called_as_verls_too(tmp_path):
    code = "def mine(solution_str, ground_truth, **rest): return len(solution_str) + len(rest)\n"
    assert (await ask(tmp_path, code, of_verl("x"), interface="verl", function="mine")).score == 4.0


async def test_arguments_of_the_spec_go_with_every_call(tmp_path):
    code = "def reward(response, *, scale, names, unused=1): return scale * float(response) + len(names)\n"
    arguments = {"scale": 0.5, "names": ["a", {"b": 1}]}
    assert (await ask(tmp_path, code, arguments=arguments)).score == 3.0
    code = "def compute_score(solution_str, scale=1, **rest): return scale * len(rest)\n"
    assert (await ask(tmp_path, code, of_verl("x"), arguments={"scale": 2, "more": 0}, interface="verl")).score == 8.0


@pytest.mark.parametrize(
    ("name", "said"),
    [("scael", "reward() in {} takes no argument of"), ("answer", "every call has a value of its own")],
)
async def test_an_argument_that_the_function_does_not_take_is_refused_at_the_start(tmp_path, name, said):
    with pytest.raises(ConfigurationError) as caught:
        await ask(tmp_path, "def reward(response, answer, scale=1): return 1\n", arguments={name: 2})
    expected = f"spec.rewards[0].python.arguments.{name} = 2: {said.format(tmp_path / 'reward.py')}"
    assert str(caught.value).startswith(expected)


OWN = "def compute_score(prompt, response, answer): return 1\n"
TRL = "def accuracy(completions, answer, **kwargs): return [1.0 for _ in completions]\n"
TRLS = "TRL's parameters, which are lists: RLJob calls a function once for each response"


@pytest.mark.parametrize(
    ("code", "fields", "fix"),
    [
        (VERL, {}, "compute_score has verl's parameters: set python.interface: verl"),
        (VERL.replace("compute_score", "mine"), {}, "set python.interface: verl, and set python.function: mine"),
        (VERL, {"function": "compute_score"}, "it has verl's parameters: set python.interface: verl next to its path"),
        (OWN, {}, "set python.function: compute_score"),
        (OWN, {"interface": "verl"}, "remove python.interface: verl, and set python.function: compute_score"),
        (OWN.replace("compute_score", "reward"), {"interface": "verl"}, "remove python.interface: verl: no function"),
        (OWN.replace("compute_score", "reward"), {"interface": "verl", "function": "reward"}, "remove python.interface: verl"),
        (TRL, {}, f"set python.function: accuracy; it has {TRLS}"),
        (TRL, {"function": "accuracy"}, f"it has {TRLS}"),
        (TRL, {"function": "accuracy", "interface": "verl"}, f"it has {TRLS}"),
        (VERL.replace("compute_score", "mine") + OWN, {}, "mine has verl's parameters: set python.interface: verl"),
        ("def score(response): return 1\ndef other(response): return 1\n", {}, "set python.function to one of them"),
        ("def f(response, gold): return 1\n", {"function": "f"}, "rename the parameter, give it a default, or a value"),
    ],
)  # fmt: skip
async def test_what_to_do_follows_from_the_signatures_that_the_file_has(tmp_path, code, fields, fix):
    with pytest.raises(ConfigurationError) as caught:
        await ask(tmp_path, code, **fields)
    assert fix in str(caught.value)
    assert "interface: verl" in fix or "interface: verl" not in str(caught.value)


async def test_what_is_said_to_do_about_a_function_for_verl_is_enough(tmp_path):
    assert (await ask(tmp_path, VERL, of_verl("x"), interface="verl")).score
    assert (await ask(tmp_path, OWN, function="compute_score")).score == 1.0


async def test_a_file_without_the_function_says_what_it_has(tmp_path):
    with pytest.raises(ConfigurationError) as caught:
        await ask(tmp_path, f"{VERL}\nfrom json import loads\nimport os\n")
    said = str(caught.value)
    assert (
        "reward() in reward.py: NoSuchFunction: the file has no such function; it has Verdict, compute_score;" in said
    )
    with pytest.raises(ConfigurationError, match="no such function; it has none; fix the file"):
        await ask(tmp_path, "x = 1\n")


@pytest.mark.parametrize("words", ["'solution_str' is wrong", "no such function; it has compute_score"])
async def test_words_of_the_users_own_error_do_not_decide_what_to_do(tmp_path, words):
    with pytest.raises(ConfigurationError, match="fix the file; it is imported by itself"):
        await ask(tmp_path, f"raise TypeError({words!r})\n")


async def test_a_function_of_ours_with_verls_interface_is_refused_at_the_start(tmp_path):
    with pytest.raises(ConfigurationError, match=r"compute_score\(\) in reward.py: .* no such function"):
        await ask(tmp_path, "def reward(response): return 1\n", interface="verl")
    with pytest.raises(ConfigurationError, match="'response'.* out of data_source, solution_str, ground_truth, extra"):
        await ask(tmp_path, "def compute_score(response): return 1\n", interface="verl")


async def test_metrics_of_several_entries_are_put_together(tmp_path):
    entries = []
    for name, returned in {"a": "{'score': 1, 'x': 1, 'y': 1}", "b": "{'score': 3, 'y': 2, 'z': 2}"}.items():
        (tmp_path / f"{name}.py").write_text(f"def reward(response): return {returned}\n")
        entries.append(RewardSpec(python=PythonReward(path=str(tmp_path / f"{name}.py")), weight=0.5))
    manager = RewardManager([*entries, RewardSpec(rule="exactMatch", data_source="else")])
    await manager.start()
    try:
        assert await manager.score(CASE) == Reward(2.0, {"x": 1.0, "y": 2.0, "z": 2.0})
    finally:
        await manager.stop()


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("row['gold']", "where row has 'prompt', 'image', 'day', 'extra_info'"),
        ("extra_info['gold']", "where extra_info has 'index', 'tags'"),
        ("row['extra_info']['gold']", "where row has 'prompt', 'image', 'day', 'extra_info'"),
        ("row[response] + extra_info[response]", "where row has 'prompt', 'image', 'day', 'extra_info' and extra_info has 'index', 'tags'"),
        ("{}[3]", ""),
        ("dict(a=1)['b']", ""),
    ],
)  # fmt: skip
async def test_a_key_that_a_row_lacks_is_said_with_the_keys_that_it_has(tmp_path, expression, said):
    refusal = await refused(tmp_path, f"def reward(response, row, extra_info): return {expression}\n")
    assert refusal.reason.endswith(
        f"(line 1: def reward(response, row, extra_info): return {expression})" + f", {said}" * bool(said)
    )


async def test_of_many_keys_the_first_are_said(tmp_path):
    refusal = await refused(
        tmp_path, "def reward(row):\n    many = {str(i): i for i in range(40)}\n    return many['x']\n"
    )
    assert refusal.reason.endswith("'28', '29' and 10 more")
