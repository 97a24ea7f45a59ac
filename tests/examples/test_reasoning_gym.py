"""The starting point of the reasoning-gym example: its model can read and answer all that the library asks in its job."""

import json
from pathlib import Path
from types import ModuleType

import pytest
import reasoning_gym
import yaml

from script import loaded

EXAMPLE = Path(__file__).parents[2] / "examples" / "reasoning-gym"


@pytest.fixture(scope="module")
def prepare() -> ModuleType:
    return loaded(EXAMPLE / "prepare.py")


@pytest.fixture(scope="module")
def job() -> dict:
    return yaml.safe_load((EXAMPLE / "rljob.yaml").read_text())["spec"]


def test_every_question_and_answer_is_within_vocabulary_and_limits(prepare: ModuleType, job: dict) -> None:
    tokenizer = prepare.make_tokenizer()
    for made in job["data"]["generated"]:
        assert made["arguments"] == prepare.QUESTIONS
        entries = reasoning_gym.create_dataset(made["environment"], size=200, seed=made["seed"], **made["arguments"])
        for entry in entries:
            question, answer = (tokenizer.encode(entry[key]) for key in ("question", "answer"))
            assert tokenizer.decode(question) == entry["question"] and tokenizer.decode(answer) == entry["answer"]
            assert len(question) <= job["data"]["maxPromptTokens"]
            assert len(answer) < job["rollout"]["sampling"]["maxTokens"]


def test_the_careless_teacher_is_right_as_often_as_the_page_says(prepare: ModuleType, tmp_path: Path) -> None:
    prepare.write_examples(tmp_path / "careless.jsonl", seed=0)
    rows = [json.loads(line) for line in (tmp_path / "careless.jsonl").read_text().splitlines()]
    entries = reasoning_gym.create_dataset("chain_sum", size=len(rows), seed=prepare.FAR, **prepare.QUESTIONS)
    slips = [int(row["response"]) - int(entry["answer"]) for row, entry in zip(rows, entries, strict=True)]
    assert set(slips) == {0, prepare.SLIP}
    assert slips.count(0) / len(slips) == pytest.approx(prepare.RIGHT, abs=0.02)
