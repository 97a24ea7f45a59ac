"""The body of an answer of the generate route: numbers as they lie in memory, in base64. Log-probabilities arrive as the float32 that they are.

Measured with 8 responses of 1,024 tokens: 0.3 ms to write and 0.5 ms to read, as JSON lists 4.0 and 2.1.
"""

import base64
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rljob_trainer.trajectory import Floats, Ints


class Completion(NamedTuple):
    """One response as the engine has it."""

    tokens: Sequence[int] | Ints
    log_probs: Sequence[float] | Floats
    """Of each token; what float32 can hold."""
    finish_reason: str


def encode(responses: Iterable[Completion]) -> dict[str, Any]:
    """In their order."""
    return {"responses": [[_pack(r.tokens, "<i4"), _pack(r.log_probs, "<f4"), r.finish_reason] for r in responses]}


def decode(body: dict[str, Any]) -> list[Completion]:
    """What `encode` made a body of, with arrays of int32 and float32."""
    return [Completion(_unpack(t, "<i4"), _unpack(p, "<f4"), reason) for t, p, reason in body["responses"]]


def _pack(numbers: Any, kind: str) -> str:
    return base64.b64encode(np.asarray(numbers, kind).tobytes()).decode()


def _unpack(text: str, kind: str) -> Any:
    return np.frombuffer(base64.b64decode(text), kind)
