"""The answer of a rollout server's generate route: responses, whose numbers travel as they are. No torch here.

A body is the length of its description (4 bytes, big-endian), the description as JSON, and the bytes of all arrays, little-endian, one after another
as `Completion` has them. Routed experts are most of it where they are replayed: 50 MB for a response of 64k tokens of a model with 94 layers. As text
in JSON they took half a second of the server's event loop and as much of the driver's, in which nobody else was served.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from rljob_trainer.wire.arrays import chunks
from rljob_trainer.wire.batch import Array
from rljob_trainer.wire.trajectory import Experts, Floats, Ints

MEDIA_TYPE = "application/octet-stream"
TOKENS, LOG_PROBS = np.dtype("<i4"), np.dtype("<f4")
INDEX: dict[int, np.dtype[Any]] = {1: np.dtype("|u1"), 2: np.dtype("<i2")}
"""Type of the number of an expert, by its bytes."""
LENGTH, ALIGNED = 4, 4
"""Bytes of the description's length; of which the place of every array is a multiple, or of its type's."""


class Completion(NamedTuple):
    """One response of the engine."""

    tokens: Sequence[int] | Ints
    log_probs: Sequence[float] | Floats
    """One for each token, float32."""
    finish_reason: str
    routed_experts: Experts | None = None
    """See Trajectory.routed_experts."""
    later: Sequence[tuple[int, int]] = ()
    """(tokens before, step) of each policy that came while the response was generated, in that order."""
    guesses: tuple[int, int] = (0, 0)
    """Passes that read guessed tokens, and right guesses in all of them, on servers that speculate."""


class AnswerBody(NamedTuple):
    """The body of an answer."""

    size: int
    """Bytes."""
    pieces: Iterator[bytes]
    """One after another, of about a megabyte."""


def encode(responses: Sequence[Completion]) -> AnswerBody:
    """The answer with these responses."""
    numbers, experts = map(_numbers, responses), map(_experts, responses)
    arrays = [*chain.from_iterable(numbers), *chain.from_iterable(experts)]
    text = json.dumps([_described(response) for response in responses]).encode()
    text += b" " * (-len(text) % ALIGNED)
    head = np.frombuffer(len(text).to_bytes(LENGTH, "big") + text, np.uint8)
    return AnswerBody(head.nbytes + sum(array.nbytes for array in arrays), chunks([head, *arrays]))


def decode(body: Array) -> list[Completion]:
    """The responses in a body, whose arrays are views of it. Raises ValueError for what `encode` has not made."""
    start = LENGTH + int.from_bytes(body[:LENGTH].tobytes(), "big")
    descriptions = json.loads(body[LENGTH:start].tobytes())
    cutter = _Cutter(body, start)
    numbers = [(cutter.next(TOKENS, count), cutter.next(LOG_PROBS, count)) for count, *_ in descriptions]
    found = [
        Completion(*own, reason, _shaped(cutter, experts), [(a, b) for a, b in later], (passes, right))
        for own, (_, reason, experts, later, (passes, right)) in zip(numbers, descriptions, strict=True)
    ]
    if cutter.at != len(body):
        raise ValueError(f"an answer of {len(body)} bytes in place of {cutter.at}")
    return found


def _described(response: Completion) -> list[Any]:
    experts = response.routed_experts
    shape = None if experts is None else [experts.itemsize, *experts.shape]
    return [len(response.tokens), response.finish_reason, shape, list(response.later), list(response.guesses)]


def _numbers(response: Completion) -> list[Array]:
    return [np.asarray(response.tokens, TOKENS), np.asarray(response.log_probs, LOG_PROBS)]


def _experts(response: Completion) -> list[Array]:
    experts = response.routed_experts
    return [] if experts is None else [np.ascontiguousarray(experts, INDEX[experts.itemsize]).reshape(-1)]


def _shaped(cutter: "_Cutter", description: list[int] | None) -> Experts | None:
    if description is None:
        return None
    width, *shape = description
    return cutter.next(INDEX[width], int(np.prod(shape))).reshape(shape)


class _Cutter:
    """Cuts arrays from a body, one after another."""

    def __init__(self, body: Array, at: int) -> None:
        self._body, self.at = body, at

    def next(self, kind: np.dtype[Any], count: int) -> Array:
        """Raises ValueError where the body is too short."""
        begin, self.at = self.at, self.at + count * kind.itemsize
        if self.at > len(self._body):
            raise ValueError(f"an answer of {len(self._body)} bytes, and more is described")
        return self._body[begin : self.at].view(kind)
