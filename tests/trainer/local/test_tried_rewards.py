"""`try`: what it shows of rewards, and that every mistake in one is named with its file, line and fix."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rljob_api.spec.model import PythonReward
from rljob_trainer.rewards.python_file import PythonFile
from rljob_trainer.rewards.request import RewardFailed, RewardRequest
from trainer.local.rehearsal import ROWS, SUM, Trial, digits_only, reward_job


def test_a_job_in_order_shows_prompts_with_their_tokens_and_what_right_and_wrong_texts_are_worth(
    tmp_path: Path,
) -> None:
    found = Trial(tmp_path, template=None).run()
    assert (found.code, found.err) == (0, "")
    assert "spec.data.train[0] = " in found.out and ": 2 rows; prompts of 4 tokens" in found.out
    assert "row 1: 4 tokens, answer '5', data source 'sum'\n    2+3=\n" in found.out
    assert "its answer             reward 1, read as '5'\n    another row's answer   reward 0, read as '7'" in found.out
    assert "trial: no mistake was seen" in found.out and not (tmp_path / "run").exists()


def test_a_text_that_the_tokenizer_has_no_characters_for_is_said_to_be_nothing(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    digits_only(tmp_path)
    found = trial.run().out
    assert "an unrelated text      reward 0, but this tokenizer cannot write it: nothing was said\n" in found
    assert "another row's answer   reward 0, read as '7'\n" in found and found.count("cannot write it") == len(ROWS)


def test_what_the_tokenizer_leaves_out_of_prompts_and_responses_is_said(tmp_path: Path) -> None:
    trial = Trial(tmp_path, [SUM | {"prompt": "banana + 3="}, SUM, SUM | {"prompt": "c="}], template=None)
    digits_only(tmp_path)
    found = trial.run("## {answer}")
    assert (found.code, found.err) == (0, "")
    assert (
        "train.jsonl row 1: the tokenizer has no token for 'ban', so the model reads the text without, and 1 more like it;"
        in found.out
    )
    assert (
        "its answer             reward 1, read as '5', but this tokenizer cannot write '#': it was left out\n"
        in found.out
    )
    assert "no mistake, 1 note" in found.out


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
        ("def reward(row):\n    return row['gold']\n", "'gold' (line 2: return row['gold']), where row has 'data_source', 'answer', 'prompt';"),
        ("def reward(response): return 'good'\n", "reward() in reward.py returned the text 'good', which is not a finite number"),
        ("def reward(response): return float('nan')\n", "return a finite number, or a dict with one as its score"),
        ("def reward(response, gold): return 1\n", "cannot be loaded: reward() in reward.py"),
        ("import nowhere\n", "cannot be loaded: reward() in reward.py: ModuleNotFoundError: No module named 'nowhere' (line 1: import nowhere)"),
        ("from .helper import score\n", "import files next to it by their names, without a dot"),
        ("import os\nos.kill(os.getpid(), 9)\n", "was ended by signal 9 (SIGKILL) while it was imported; give it more memory"),
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
    code = "def reward(response, answer): return response == f'<a>{answer}</a>'\n"
    trial = reward_job(tmp_path, code, template=None)
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
    contrary = "def reward(response, answer): return float(response != answer)\n"
    found = reward_job(tmp_path, contrary, template=None).run()
    assert found.code == 0 and "right answers get less than wrong ones" in found.out
    assert "trial: no mistake, 1 note, after " in found.out
    constant = reward_job(tmp_path, "def reward(response, answer): return 1\n", template=None).run().out
    assert "no row's answer is worth more than a wrong text" in constant and "less than wrong" not in constant
    assert "no mistake, 1 note" in constant


def test_a_reward_of_the_jobs_own_servers_is_said_not_to_be_tried(tmp_path: Path) -> None:
    pool = {"name": "judge", "model": "/data/judge"}
    found = Trial(tmp_path, pools=[pool], rewards=[{"vllm": {"pool": "judge"}}]).run()
    assert "note: spec.rewards[0] is scored by a model of the job and was not tried" in found.out, found.err
    assert found.code == 0
