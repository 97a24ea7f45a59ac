"""Rank 0's end of the channel: blocking calls, one at a time, and beats that nobody answers."""

import json
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rljob_api.protocol import Checkpoint
from rljob_trainer.driver.frame import LENGTH, connect, encode
from rljob_trainer.failure import PeerLost

BEAT_SECONDS = 0.2
RETRY_SECONDS = 0.1


class DriverLost(PeerLost):
    """The driver ended. It has said why in its own error file; rank 0 only follows."""


class DriverClient:
    """Every call raises DriverLost when the driver is gone."""

    def __init__(self, connection: socket.socket):
        self._socket = connection
        self._reader = connection.makefile("rb")
        self._beats, self._sent = 0, 0.0

    @staticmethod
    def connect(path: Path, error_file: Path, seconds: float) -> "DriverClient":
        """Wait for a driver that is still starting, but not for one that has failed."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return DriverClient(connect(path))
            except (FileNotFoundError, ConnectionRefusedError):
                if error_file.exists() or time.monotonic() > deadline:
                    raise DriverLost("the driver did not start") from None
                time.sleep(RETRY_SECONDS)

    def start(self, step: int, data: dict[str, Any] | None, checkpoints: Sequence[Checkpoint], backend: str) -> None:
        """The attempt goes on after `step`, with the data cursor of its checkpoint (None: from the beginning)."""
        self._call("start", step=step, data=data, checkpoints=[c.dump() for c in checkpoints], backend=backend)

    def colocated(self, servers: list[dict[str, Any]]) -> None:
        """Servers in the trainer's pods, as endpoints; the operator knows of those in pods of their own."""
        self._call("colocated", servers=servers)

    def next(self) -> dict[str, Any]:
        """What all ranks do now: {"do": "publish" | "train" | "wait" | "drain" | "finish", ...}. Answered within about a second.

        After a trained step comes one publish, to nobody if need be, before anything else but waits.
        """
        return self._call("next")

    def trained(self, step: int, metrics: dict[str, float]) -> None:
        """Step `step` is done."""
        self._call("trained", step=step, metrics=metrics)

    def published(self, step: int, digest: str, failed: dict[str, str], seconds: float) -> None:
        """Those who were to get the policy of `step` have it, but for those in `failed` (by pod, with the reason)."""
        self._call("published", step=step, digest=digest, failed=failed, seconds=seconds)

    def saving(self) -> dict[str, Any]:
        """The data cursor as of the last trained step, for the checkpoint that is being made."""
        return self._call("saving")

    def saved(self, step: int, checkpoints: Sequence[Checkpoint], stall: float, background: float) -> None:
        """The checkpoint of `step` is complete; the loop waited `stall` seconds for it, and it was written in `background` seconds beside."""
        self._call("saved", step=step, checkpoints=[c.dump() for c in checkpoints], stall=stall, background=background)

    def end(self, export: str) -> None:
        """Write the last progress and leave."""
        self._call("end", export=export)
        self._socket.close()

    def beat(self) -> None:
        """A micro-batch, a bucket, a file: something moved. Sent at most five times a second."""
        self._beats += 1
        now = time.monotonic()
        if now - self._sent >= BEAT_SECONDS:
            self._send({"call": "beat", "count": self._beats})
            self._beats, self._sent = 0, now

    def _call(self, name: str, **arguments: Any) -> Any:
        self._send({"call": name, **arguments})
        (length,) = LENGTH.unpack(self._read(LENGTH.size))
        return json.loads(self._read(length))

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._socket.sendall(encode(message))
        except OSError:
            raise DriverLost("the driver is gone") from None

    def _read(self, count: int) -> bytes:
        try:
            data = self._reader.read(count)
        except OSError:
            raise DriverLost("the driver is gone") from None
        if len(data) < count:
            raise DriverLost("the driver is gone")
        return data
