"""The built-in rules and what they ask of the data."""

import pytest

from rljob_api.spec.model import MegatronReward, PythonReward, RewardSpec
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards import manager as manager_module
from rljob_trainer.rewards.builtin import mathematics
from rljob_trainer.rewards.request import RewardFailed, RewardRequest
from rljob_trainer.rewards.rules import PREDICTIONS, RULES, entries_of, require_texts, validate_row
from rljob_trainer.workers import process


@pytest.mark.parametrize(
    ("response", "answer", "expected"),
    [
        ("She has 72 clips in total.", "72", 1.0),
        ("48 / 2 = 24, so 48 + 24 = 72.", "Natalia sold 48/2 = <<48/2=24>>24 clips.\n#### 72", 1.0),
        ("#### 72 (not 73)", "73", 1.0),
        ("72\n#### 71", "72", 0.0),
        ("$1,234.50", "1234.5", 1.0),
        ("1,2,3", "3", 1.0),
        ("72.0", "72", 1.0),
        ("it is -5", "-5", 1.0),
        ("it is \u22125", "-5", 1.0),
        ("it is \u22125", "5", 0.0),
        ("10\u22125", "5", 1.0),
        ("10-5", "5", 1.0),
        ("(3)-5", "5", 1.0),
        ("1e3", "1000", 1.0),
        ("1e99999999999999999999", "1", 0.0),
        ("1," * 20_000, "1", 1.0),
        ("no idea", "72", 0.0),
        ("", "72", 0.0),
        ("7 2", "72", 0.0),
    ],
)
def test_the_last_number_counts(response, answer, expected):
    assert RULES["number"](response, answer) == expected


@pytest.mark.parametrize(
    ("rule", "response", "prediction"),
    [
        ("number", "so 72.0", "72"),
        ("number", "1,200", "1.2E+3"),
        ("number", "9.9e999999", "9.9E+999999"),
        ("number", "none", None),
        ("exactMatch", " a b ", "a b"),
        ("exactMatch", " ", None),
    ],
)
def test_a_rule_says_what_a_response_answers_in_one_form(rule, response, prediction):
    assert PREDICTIONS[rule](response) == prediction


MATHEMATICS = {
    ("so \\boxed{\\frac{1}{2}}", "0.5"): 1.0,
    ("the answer is 0.5", "\\frac{1}{2}"): 1.0,
    ("$x^2+2x+1$", "(x+1)^2"): 1.0,
    ("\\boxed{2} no, \\boxed{3}", "3"): 1.0,
    ("\\boxed{2} no, \\boxed{3}", "2"): 0.0,
    ("12", "a + b = 12\n#### 12"): 1.0,
    ("I do not know", "5"): 0.0,
    ("\\boxed{1,234}", "$1234$"): 1.0,
}


@pytest.fixture
async def mathematician(monkeypatch):
    """Makes started judges by the rule `math` with a process each, and stops them."""
    monkeypatch.setattr(process, "MAX_PROCESSES", 1)
    started = []

    async def start(seconds: float) -> manager_module.RewardManager:
        started.append(manager_module.RewardManager([RewardSpec(rule="math", timeout_seconds=seconds)]))
        await started[-1].start()
        return started[-1]

    yield start
    for each in started:
        await each.stop()


async def test_mathematics_is_judged_in_processes_of_its_own_and_what_is_none_is_a_failure(mathematician):
    found = await mathematician(60.0)
    for (response, answer), expected in MATHEMATICS.items():
        assert (await found.score(RewardRequest("q", response, answer, "s"))).score == expected, (response, answer)
    halves = [
        await found.score(RewardRequest("q", text, "1/2", "s"))
        for text in ("\\boxed{\\frac{1}{2}}", "\\boxed{3/6}", "?")
    ]
    assert [half.prediction for half in halves] == ["1/2", "1/2", None]
    with pytest.raises(RewardFailed, match="'' is no mathematical expression") as caught:
        await found.score(RewardRequest("q", "5", "####", "s"))
    assert (caught.value.field, caught.value.kind) == ("spec.rewards[0].rule", "raised")


async def test_mathematics_that_takes_too_long_is_a_failure_of_its_own_kind(mathematician):
    found = await mathematician(0.5)
    with pytest.raises(RewardFailed, match="longer than 0.5 s") as caught:
        await found.score(RewardRequest("q", "\\boxed{100000000!}", "1", "s"))
    assert caught.value.kind == "timeout"


REWARDS = [
    RewardSpec(rule="number", data_source="gsm8k"),
    RewardSpec(model=MegatronReward(path="/rm"), data_source="chat"),
    RewardSpec(python=PythonReward(path="/r.py")),
]


def test_entries_are_those_that_name_the_source_else_those_of_the_star():
    assert entries_of(REWARDS, "gsm8k") == [(0, REWARDS[0])]
    assert entries_of(REWARDS, "else") == [(2, REWARDS[2])]
    assert entries_of(REWARDS[:2], "else") == []


@pytest.mark.parametrize(
    ("rewards", "source", "answer", "by_driver", "complaint"),
    [
        (REWARDS, "gsm8k", "#### 72", False, None),
        (REWARDS, "gsm8k", "many", False, "the answer 'many' holds no number"),
        (REWARDS, "gsm8k", "", False, "has no answer, which the rule number of spec.rewards[0] compares with"),
        (REWARDS, "else", "", False, None),
        (REWARDS, "chat", "", False, None),
        (REWARDS, "chat", "", True, "no entry of spec.rewards that scores during generation"),
        (REWARDS[:2], "else", "1", False, "no entry of spec.rewards is for its data source 'else'"),
    ],
)
def test_a_row_that_cannot_be_judged_is_objected_to_before_anything_runs(rewards, source, answer, by_driver, complaint):
    found = validate_row(rewards, source, answer, by_driver)
    assert found is None if complaint is None else complaint in found[0]


def test_long_responses_with_a_box_are_not_kept(monkeypatch):
    """Each of several processes would keep thousands of them."""
    mathematics._equal.cache_clear()
    for length in range(3):
        assert mathematics.reward("", "x" * length + "\\boxed{2}", "2")["score"] == 1.0
    assert mathematics._equal.cache_info().currsize == 1


@pytest.mark.parametrize(
    ("reward", "field"),
    [
        ({"model": {"path": "/data/scorer"}}, r"spec\.rewards\[1\]\.model"),
        ({"vllm": {"pool": "scorer"}}, r"spec\.rewards\[1\]\.vllm"),
        ({"vllm": {"pool": "judge", "judge": {"prompt": "{response}", "score": "([0-9]+)"}}}, ""),
        ({"rule": "number"}, ""),
    ],
)
def test_a_sample_with_images_is_not_scored_by_a_model_of_tokens_alone(reward: dict[str, object], field: str) -> None:
    rewards = [RewardSpec(rule="number", data_source="text"), RewardSpec.model_validate(reward)]
    require_texts(rewards, "text")
    if not field:
        return require_texts(rewards, "pictures")
    with pytest.raises(ConfigurationError, match=f"{field} = set: gets token ids"):
        require_texts(rewards, "pictures")
    return None
