"""Losses of a service's clients, against their formulas and derivatives in plain numbers."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from rljob_trainer.algorithm.client_losses import LOSSES, loss_of, total
from rljob_trainer.algorithm.tokens import Sequences
from rljob_trainer.wire.service import Datum, ForwardBackward, RefusedWork

LOG_PROBS = [-0.2, -1.0, -3.0, -0.7, -2.0]
OLD = [-0.2, -0.5, -3.1, -1.9, -1.3]
ADVANTAGES = [1.0, -2.0, 0.5, 3.0, -0.25]
MASK = [0.0, 1.0, 1.0, 1.0, 0.0]
CLOSE = 1e-6


def ratio(i: int) -> float:
    return math.exp(LOG_PROBS[i] - OLD[i])


def clipped(x: float, low: float = 0.8, high: float = 1.2) -> float:
    return min(max(x, low), high)


def minimum(x: float, i: int, low: float = 0.8, high: float = 1.2) -> tuple[float, float]:
    """Loss and derivative of the clipped surrogate at the ratio x, whose own derivative is x."""
    a = ADVANTAGES[i]
    active = x * a <= clipped(x, low, high) * a
    return -min(x * a, clipped(x, low, high) * a), -x * a if active else 0.0


def sequence_ratio() -> float:
    chosen = [LOG_PROBS[i] - OLD[i] for i in range(5) if MASK[i]]
    return math.exp(sum(chosen) / len(chosen))


Oracle = Callable[[int], tuple[float, float]]
"""Position -> loss, and its derivative with respect to the log-probability."""
CASES: dict[str, tuple[str, dict[str, float], Oracle]] = {
    "cross entropy": ("cross_entropy", {}, lambda i: (-ADVANTAGES[i] * LOG_PROBS[i], -ADVANTAGES[i])),
    "importance sampling": ("importance_sampling", {}, lambda i: (-ratio(i) * ADVANTAGES[i],) * 2),
    "ppo": ("ppo", {}, lambda i: minimum(ratio(i), i)),
    "ppo, other bounds": (
        "ppo",
        {"clip_low_threshold": 0.1, "clip_high_threshold": 3.5},
        lambda i: minimum(ratio(i), i, 0.1, 3.5),
    ),
    "ppo, bounds at the ratio": (
        "ppo",
        {"clip_low_threshold": 1.0, "clip_high_threshold": 1.0},
        lambda i: minimum(ratio(i), i, 1.0, 1.0),
    ),
    "cispo": (
        "cispo",
        {},
        lambda i: (-clipped(ratio(i)) * ADVANTAGES[i] * LOG_PROBS[i], -clipped(ratio(i)) * ADVANTAGES[i]),
    ),
    "dro": (
        "dro",
        {"beta": 0.3},
        lambda i: (
            -ADVANTAGES[i] * LOG_PROBS[i] + 0.15 * (LOG_PROBS[i] - OLD[i]) ** 2,
            -ADVANTAGES[i] + 0.3 * (LOG_PROBS[i] - OLD[i]),
        ),
    ),
    "gspo": ("gspo", {"clip_high_threshold": 5.0}, lambda i: minimum(sequence_ratio(), i, 0.8, 5.0)),
}


def column(values: list[float]) -> torch.Tensor:
    return torch.tensor(values)[:, None]


def columns_of(loss: str) -> dict[str, list[float]]:
    known = {"weights": ADVANTAGES, "logprobs": OLD, "advantages": ADVANTAGES, "sequence_ratio_mask": MASK}
    return {name: known[name] for name in LOSSES[loss].needs}


@pytest.mark.parametrize("case", CASES)
def test_losses_and_derivatives_are_those_of_the_formulas(case: str) -> None:
    loss, config, oracle = CASES[case]
    log_probs = column(LOG_PROBS).requires_grad_()
    columns = {name: column(values) for name, values in columns_of(loss).items()}
    found = LOSSES[loss].function(log_probs, columns, config, Sequences(torch.zeros(5, dtype=torch.long), 1))
    found.sum().backward()
    values, slopes = found[:, 0].tolist(), [] if log_probs.grad is None else log_probs.grad[:, 0].tolist()
    for i in range(5):
        value, derivative = oracle(i)
        assert values[i] == pytest.approx(value, rel=CLOSE), f"loss at {i}"
        assert slopes[i] == pytest.approx(derivative, rel=CLOSE), f"derivative at {i}"


def work_of(loss: str, **config: float) -> ForwardBackward:
    arrays = {name: np.array(values, np.float32) for name, values in columns_of(loss).items()}
    datum = Datum(np.arange(5, dtype=np.int32), np.arange(5, dtype=np.int64), arrays)
    return ForwardBackward(model="m", seq=1, data=(datum,), loss=loss, config=config)


@pytest.mark.parametrize("case", CASES)
def test_the_loss_of_a_call_is_the_sum_over_its_data(case: str) -> None:
    loss, config, oracle = CASES[case]
    work = work_of(loss, **config)
    twice = replace(work, data=work.data * 2)
    log_probs = (np.array(LOG_PROBS, np.float32),) * 2
    assert total(loss_of(twice, 5), twice, log_probs) == pytest.approx(2 * sum(oracle(i)[0] for i in range(5)))


def test_a_loss_that_is_not_finite_is_reported_and_ends_nothing() -> None:
    """The first datum's is infinite, the second one's minus infinite."""
    datum = work_of("importance_sampling").data[0]
    old = np.full(5, -1e30, np.float32)
    infinite = [{"logprobs": old, "advantages": np.full(5, sign, np.float32)} for sign in (-1, 1)]
    data = tuple(replace(datum, columns=columns) for columns in infinite)
    work = replace(work_of("importance_sampling"), data=data)
    assert math.isnan(total(loss_of(work, 5), work, (np.array(LOG_PROBS, np.float32),) * 2))


def test_bounds_may_be_columns_of_the_data() -> None:
    columns = {name: column(values) for name, values in columns_of("ppo").items()}
    columns |= {"clip_low_threshold": column([0.5] * 5), "clip_high_threshold": column([1.0, 1.1, 1.2, 1.3, 1.4])}
    found = LOSSES["ppo"].function(column(LOG_PROBS), columns, {}, Sequences(torch.zeros(5, dtype=torch.long), 1))
    expected = [minimum(ratio(i), i, 0.5, 1.0 + i / 10)[0] for i in range(5)]
    assert found[:, 0].tolist() == pytest.approx(expected, rel=CLOSE)


def several(**changes: object) -> ForwardBackward:
    work = work_of("cross_entropy")
    datum = replace(work.data[0], **changes)  # type: ignore[arg-type]
    return replace(work, data=(*work.data, datum))


def with_bounds() -> Datum:
    datum = work_of("ppo").data[0]
    return replace(datum, columns={**datum.columns, "clip_low_threshold": np.ones(5, np.float32)})


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (replace(work_of("ppo"), loss="stable_reinforce"), "the loss stable_reinforce is not served: choose one of cr"),
        (work_of("cross_entropy", beta=1.0), "reads no beta"),
        (work_of("dro", beta=math.inf), "beta is inf"),
        (work_of("dro", beta=math.nan), "beta is nan"),
        (
            work_of("cispo", clip_high_threshold=1e39),
            r"clip_high_threshold is 1e\+39; the loss cispo takes numbers from",
        ),
        (work_of("ppo", clip_low_threshold=-1e39), r"clip_low_threshold is -1e\+39"),
        (replace(work_of("ppo"), data=()), "there is no datum"),
        (several(tokens=np.array([], np.int32)), "datum 1: it has no tokens"),
        (several(targets=np.zeros(4, np.int64)), r"datum 1: its targets have the shape \(4,\)"),
        (several(targets=np.zeros((5, 0), np.int64)), r"its targets have the shape \(5, 0\)"),
        (several(targets=np.zeros((5, 129), np.int64)), "129 targets at each position, and the loss takes 128"),
        (several(tokens=np.array([0, 1, 2, 3, 5], np.int32)), "its tokens are not all within the model's vocabulary"),
        (several(targets=np.array([0, 1, 2, -1, 3])), "its targets are not all within the model's vocabulary of 5"),
        (several(columns={}), "datum 1: it has no weights"),
        (replace(work_of("ppo"), loss="gspo"), "datum 0: it has no sequence_ratio_mask"),
        (replace(work_of("ppo"), loss="cross_entropy"), "datum 0: it has no weights"),
        (replace(work_of("gspo"), loss="ppo"), "it has sequence_ratio_mask, which the loss does not read"),
        (several(columns={"weights": np.ones((5, 2), np.float32)}), r"its weights have the shape \(5, 2\)"),
        (
            replace(work_of("ppo"), data=(work_of("ppo").data[0], with_bounds())),
            "datum 1: clip_low_threshold must be in all data or in none",
        ),
        (several(columns={"weights": np.full(5, np.nan, np.float32)}), "its weights are not all finite"),
    ],
)
def test_work_that_the_loss_cannot_read_is_refused(work: ForwardBackward, message: str) -> None:
    with pytest.raises(RefusedWork, match=message):
        loss_of(work, vocabulary=5)
