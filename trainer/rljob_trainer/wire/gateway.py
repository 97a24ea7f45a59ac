"""What the driver of a service and the gateway say to each other, over HTTP. Bodies are those of the messages of service.py.

    POST NEXT    {"rollouts": [endpoints of the servers], "failed": number of the newest attempt that failed by what its own processes did}
                 200: a piece of work, with its ticket; 204: there is none now
    POST DONE    the result of the piece with the ticket   204

Every request has the job's token (Authorization), and names the job, the attempt and the driver. A driver asks for work only after the gateway has
taken the result of the last piece. One of a lower attempt is answered 409, and has to end.

A body is one block of bytes: the length of its JSON (8 bytes, big-endian), the JSON, then the arrays one after another, little-endian. The JSON has
the message with the number of an array in place of each, and type and shape of all arrays. `decode` checks everything that it reads by types, and
raises ValueError. No torch here.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from rljob_trainer.wire.batch import Array
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

NEXT = "/work/next"
DONE = "/work/done"
DRAINING = "draining"
"""Parameter of NEXT: the job is to end, and only checkpoints are wanted. 204 means then that there are none."""
JOB = "X-RLJob-Job"
"""UID of the job."""
DRIVER = "X-RLJob-Driver"
"""Name of the driver's process: its ranks know what they were given since it began, and nothing else."""
TICKET = "X-RLJob-Ticket"
SUPERSEDED = 3
"""Exit code of a gateway that has found another one at its journals."""
NEXT_SECONDS = 0.5
"""Longest wait for work: meanwhile the ranks wait for the driver."""
_KINDS = ("<i4", "<i8", "<f4")
_LENGTH = struct.Struct(">Q")
_ARRAY = "array"
_ARRAYS = ConfigDict(arbitrary_types_allowed=True)


def encode(message: Work | WorkResult | WorkFailure) -> bytes:
    """The body of a message."""
    arrays: list[Array] = []
    lowered = _lowered(message, arrays)
    described = [[array.dtype.str, list(array.shape)] for array in arrays]
    head = json.dumps({"kind": type(message).__name__, "message": lowered, "arrays": described}).encode()
    return b"".join([_LENGTH.pack(len(head)), head, *(array.tobytes() for array in arrays)])


def decode_work(body: bytes | memoryview) -> Work:
    """The inverse of `encode`; arrays are views of the body. Raises ValueError."""
    return _decode(body, _WORK)


def decode_result(body: bytes | memoryview) -> WorkResult | WorkFailure:
    """The inverse of `encode`; arrays are views of the body. Raises ValueError."""
    return _decode(body, _RESULTS)


def _readers(*kinds: Any) -> dict[str, TypeAdapter[Any]]:
    for kind in (*kinds, Datum):
        kind.__pydantic_config__ = _ARRAYS
    return {kind.__name__: TypeAdapter(kind) for kind in kinds}


def _lowered(value: Any, arrays: list[Array]) -> Any:
    """The value as JSON. Its arrays are appended to `arrays`."""
    if isinstance(value, np.ndarray):
        if value.dtype.str not in _KINDS:
            raise TypeError(f"an array of {value.dtype} is not sent")
        arrays.append(value)
        return {_ARRAY: len(arrays) - 1}
    if is_dataclass(value):
        kind: Any = type(value)
        return {name: _lowered(getattr(value, name), arrays) for name in _names(kind)}
    if isinstance(value, Mapping):
        return {name: _lowered(v, arrays) for name, v in value.items()}
    return [_lowered(v, arrays) for v in value] if isinstance(value, tuple | list) else value


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _raised(value: Any, arrays: list[Array]) -> Any:
    """The inverse of `_lowered`, with dictionaries for dataclasses."""
    if isinstance(value, dict):
        if value.keys() == {_ARRAY}:
            return arrays[value[_ARRAY]]
        return {name: _raised(v, arrays) for name, v in value.items()}
    return [_raised(v, arrays) for v in value] if isinstance(value, list) else value


def _decode(body: bytes | memoryview, readers: Mapping[str, TypeAdapter[Any]]) -> Any:
    try:
        (length,) = _LENGTH.unpack_from(body)
        start = _LENGTH.size + length
        head = json.loads(bytes(body[_LENGTH.size : start]))
        arrays = list(_arrays(memoryview(body)[start:], head["arrays"]))
        return readers[head["kind"]].validate_python(_raised(head["message"], arrays))
    except (struct.error, LookupError, TypeError, ValidationError) as error:
        raise ValueError(f"this is no message of a service: {error}") from error


def _arrays(block: memoryview, described: list[list[Any]]) -> Iterator[Array]:
    at = 0
    for kind, shape in described:
        if kind not in _KINDS:
            raise ValueError(f"arrays have no type {kind}")
        count = prod(shape)
        yield np.frombuffer(block, kind, count, at).reshape(shape)
        at += count * np.dtype(kind).itemsize
    if at != len(block):
        raise ValueError(f"{len(block)} bytes follow, where {at} are described")


_WORK = _readers(CreateModel, KeepModels, ForwardBackward, OptimStep, SaveState, LoadState, SaveForSampler, ServePolicy)
_RESULTS = _readers(WorkResult, WorkFailure)
