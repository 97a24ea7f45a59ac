"""Bodies between gateway and ranks of `task: service`."""

import numpy as np
import pytest

from rljob_trainer.wire.gateway import decode_result, decode_work, encode
from rljob_trainer.wire.service import (
    CreateModel,
    Datum,
    ForwardBackward,
    KeepModels,
    LoadState,
    OptimStep,
    SaveForSampler,
    SaveState,
    ServePolicy,
    Work,
    WorkFailure,
    WorkResult,
)

ONE = Datum(
    np.array([5, 6, 7], np.int32),
    np.array([6, 7, 1], np.int64),
    {"weights": np.array([0.0, -1.5, 3.0], np.float32)},
)
SEVERAL = Datum(
    np.array([5, 6], np.int32), np.array([[6, 7, 1], [0, 0, 0]], np.int64), {"weights": np.ones((2, 3), np.float32)}
)
PASS = ForwardBackward(model="m", seq=3, data=(ONE, SEVERAL), loss="ppo", config={"clip_low_threshold": 0.8})


@pytest.mark.parametrize(
    "work",
    [
        CreateModel(model="m", seq=0, rank=8, seed=2**40, attention=False),
        KeepModels(models=("m", "n")),
        PASS,
        OptimStep(model="m", seq=4, learning_rate=1e-4, grad_clip_norm=1.0),
        SaveState(model="m", seq=5, path="/runs/a"),
        LoadState(model="m", seq=6, path="/runs/a", optimizer=True),
        SaveForSampler(model="m", seq=7, path="/runs/b"),
        ServePolicy(path="/runs/b", step=3, servers=({"pod": "r-0", "podUid": "u", "url": "http://r:1"},)),
    ],
    ids=lambda work: type(work).__name__,
)
def test_every_kind_of_work_arrives_as_it_was_sent(work: Work) -> None:
    arrived = decode_work(encode(work))
    assert type(arrived) is type(work) and encode(arrived) == encode(work)


def test_arrays_keep_their_types_shapes_and_bits() -> None:
    arrived = decode_work(encode(PASS))
    assert isinstance(arrived, ForwardBackward)
    assert arrived.loss == "ppo" and arrived.config == {"clip_low_threshold": 0.8} and not arrived.forward_only
    for was, datum in zip(PASS.data, arrived.data, strict=True):
        assert datum.tokens.dtype == np.int32 and np.array_equal(datum.tokens, was.tokens)
        assert datum.targets.dtype == np.int64 and np.array_equal(datum.targets, was.targets)
        assert datum.columns["weights"].tobytes() == was.columns["weights"].tobytes()


def test_results_and_failures_are_told_apart() -> None:
    result = decode_result(
        encode(WorkResult(metrics={"loss:sum": 0.1}, log_probs=(np.full((2, 3), -0.7, np.float32),)))
    )
    assert (
        isinstance(result, WorkResult) and result.metrics == {"loss:sum": 0.1} and result.log_probs[0].shape == (2, 3)
    )
    update = decode_result(encode(WorkResult(served=("u0",), refused={"u1": "no room"})))
    assert isinstance(update, WorkResult) and update.served == ("u0",) and update.refused == {"u1": "no room"}
    assert decode_result(encode(WorkFailure(message="no"))) == WorkFailure(message="no", category="user")


BODY = encode(PASS)


@pytest.mark.parametrize(
    "body",
    [b"", BODY[:30], BODY[:-1], BODY + b"0", encode(WorkFailure(message="x")), BODY.replace(b'"<f4"', b'"<f8"')],
    ids=["empty", "cut in its JSON", "cut in its arrays", "longer", "no work", "an unknown type"],
)
def test_what_is_no_message_raises_value_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        decode_work(body)


def test_arrays_of_other_types_are_not_sent() -> None:
    with pytest.raises(TypeError, match="float64"):
        encode(WorkResult(log_probs=(np.zeros(1),)))  # type: ignore[arg-type]
