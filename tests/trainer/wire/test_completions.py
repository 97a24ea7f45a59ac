"""Answers of the generate route: what is written is read, and large ones hold up nobody's event loop."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from hypothesis.extra.numpy import array_shapes, arrays

from rljob_trainer.wire.completions import AnswerBody, Completion, decode, encode

NUMBERS = some.floats(width=32, allow_nan=False)


@some.composite
def completions(draw: some.DrawFn) -> list[Completion]:
    kind = draw(some.sampled_from([None, np.uint8, np.int16]))
    found = []
    for tokens in draw(some.lists(some.lists(some.integers(0, 2**31 - 1), max_size=5), max_size=4)):
        log_probs = draw(some.lists(NUMBERS, min_size=len(tokens), max_size=len(tokens)))
        experts = draw(some.none() | arrays(kind, array_shapes(min_dims=3, max_dims=3))) if kind else None
        later = draw(some.lists(some.tuples(some.integers(0, 9), some.integers(0, 9)), max_size=2))
        found.append(Completion(tokens, log_probs, "stop", experts, later, draw(some.sampled_from([(0, 0), (5, 4)]))))
    return found


def body_of(answer: AnswerBody) -> np.ndarray:
    return np.frombuffer(b"".join(answer.pieces), np.uint8)


def plain(one: Completion) -> tuple:
    experts = one.routed_experts
    numbers = [*map(int, one.tokens)], [*map(float, one.log_probs)]
    return (
        *numbers,
        one.finish_reason,
        [*one.later],
        one.guesses,
        experts is not None and (experts.dtype, experts.tolist()),
    )


@given(completions())
def test_what_is_written_is_read_as_aligned_views_of_the_body(sent: list[Completion]) -> None:
    answer = encode(sent)
    body = body_of(answer)
    assert len(body) == answer.size
    found = decode(body)
    assert [plain(one) for one in found] == [plain(one) for one in sent]
    for one in found:
        held = [array for array in (one.tokens, one.log_probs, one.routed_experts) if array is not None and array.size]
        assert all(np.shares_memory(array, body) and array.flags.aligned for array in held)


@pytest.mark.parametrize("cut", [lambda body: body[:-1], lambda body: np.append(body, body[:1])], ids=["less", "more"])
def test_an_answer_of_another_length_than_it_says_is_refused(cut) -> None:
    body = body_of(encode([Completion([1, 2], [-1.0, -2.0], "stop", np.ones((2, 2, 2), np.uint8))]))
    with pytest.raises(ValueError, match="an answer of"):
        decode(cut(body))


def test_experts_are_written_as_the_bytes_that_they_are() -> None:
    experts = np.ones((1000, 94, 8), np.uint8)
    answer = encode([Completion([1], [-1.0], "stop", experts)])
    pieces = [*answer.pieces]
    assert experts.nbytes < answer.size < experts.nbytes + 200 and max(map(len, pieces)) <= 2**20 + 200
