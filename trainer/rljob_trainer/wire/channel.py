"""The protocol between the driver and rank 0 of a gang. A message is its length (8 bytes, big-endian), then JSON. Arrays may follow as raw bytes; the
message has their names, types and lengths.
"""

import asyncio
import json
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rljob_api.base import Wire
from rljob_trainer.wire import arrays
from rljob_trainer.wire.arrays import chunks
from rljob_trainer.wire.batch import Array, Batch

LENGTH = struct.Struct(">Q")
BUFFER_BYTES = 4 * 2**20
"""Size of the socket's send buffer, and of the pieces that are read at a time."""


class Arrays(dict[str, Any]):
    """A message that is followed by arrays."""

    def __init__(self, message: Mapping[str, Any], pieces: Iterable[Array]):
        """`pieces`: one-dimensional, in the order in which they are read."""
        super().__init__(message)
        self.pieces = pieces


def encode(message: Any) -> bytes:
    body = json.dumps(message, separators=(",", ":"), default=_as_json).encode()
    return LENGTH.pack(len(body)) + body


def _as_json(value: Any) -> Any:
    """What JSON has no form of its own for."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Wire):
        return value.dump()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"a {type(value).__name__} is not sent")


async def write(writer: asyncio.StreamWriter, answer: Any) -> None:
    """Write an answer, in chunks between which other tasks run."""
    writer.write(encode(answer))
    await writer.drain()
    for chunk in chunks(answer.pieces) if isinstance(answer, Arrays) else ():
        writer.write(chunk)
        await writer.drain()
        await asyncio.sleep(0)  # drain returns at once while the reader keeps up


def listen(path: Path) -> socket.socket:
    """Bind and listen. Called early, so that rank 0 can connect and send heartbeats while the driver still reads its data."""
    listener = socket.socket(socket.AF_UNIX)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    with _short(path) as address:
        listener.bind(address)
    listener.listen(1)
    return listener


def connect(path: Path) -> socket.socket:
    """Raises FileNotFoundError or ConnectionRefusedError while nobody listens."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        with _short(path) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """A path of the socket of at most 107 bytes, as Linux demands, however deep its directory is."""
    handle = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{path.name}"
    finally:
        os.close(handle)


def announced(batch: Batch, **further: Any) -> Arrays:
    """The announcement of a batch, followed by its columns. `further`: more fields of the message."""
    columns = batch.columns.arrays()
    described = {"step": batch.step, "metrics": dict(batch.metrics), "columns": arrays.described(columns)}
    held = {"measured": list(batch.measured), "trajectories": bool(batch.trajectories)}
    return Arrays({"batch": described | held | further}, columns.values())


def part_of(batch: Batch, rows: Sequence[int], routed: bool = True) -> Arrays:
    """Measurements of these rows, and their trajectories if the batch has any. `routed`: with the routed experts, which only the policy's own model
    can use."""
    trajectories = [batch.trajectories[row] for row in rows] if batch.trajectories else []
    if not routed:
        trajectories = [replace(t, routed_experts=None) for t in trajectories]
    measured = {name: [of_row[row] for row in rows] for name, of_row in batch.measured.items()}
    counts = {name: sum(map(len, values)) for name, values in measured.items()}
    pieces = measured | arrays.rows(trajectories)
    sizes = counts | (arrays.sizes(trajectories) if batch.trajectories else {})
    return Arrays(sizes, (piece for name in sizes for piece in pieces[name]))
