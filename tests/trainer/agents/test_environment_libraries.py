"""Environments of real libraries by their names, asked by the whole driver: what they say and pay, and what becomes of those that misbehave."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec.model import DataSpec
from rljob_trainer.agents import generated_data
from rljob_trainer.agents.environments import threads
from rljob_trainer.agents.generated_data import generate
from rljob_trainer.driver import main
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.machine import cpus
from rljob_trainer.rank.driver_client import DriverLost
from rljob_trainer.wire.batch import Batch
from trainer.agents.talker import first_step
from trainer.agents.test_tools import END, Caller, words, written
from trainer.driver.bench import Bench

OWN = """
import time
from rljob_trainer.agents.environments import threads
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput as Answer

class Own(BaseTextEnv):
    def __init__(self, env_config, extras):
        super().__init__()
        self.mode = env_config.get("mode") if extras["prompt"].startswith(env_config.get("first", "")) else "fine"
        if self.mode == "init": raise StopIteration("no more tasks")

    def init(self, prompt):
        return ([{"role": "user", "content": "Guess."}] if self.mode == "opening" else prompt), {}

    def step(self, action):
        if self.mode == "raise": raise SystemExit("out of order")
        if self.mode == "hang":
            threads.GRACE_SECONDS = 0
            time.sleep(1000)
        if self.mode == "flood": return Answer(observations=[{"role": "user", "content": "x" * 2_000_000}], reward=0, done=False)
        if self.mode == "nan": return Answer(observations=[], reward=float("nan"), done=True)
        if self.mode == "nothing": return None
        if self.mode == "words": return Answer(observations="well done", reward=0, done=False)
        return Answer(observations=[], reward=0.5, done=True)
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(main, "load_tokenizer", lambda spec: words())
    found = Bench(tmp_path)
    found.spec |= {"rewards": [], "evaluation": {}}
    found.spec["data"] |= {"chatTemplate": {"texts": True}}
    return found


def with_library(bench: Bench, kind: str, environment: str, seconds: float = 60, **arguments: Any) -> None:
    library = {"environment": environment, "arguments": arguments}
    bench.spec["rollout"] |= {
        "agent": {kind: library, "maxTurns": 3, "maxTokens": 1000, "timeoutSeconds": seconds},
        "sampling": {"maxTokens": 200},
    }


def with_own(bench: Bench, tmp_path: Path, seconds: float = 60, **arguments: Any) -> None:
    """An environment that does as `mode` says, for rows that begin with `first`."""
    (tmp_path / "own_env.py").write_text(OWN)
    with_library(bench, "skyrlGym", "own_env:Own", seconds, **arguments)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    bench.spec["rollout"]["agent"]["env"] = {"PYTHONPATH": path}


def with_rows(bench: Bench, rows: list[dict[str, Any]]) -> None:
    file = bench.directory.parent / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    bench.spec["data"] |= {"train": [str(file)], "validation": []}


async def step(bench: Bench, *script: str) -> Batch:
    found, _ = await first_step(bench, Caller("demo-rollout-0"), script=script)
    return found


async def refused(bench: Bench) -> str:
    """What the driver says before the first rollout."""
    bench.control()
    with contextlib.suppress(DriverLost):  # it may have ended already
        await bench.connect()
    with pytest.raises(ConfigurationError) as caught:
        await bench.driver
    return str(caught.value)


async def test_an_environment_of_skyrl_gym_answers_each_turn_and_pays_for_it(bench: Bench) -> None:
    prompt = [{"role": "user", "content": "What is 6 times 7?"}]
    row = {"prompt": prompt, "data_source": "gsm8k", "reward_spec": {"ground_truth": "42"}, "max_turns": 3}
    with_rows(bench, [row] * 4)
    with_library(bench, "skyrlGym", "gsm8k_multi_turn")
    found = await step(bench, "I do not know", "#### 41", "#### 42")
    assert written(found, "policy") == [f"I do not know{END}", f"#### 41{END}", f"#### 42{END}"]
    asked, last = written(found, "environment")
    assert "tentative numeric answer" in asked and "only the final numeric answer" in last
    assert [s.reward for s in found.samples] == pytest.approx([0.2 / 3 + 1.0] * 12)
    turns = [r for r in found.samples[0].response_turn_rewards if r]
    assert turns == [pytest.approx(0.2 / 3), 1.0] and found.metrics["reward_metrics/steps"] == 3.0


async def test_what_the_environment_says_first_stands_in_place_of_the_prompt(bench: Bench, tmp_path: Path) -> None:
    with_own(bench, tmp_path, mode="opening")
    found = await step(bench, "12")
    prompt = words().decode(found.samples[0].prompt_tokens)
    assert prompt.endswith(f"<|im_start|>user\nGuess.{END}\n<|im_start|>assistant\n") and "1+" not in prompt
    assert {s.reward for s in found.samples} == {0.5}


@pytest.mark.parametrize(
    ("mode", "kind", "reason"),
    [
        ("init", "raised", "environment own_env:Own: RuntimeError: StopIteration"),
        ("raise", "raised", "environment own_env:Own: SystemExit: out of order (own_env.py, line "),
        ("flood", "value", "environment own_env:Own: answered to step: the answer: Value error, 2000"),
        ("nan", "value", "environment own_env:Own: answered to step: reward: Input should be a finite number"),
        ("nothing", "value", "environment own_env:Own: answered to step with None"),
        ("words", "value", "environment own_env:Own: answered to step: messages: Input should be a valid list"),
        ("hang", "timeout", "environment own_env:Own: took longer than 3 s of its own"),
    ],
)
async def test_an_environment_that_misbehaves_fails_its_sample_in_a_message_that_names_it(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: str, kind: str, reason: str
) -> None:
    """The row 1+1 meets the fault, all others are trained."""
    with_own(bench, tmp_path, seconds=3 if mode == "hang" else 60, mode=mode, first="1+1=")
    bench.spec["data"]["shuffle"] = False
    found = await step(bench, "12")
    assert len(found.samples) == 9 and {s.reward for s in found.samples} == {0.5}
    assert found.metrics["agent/failed"] == found.metrics[f"agent/failed_{kind}"] == 3.0
    assert reason in caplog.text


