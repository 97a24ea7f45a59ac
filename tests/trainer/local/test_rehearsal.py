"""`try`: what it shows of data, rewards and agents, and that every mistake is named with its file, line and fix."""

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

from api.specs import raw_spec
from rljob_api.spec.model import PythonReward
from rljob_trainer.local.rehearsal import command
from rljob_trainer.local.rehearsal.command import rehearse
from rljob_trainer.rewards.python_file import PythonFile
from rljob_trainer.rewards.request import RewardFailed, RewardRequest
from trainer.data.templates import QWEN, tokenizer

SUM = {"data_source": "sum", "answer": "5", "prompt": "2+3="}
ROWS = [SUM, SUM | {"prompt": "4+3=", "answer": "7"}]
AGENT = """
from rljob_trainer.agents import Policy, Prompt, Trajectory

async def rollout(prompt: Prompt, policy: Policy, row: dict):
    turn = await policy.generate(prompt.tokens)
    seen = turn.whole + await policy.encode(" and then? ")
    turn = await policy.generate(seen)
    {last}
"""
TOOLS = '''
def add(a: int, b: int) -> int:
    """The sum."""
    return a + b
'''


class Shown(NamedTuple):
    code: int
    out: str
    err: str


class Trial:
    """A job in a directory that is its volume."""

    def __init__(self, directory: Path, rows: Sequence[dict[str, Any]] = ROWS, **changes: Any):
        self.directory = directory
        tokenizer(QWEN, "<|im_end|>").save_pretrained(directory / "model")
        (directory / "model" / "config.json").write_text(json.dumps({"model_type": "qwen2", "vocab_size": 2000}))
        (directory / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        data = {"train": ["/data/train.jsonl"], "maxPromptTokens": 64} | changes.pop("data", {})
        if changes.get("task"):
            del data["maxPromptTokens"]
        volumes = [{"name": "data", "mountPath": "/data", "source": {"emptyDir": {}}}]
        head = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "trial"}}
        spec = raw_spec(data=data, volumes=volumes, **changes)
        (directory / "job.yaml").write_text(yaml.safe_dump(head | {"spec": spec}))

    def write(self, name: str, code: str) -> str:
        """A file of the user's, as the spec names it."""
        (self.directory / name).write_text(code)
        return f"/data/{name}"

    def run(self, *said: str, colour: bool = False, everything: bool = False) -> Shown:
        """`said`: turns of a policy that is right."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            mounts = [f"/data={self.directory}"]
            code = rehearse(self.directory / "job.yaml", mounts, (), 2, said, everything=everything, colour=colour)
        return Shown(code, out.getvalue(), err.getvalue())


def reward_job(directory: Path, code: str, **changes: Any) -> Trial:
    trial = Trial(directory, rewards=[{"python": {"path": "/data/reward.py"}}], **changes)
    trial.write("reward.py", code)
    return trial


def test_a_job_in_order_shows_prompts_with_their_tokens_and_what_right_and_wrong_texts_are_worth(
    tmp_path: Path,
) -> None:
    found = Trial(tmp_path).run()
    assert (found.code, found.err) == (0, "")
    assert "spec.data.train[0] = " in found.out and ": 2 rows; prompts of 4 tokens" in found.out
    assert "row 1: 4 tokens, answer '5', data source 'sum'\n    2+3=\n" in found.out
    assert "its answer             reward 1, read as '5'\n    another row's answer   reward 0, read as '7'" in found.out
    assert "trial: no mistake was seen" in found.out and not (tmp_path / "run").exists()


def test_a_text_that_the_tokenizer_has_no_characters_for_is_said_to_be_nothing(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    alphabet = Tokenizer(WordLevel({character: i for i, character in enumerate("<0123456789+=")}))
    alphabet.pre_tokenizer = Split(Regex("."), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=alphabet, eos_token="<").save_pretrained(tmp_path / "model")
    found = trial.run().out
    assert "an unrelated text      reward 0, but this tokenizer cannot write it: nothing was said\n" in found
    assert "another row's answer   reward 0, read as '7'\n" in found and found.count("cannot write it") == len(ROWS)


def test_the_command_needs_no_torch(tmp_path: Path) -> None:
    code = "import sys\ndef reward(response): return float(sys.modules.get('torch') is None)\n"
    trial = reward_job(tmp_path, code)
    program = "import sys; from rljob_trainer.__main__ import main; code = main(sys.argv[1:]); print(sys.modules.get('torch')); sys.exit(code)"
    tried = (sys.executable, "-c", program, "try", trial.directory / "job.yaml", "--mount", f"/data={tmp_path}")
    paths = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(tried, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout.splitlines()[-1]) == (0, "", "None")


def test_a_reader_that_has_seen_enough_ends_it_quietly(tmp_path: Path) -> None:
    Trial(tmp_path)
    ours, theirs = os.pipe()
    os.close(ours)
    tried = (sys.executable, "-m", "rljob_trainer", "try", tmp_path / "job.yaml", "--mount", f"/data={tmp_path}")
    paths = os.pathsep.join(p for p in sys.path if p)
    environment = os.environ | {"PYTHONPATH": paths}
    for unbuffered in ("", "1"):  # the pipe is noticed at the last flush, or at the first line
        done = subprocess.run(
            tried, env=environment | {"PYTHONUNBUFFERED": unbuffered}, stdout=theirs, stderr=subprocess.PIPE, text=True
        )
        assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
    os.close(theirs)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def reward(row): return row['gold']\n", "reward() in reward.py: KeyError: 'gold' (line 1: def reward(row): return row['gold']); correct"),
        ("def reward(response): return 'good'\n", "reward() in reward.py returned the text 'good', which is not a finite number"),
        ("def reward(response): return float('nan')\n", "return a finite number, or a dict with one as its score"),
        ("def reward(response, gold): return 1\n", "cannot be loaded: reward() in reward.py"),
        ("import nowhere\n", "cannot be loaded: reward() in reward.py: ModuleNotFoundError: No module named 'nowhere' (line 1: import nowhere)"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_reward_is_one_message_with_file_line_and_fix(tmp_path: Path, code: str, message: str) -> None:
    found = reward_job(tmp_path, code).run()
    assert found.code == 1
    (mistake, verdict) = found.err.splitlines()
    assert mistake.startswith(f"spec.rewards[0].python.path = {tmp_path}/reward.py: ") and message in mistake
    assert verdict.startswith("trial: 1 mistake, after ")


RETURNS = (
    "True",
    "0",
    "2.5",
    "10**400",
    "float('inf')",
    "None",
    "'0.5'",
    "b'1'",
    "[1]",
    "(1, {})",
    "{'score': '1'}",
    "{'acc': 1}",
)


@pytest.mark.parametrize("returned", RETURNS)
async def test_a_reward_is_taken_or_refused_as_in_a_run_in_the_same_words(tmp_path: Path, returned: str) -> None:
    code = f"def reward(response): return {returned}\n"
    tried = await asyncio.to_thread(reward_job(tmp_path, code).run)
    reward = PythonFile("spec.rewards[0].python.path", "f", PythonReward(path=str(tmp_path / "reward.py")), 10)
    try:
        await reward.score(RewardRequest("2+3=", "5", "5", "sum"))
    except RewardFailed as failure:
        assert tried.code == 1 and failure.reason in tried.err
    else:
        assert tried.code == 0
    finally:
        await reward.stop()


def test_a_failure_of_one_row_only_names_the_row_and_the_text(tmp_path: Path) -> None:
    found = reward_job(
        tmp_path, "def reward(response, answer): return 1 / (response != '') + (answer == response)\n"
    ).run()
    assert f"({tmp_path}/train.jsonl row 1, with nothing as the response), and 1 more like it" in found.err
    assert "its answer             reward 2" in found.out and "nothing                no reward: " in found.out


def test_one_line_that_fails_in_many_ways_is_one_mistake_and_another_line_another(tmp_path: Path) -> None:
    code = "def reward(response, answer):\n    if response == '':\n        raise OSError\n    return float('x' + response)\n"
    errors = reward_job(tmp_path, code).run().err.splitlines()
    assert (
        len(errors) == 3 and "(line 4: " in errors[0] and "and 5 more like it" in errors[0] and "(line 3: " in errors[1]
    )


def test_a_function_that_does_not_end_is_tried_on_one_row_only(tmp_path: Path) -> None:
    rewards = [{"python": {"path": "/data/reward.py"}, "timeoutSeconds": 1}]
    rows = [SUM | {"answer": str(i)} for i in range(40)]
    trial = Trial(tmp_path, rows, rewards=rewards)
    trial.write("reward.py", "import time\ndef reward(response): time.sleep(60)\n")
    shown = trial.run()
    assert (
        shown.code == 1 and "raise timeoutSeconds, or answer sooner" in shown.err and "and 3 more like it" in shown.err
    )


def test_mistakes_of_several_rewards_the_agent_and_the_data_come_at_once(tmp_path: Path) -> None:
    paths = [{"dataSource": name, "python": {"path": f"/data/{name}.py"}} for name in ("sum", "other")]
    agent = {"python": {"path": "/data/agent.py"}, "maxTurns": 2, "maxTokens": 30}
    rows = [SUM, SUM | {"data_source": "third"}]
    trial = Trial(tmp_path, rows, rewards=paths, rollout={"agent": agent, "sampling": {"maxTokens": 8}})
    for name in ("sum", "other", "agent"):
        trial.write(f"{name}.py", f"import {name}_nowhere\n")
    said = trial.run().err
    for name in ("sum", "other", "agent"):
        assert f"No module named '{name}_nowhere' (line 1" in said
    assert "row 2: no entry of spec.rewards is for its data source 'third'" in said and "4 mistakes" in said


def test_a_reward_that_wants_a_form_is_noted_and_can_be_given_it(tmp_path: Path) -> None:
    trial = reward_job(tmp_path, "def reward(response, answer): return response == f'<a>{answer}</a>'\n")
    found = trial.run()
    assert "note: spec.data.train[0]" in found.out and "no row's answer is worth more than a wrong text" in found.out
    formed = trial.run("<a>{answer}</a>")
    assert "its answer             reward 1" in formed.out and "note: " not in formed.out


VERLS = [
    {"data_source": "sum", "prompt": row["prompt"], "reward_model": {"ground_truth": row["answer"]}} for row in ROWS
]
NEEDS = "def reward(response, answer): return float(response == answer)\n"
OF_VERL = "def compute_score(data_source, solution_str, ground_truth, extra_info=None): return 1\n"


@pytest.mark.parametrize(
    ("code", "python", "said"),
    [
        (NEEDS, {}, "reward() of spec.rewards[0] takes `answer`"),
        (OF_VERL, {"interface": "verl"}, "compute_score() of spec.rewards[0] takes `ground_truth`"),
    ],
)
def test_rows_that_all_lack_the_answer_that_a_reward_takes_are_a_mistake_that_names_where_answers_are(
    tmp_path: Path, code: str, python: dict[str, str], said: str
) -> None:
    rewards = [{"python": {"path": "/data/reward.py"} | python}]
    trial = Trial(tmp_path, VERLS, rewards=rewards)
    trial.write("reward.py", code)
    found = trial.run()
    (mistake, verdict) = found.err.splitlines()
    assert found.code == 1 and verdict.startswith("trial: 1 mistake, ")
    assert mistake.startswith(
        f"spec.data.answerKey = answer: none of the rows of {tmp_path}/train.jsonl that were read"
    )
    assert said in mistake and "set it to reward_model.ground_truth, which holds '5'" in mistake
    assert "its columns are data_source, prompt, reward_model" in mistake


def test_a_function_that_may_do_without_answers_is_no_mistake(tmp_path: Path) -> None:
    for code in ("def reward(response, answer=None): return 1\n", "def reward(response, **rest): return 1\n"):
        assert reward_job(tmp_path, code, rows=VERLS).run().code == 0


def test_answers_may_be_missing_where_the_entry_that_takes_them_does_not_count(tmp_path: Path) -> None:
    rewards = [
        {"dataSource": "sum", "rule": "number"},
        {"dataSource": "form", "python": {"path": "/data/reward.py"}},
    ]
    rows = [SUM, {"data_source": "form", "prompt": "2+3="}]
    trial = Trial(tmp_path, rows, rewards=rewards)
    trial.write("reward.py", "def reward(response): return 1\n")
    assert trial.run().code == 0
    trial.write("reward.py", NEEDS)
    assert "with the data source 'form' has an answer, and reward() of spec.rewards[1]" in trial.run().err


def test_a_rule_that_finds_no_answer_names_where_answers_are(tmp_path: Path) -> None:
    found = Trial(tmp_path, VERLS).run()
    assert (
        found.code == 1
        and "train.jsonl row 1: has no answer, which the rule exactMatch of spec.rewards[0]" in found.err
    )
    assert "set spec.data.answerKey to reward_model.ground_truth, which holds '5'" in found.err


def test_rewards_that_prefer_wrong_answers_are_said_to(tmp_path: Path) -> None:
    found = reward_job(tmp_path, "def reward(response, answer): return float(response != answer)\n").run()
    assert found.code == 0 and "right answers get less than wrong ones" in found.out
    assert "trial: no mistake, 1 note, after " in found.out
    constant = reward_job(tmp_path, "def reward(response, answer): return 1\n").run().out
    assert "no row's answer is worth more than a wrong text" in constant and "less than wrong" not in constant
    assert "no mistake, 1 note" in constant


def agent_job(directory: Path, last: str, **changes: Any) -> Trial:
    agent = {"python": {"path": "/data/agent.py"}, "maxTurns": 2, "maxTokens": 60}
    trial = Trial(directory, rollout={"agent": agent, "sampling": {"maxTokens": 20}}, **changes)
    trial.write("agent.py", AGENT.format(last=last))
    return trial


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
        ("return row['nothing']", "rollout() in agent.py: KeyError: 'nothing' (line 8: return row['nothing']); correct the function"),
    ],
)  # fmt: skip
def test_a_mistake_in_an_agent_is_one_message_with_file_line_and_fix(tmp_path: Path, last: str, message: str) -> None:
    found = agent_job(tmp_path, last).run()
    mistakes = [line for line in found.err.splitlines() if line.startswith("spec.rollout.agent.python.path")]
    assert found.code == 1 and len(mistakes) == 1 and message in mistakes[0]


def test_tools_are_called_once_each_and_their_results_are_shown(tmp_path: Path) -> None:
    agent = {"tools": {"path": "/data/tools.py", "functions": ["add"]}, "maxTurns": 3, "maxTokens": 400}
    data = {"chatTemplate": {"texts": True}, "maxPromptTokens": 500}
    trial = Trial(tmp_path, data=data, rollout={"agent": agent, "sampling": {"maxTokens": 200}})
    trial.write("tools.py", TOOLS)
    found = trial.run()
    assert found.code == 0, found.err
    assert "its answer             reward 1, tool_calls 1, tool_errors 0" in found.out
    assert '"add", "arguments": {"a": 1, "b": 1}' in found.out and "<tool_response>\n      2\n" in found.out


def test_a_reward_of_the_jobs_own_servers_is_said_not_to_be_tried(tmp_path: Path) -> None:
    pool = {"name": "judge", "model": "/data/judge"}
    found = Trial(tmp_path, pools=[pool], rewards=[{"vllm": {"pool": "judge"}}]).run()
    assert "note: spec.rewards[0] is scored by a model of the job and was not tried" in found.out, found.err
    assert found.code == 0


def test_sft_shows_in_colour_what_is_learnt(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "xyz"}]
    trial = Trial(tmp_path, [{"messages": messages}], task="sft", data={"maxTokens": 64})
    plain = trial.run()
    assert plain.code == 0, plain.err
    assert "«xyz<|im_end|>»" in plain.out and "of them learnt" in plain.out
    assert "\x1b[32mxyz<|im_end|>\x1b[0m" in trial.run(colour=True).out


def test_pairs_show_both_answers_and_broken_rows_are_named(tmp_path: Path) -> None:
    row = {"prompt": "hi", "chosen": "xyz", "rejected": "zyx"}
    rejected = Trial(tmp_path, [row], task="dpo", data={"maxTokens": 64}).run()
    assert "chosen: " in rejected.out and "rejected: " in rejected.out and "«zyx<|im_end|>»" in rejected.out
    broken = Trial(tmp_path, [row, {"prompt": "hi", "chosen": 7}], task="dpo", data={"maxTokens": 64}).run()
    assert broken.code == 1 and "train.jsonl row 2" in broken.err


HELLO = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]}
NO_TURNS, LONG = (
    {"messages": "oops"},
    {"messages": [HELLO["messages"][0], {"role": "assistant", "content": "yo " * 99}]},
)


def test_every_supervised_row_is_read_up_to_the_limit_and_with_all_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "MOST", 150)
    rows = [HELLO] * 400
    rows[123], rows[200], rows[121], rows[141] = NO_TURNS, {"messages": [{"role": 7}]}, LONG, LONG
    trial = Trial(tmp_path, rows, task="sft", data={"maxTokens": 64})
    first = trial.run()
    assert first.code == 1 and "train.jsonl: first 150 of 400 rows" in first.out
    assert "  rows 122, 142 are left out: it is longer than spec.data.maxTokens\n" in first.out
    assert "train.jsonl row 124: " in first.err and "row 201" not in first.err and "1 mistake, " in first.err
    every = trial.run(everything=True)
    assert every.code == 1 and "train.jsonl: 400 rows" in every.out
    assert "train.jsonl row 124: " in every.err and "train.jsonl row 201: " in every.err and "2 mistakes, " in every.err


def test_of_many_rows_that_cannot_be_used_the_first_are_named_and_the_others_counted(tmp_path: Path) -> None:
    found = Trial(tmp_path, [HELLO, *[NO_TURNS] * 25, HELLO], task="sft", data={"maxTokens": 64}).run()
    assert found.code == 1 and "train.jsonl row 11: " in found.err and "row 12" not in found.err
    assert "; 15 more rows of the file cannot be used\n" in found.err


def test_data_from_which_nothing_is_learnt_are_refused_as_by_a_job(tmp_path: Path) -> None:
    found = Trial(tmp_path, [LONG] * 3, task="sft", data={"maxTokens": 64}).run()
    assert found.code == 1 and "nothing can be learnt from any of the 3 rows" in found.err
    assert "  rows 1, 2, 3 are left out: " in found.out


def test_documents_are_read_to_the_end_and_what_is_no_text_is_named(tmp_path: Path) -> None:
    rows = [{"text": "abc"}, *[{"text": "def"}] * 8, {"text": 7}, {"text": ""}, {"text": "ghi"}]
    trial = Trial(tmp_path, rows, task="pretrain", data={"maxTokens": 64})
    (tmp_path / "train.jsonl").open("a").write("[1]\n")
    found = trial.run()
    assert found.code == 1 and "2 mistakes, " in found.err
    assert "train.jsonl row 10: column 'text' holds 7, which is not a text" in found.err
    assert "train.jsonl row 13: cannot be read: " in found.err
    assert "  row 11 is left out: there is no text\n" in found.out and "abc" in found.out


def test_what_a_rehearsal_does_not_read_need_not_be_here_and_what_it_reads_is_said(tmp_path: Path) -> None:
    trial = Trial(tmp_path, model={"megatronCheckpoint": "/data/elsewhere"})
    assert trial.run().code == 0
    (tmp_path / "train.jsonl").unlink()
    missing = trial.run()
    assert missing.code == 1 and "spec.data.train[0] = /data/train.jsonl" in missing.err


def custom(trial: Trial, code: str) -> Trial:
    """With rows that the user's function makes."""
    job = yaml.safe_load((trial.directory / "job.yaml").read_text())
    job["spec"]["data"]["custom"] = {"path": trial.write("custom.py", code)}
    (trial.directory / "job.yaml").write_text(yaml.safe_dump(job))
    return trial


