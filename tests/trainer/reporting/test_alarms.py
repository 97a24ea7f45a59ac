"""When a run that goes on is said to learn nothing."""

import logging

import pytest

from api.specs import make_spec
from rljob_trainer.driver.reporter import STEPS, Alarms

FINE = {"reward/zero_std": 0.5, "train/grad_norm": 1.0, "train/learning_rate": 1e-6}
EQUAL = FINE | {"reward/zero_std": 1.0, "train/grad_norm": 0.0}


def after(*metrics: dict, **sections) -> list[list[str]]:
    """What is said after each step."""
    alarms, found = Alarms(make_spec(**sections)), []
    for step, of in enumerate(metrics, 1):
        alarms.after(step, of)
        found.append(alarms.texts)
    return found


def test_equal_rewards_for_several_steps_are_one_warning_that_stays_until_they_differ(caplog):
    caplog.set_level(logging.WARNING)
    *early, first, second, late = after(FINE, *[EQUAL] * (STEPS + 1), FINE)
    assert early == [[]] * STEPS and late == []
    assert first == second and len(first) == 1
    assert first[0].startswith("since step 2, all responses to a prompt get the same reward")
    assert "docs/troubleshooting.md" in first[0] and len(caplog.records) == 1


@pytest.mark.parametrize(
    ("name", "said"), [("train/grad_norm", "the gradient is 0"), ("train/learning_rate", "rate is 0")]
)
@pytest.mark.parametrize("task", ["rl", "sft"])
def test_a_step_that_moves_nothing_is_said_for_every_task(name, said, task):
    sections = {"task": "sft", "data": {"train": ["/d"], "maxTokens": 8}} if task == "sft" else {}
    *early, last = after(*[FINE | {name: 0.0}] * STEPS, **sections)
    assert not any(early) and said in last[0]


@pytest.mark.parametrize("name", ["train/grad_norm", "train/learning_rate"])
def test_steps_in_which_only_the_critic_learns_are_no_sign_and_those_after_them_are(name):
    sections = {"algorithm": {"advantage": "gae"}, "critic": {"warmupSteps": STEPS + 1}}
    still = FINE | {name: 0.0}
    assert not any(after(*[still] * (STEPS + 1), FINE, **sections))
    *early, last = after(*[still] * (2 * STEPS + 1), **sections)
    assert not any(early) and last[0].startswith(f"since step {STEPS + 2}, ")


def test_a_step_in_between_that_learns_begins_the_count_anew():
    assert not any(after(*[EQUAL] * (STEPS - 1), FINE, *[EQUAL] * (STEPS - 1)))


def test_single_samples_are_not_compared_with_each_other():
    alone = {"algorithm": {"advantage": "reinforce++"}, "train": {"samplesPerPrompt": 1}}
    assert not any(after(*[FINE | {"reward/zero_std": 1.0}] * STEPS, **alone))


@pytest.mark.parametrize(
    ("name", "failed", "warns"),
    [("reward/failed", 2.0, True), ("agent/failed", 2.0, True), ("reward/failed", 1.0, False)],
)
def test_rewards_and_agents_that_fail_for_many_samples_are_said_and_few_are_not(name, failed, warns):
    """Of 40 samples of a step, 2 are a twentieth."""
    *early, last = after(*[EQUAL | {name: failed}] * STEPS, train={"promptsPerStep": 10, "samplesPerPrompt": 4})
    assert not any(early)
    assert ("leave their step, since rewards or agents fail" in last[0]) == warns


def test_failures_of_a_few_prompts_are_said_although_a_step_in_between_has_none():
    many, none = EQUAL | {"reward/failed": 8.0}, EQUAL | {"reward/failed": 0.0}
    *_, last = after(many, many, none, many, none, train={"promptsPerStep": 10, "samplesPerPrompt": 4})
    assert last and "rewards or agents fail" in last[0]
