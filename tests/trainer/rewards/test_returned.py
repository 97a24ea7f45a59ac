"""Which values are rewards."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from rljob_trainer.rewards.worker import NotAReward, split


@pytest.mark.parametrize(
    "returned", [0.5, Decimal("0.5"), np.float32(0.5), np.array([0.5]), np.array(0.5), {"score": Fraction(1, 2)}]
)
def test_whatever_is_one_number_is_a_score(returned):
    assert split(returned) == (0.5, {}, None)


def test_the_other_finite_numbers_of_a_dict_are_metrics_and_the_rest_is_left_out():
    numbers = {"acc": True, "format.ok": np.bool_(False), "length/mean": Decimal("1.5"), "scalar": np.array(4.0)}
    others = {"why": None, "parts": [1], "array": np.zeros(2)}
    without_a_mean = {"unknown": math.nan, "endless": math.inf, "large": 10**400, "far": 1e39}
    metrics = {"acc": 1.0, "format.ok": 0.0, "length/mean": 1.5, "scalar": 4.0}
    assert split({"score": 1} | others | numbers | without_a_mean) == (1.0, metrics, None)


@pytest.mark.parametrize(
    ("pred", "prediction"),
    [(" 7 ", "7"), (7, "7"), ("a\ud83d", "a?"), (None, None), ("", None), ([1, 2], "[1, 2]"), ("x" * 9999, "x" * 1000)],
)
def test_a_dicts_pred_is_the_answer_that_the_response_gives_and_no_metric(pred, prediction):
    assert split({"score": 1, "pred": pred}) == (1.0, {}, prediction)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("0.5", "the text '0.5', which is not a finite number"),
        (np.str_("0.5"), "the text "),
        (b"0.5", "the text b'0.5', which is not a finite number"),
        ({"score": "72"}, "score the text '72', which is not a finite number"),
        ((0.5, {}), "'(0.5, {})', which is not a finite number"),
        ([0.5], "'[0.5]', which is not a finite number"),
        ({"score": [0.5]}, "score '[0.5]', which is not a finite number"),
        (
            None,
            "None, which is not a finite number: it ended without a return statement, or with one that has no value",
        ),
        (math.inf, "'inf', which is not a finite number"),
        (np.zeros(2), "'[0. 0.]', which is not a finite number"),
        ({"acc": 1.0, "pred": "x"}, "a dict without 'score': its keys are acc, pred"),
        ({}, "a dict without 'score': its keys are none"),
        ({"score": math.nan}, "score 'nan', which is not a finite number"),
        ({"score": 1, "a\x1b[2J": 1}, r"a metric called 'a\x1b[2J': names are 1 to 64 letters, digits"),
        ({"score": 1, "a" * 65: 1}, "a metric called 'aaaaaaaa"),
        ({"score": 1, 3: 1}, "a metric called 3: names"),
        (
            {"score": 1} | {f"m{i}": i for i in range(17)},
            "17 numbers in addition to 'score', and at most 16 become metrics",
        ),
    ],
)
def test_what_is_no_reward_is_said_in_one_sentence(returned, said):
    with pytest.raises(NotAReward) as caught:
        split(returned)
    assert str(caught.value).startswith(said) and len(str(caught.value)) < 400