def test_rows_of_a_users_own_function_are_shown_as_the_policy_gets_them(tmp_path: Path) -> None:
    code = "def rows(row):\n    return row | {'prompt': 'Sum: ' + row['prompt']} if row['answer'] == '7' else None\n"
    found = custom(Trial(tmp_path), code).run()
    assert (found.code, found.err) == (0, "")
    assert ": 1 rows; prompts of 9 tokens" in found.out and "    Sum: 4+3=\n" in found.out


@pytest.mark.parametrize("task", ["", "sft"])
def test_a_row_for_which_the_users_function_raises_is_named_with_its_file(tmp_path: Path, task: str) -> None:
    rows, changes = [SUM, SUM | {"prompt": 7}], {"task": task} if task else {}
    code = "def rows(row): return {'prompt': row['prompt'].upper(), 'response': 'a'}\n"
    found = custom(Trial(tmp_path, rows, **changes), code).run()
    assert found.code == 1
    assert f"spec.data.train[0] = {tmp_path}/train.jsonl row 2: rows() in custom.py: AttributeError: 'int'" in found.err


def test_only_the_rows_that_are_tried_are_made(tmp_path: Path) -> None:
    rows = [SUM | {"answer": str(i)} for i in range(command.MOST + 5)]
    code = "def rows(row):\n    assert row['answer'] != '2003'\n    return row\n"
    trial = custom(Trial(tmp_path, rows), code)
    assert trial.run().code == 0 and "row 2004: rows() in custom.py: AssertionError" in trial.run(everything=True).err
