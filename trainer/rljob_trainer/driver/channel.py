"""The socket between the driver and rank 0. A message is 8 bytes of length, big-endian, then JSON; behind an answer may lie arrays, as they lie
in memory. What describes them is in the message.
"""

import asyncio
import json
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rljob_trainer import arrays
from rljob_trainer.arrays import Array, chunks
from rljob_trainer.batch import Batch

LENGTH = struct.Struct(">Q")
BUFFER_BYTES = 4 * 2**20
"""Of the socket."""


@dataclass(frozen=True, slots=True)
class Arrays:
    """An answer of more than JSON."""

    message: Any
    pieces: Iterable[Array]
    """One-dimensional, in the order in which they are read."""


def encode(message: Any) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    return LENGTH.pack(len(body)) + body


async def write(writer: asyncio.StreamWriter, answer: Any) -> None:
    """The answer, in pieces between which others may run."""
    writer.write(encode(answer.message if isinstance(answer, Arrays) else answer))
    await writer.drain()
    for chunk in chunks(answer.pieces) if isinstance(answer, Arrays) else ():
        writer.write(chunk)
        await writer.drain()
        await asyncio.sleep(0)  # a reader that keeps up would never let others run


def listen(path: Path) -> socket.socket:
    """Early, so that rank 0 can connect and send heartbeats while the driver still reads its data."""
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
    """A name of the socket within the 107 bytes that Linux allows, however deep its directory is."""
    handle = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{path.name}"
    finally:
        os.close(handle)


def announced(batch: Batch, **further: Any) -> Arrays:
    """What a rank gets of a batch: its columns, and what describes them. `further`: of the answer, in addition."""
    columns = batch.columns.arrays()
    described = {"step": batch.step, "metrics": dict(batch.metrics), "columns": arrays.described(columns)}
    return Arrays({"batch": described | {"measured": list(batch.measured)} | further}, columns.values())


def part_of(batch: Batch, rows: Sequence[int], routed: bool = True) -> Arrays:
    """What was measured of these rows, and their trajectories. `routed`: with their experts, which are the policy's."""
    trajectories = [batch.trajectories[row] for row in rows]
    if not routed:
        trajectories = [replace(t, routed_experts=None) for t in trajectories]
    measured = {name: [of_row[row] for row in rows] for name, of_row in batch.measured.items()}
    counts = {name: sum(map(len, values)) for name, values in measured.items()}
    pieces = measured | arrays.rows(trajectories)
    sizes = counts | arrays.sizes(trajectories)
    return Arrays(sizes, (piece for name in sizes for piece in pieces[name]))