async def test_a_process_whose_calls_hang_again_and_again_is_replaced(
    bench: Bench, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bench.spec["train"] |= {"promptsPerStep": 12, "samplesPerPrompt": 16, "steps": 1}
    with_own(bench, tmp_path, seconds=3, mode="hang", first="1+")
    found = await step(bench, "12")
    assert cpus() * threads.MOST_HUNG < 48, "the processes have that many, or this test says nothing"
    assert len(found.samples) > 0 and found.metrics["agent/failed"] >= 48.0
    assert "calls of the environment hang: this process ends" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("kind", "environment", "arguments", "reason"),
    [
        ("skyrlGym", "sudoku-9", {}, "No registered env with id: sudoku-9"),
        pytest.param(
            *("reasoningGym", "sums", {}, "environment sums: ValueError: Dataset 'sums' not registered"),
            marks=pytest.mark.slow,
        ),
        ("reasoningGym", "chain_sum", {"most": 3}, "unexpected keyword argument 'most'"),
        (
            "verifiers",
            "gsm8k",
            {},
            "ModuleNotFoundError: No module named 'verifiers'",
        ),
    ],
)
async def test_what_the_library_does_not_know_ends_the_job_at_once_by_the_field(
    bench: Bench, kind: str, environment: str, arguments: dict[str, Any], reason: str
) -> None:
    with_library(bench, kind, environment, **arguments)
    said = await refused(bench)
    assert (
        said.startswith(f"spec.rollout.agent.{kind}.environment = {environment}: cannot be loaded: ") and reason in said
    )


def generated(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    sums = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    made = {"path": f"{tmp_path}/made/sums.jsonl", "library": "reasoning-gym", "environment": "chain_sum", "size": 12}
    return made | {"arguments": sums, "seed": 7} | changes


def with_generated(bench: Bench, tmp_path: Path, **changes: Any) -> None:
    made = generated(tmp_path, **changes)
    bench.spec["data"] |= {"generated": [made], "train": [made["path"]], "validation": [], "answerKey": "truth"}


async def test_reasoning_gym_writes_the_questions_and_judges_the_answers(bench: Bench, tmp_path: Path) -> None:
    with_generated(bench, tmp_path)
    with_library(bench, "reasoningGym", "chain_sum", min_terms=2, max_terms=2, min_digits=1, max_digits=1)
    found = await step(bench, "I say <answer> 9 </answer>.")
    rows = [json.loads(line) for line in (tmp_path / "made/sums.jsonl").read_text().splitlines()]
    assert len(rows) == 12 and {row["data_source"] for row in rows} == {"reasoning-gym/chain_sum"}
    answers = {row["prompt"]: row["truth"] for row in rows}
    assert {answer == "9" for answer in answers.values()} == {True, False}, "the seed has some of both"
    for sample in found.samples:
        (prompt,) = [text for text in answers if text in words().decode(sample.prompt_tokens)]
        assert (sample.reward == 1.0) == (answers[prompt] == "9")


@pytest.mark.slow
def test_generated_rows_are_written_once_and_held_to_their_settings(tmp_path: Path) -> None:
    def spec(**changes: Any) -> DataSpec:
        made = generated(tmp_path, **changes)
        return DataSpec.model_validate({"generated": [made], "train": [made["path"]]})

    generate(spec())
    file = tmp_path / "made/sums.jsonl"
    first, made = file.read_text(), file.stat().st_mtime_ns
    generate(spec())
    assert file.stat().st_mtime_ns == made, "another attempt reads what is there"
    with pytest.raises(
        ConfigurationError, match=r"generated\[0\].path = .*: the file was generated with other settings"
    ):
        generate(spec(size=13))
    file.unlink()
    generate(spec())
    assert file.read_text() == first, "equal seeds give equal rows"


@pytest.mark.slow
def test_files_of_one_seed_and_other_offsets_are_parts_of_one_order(tmp_path: Path) -> None:
    def rows(name: str, **changes: Any) -> list[str]:
        made = generated(tmp_path, path=f"{tmp_path}/{name}.jsonl", **changes)
        generate(DataSpec.model_validate({"generated": [made], "train": [made["path"]]}))
        return Path(made["path"]).read_text().splitlines()

    assert rows("whole", size=12) == rows("train", size=8) + rows("held-out", size=4, offset=8)


def test_generation_is_reported_while_the_library_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generated_data, "LOOK_SECONDS", 0.01)
    made, said = generated(tmp_path), list[str]()
    generate(DataSpec.model_validate({"generated": [made], "train": [made["path"]]}), said.append)
    assert len(said) > 3 and set(said) == {f"reasoning-gym generates {made['path']}"}


def test_rows_that_cannot_be_generated_are_named_with_the_librarys_own_words(tmp_path: Path) -> None:
    made = generated(tmp_path, arguments={"min_terms": 9, "max_terms": 2})
    spec = DataSpec.model_validate({"generated": [made], "train": [made["path"]]})
    with pytest.raises(
        ConfigurationError, match=r"generated\[0\].environment = chain_sum: cannot be generated: Assert"
    ):
        generate(spec)
    assert not list((tmp_path / "made").iterdir()), "no half of a file is left"
