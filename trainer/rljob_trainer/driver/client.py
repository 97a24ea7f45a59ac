"""Rank 0's end of the channel: blocking calls, one at a time, and heartbeats that nobody answers."""

import json
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rljob_api.protocol import Checkpoint
from rljob_trainer.arrays import Array, allocated, raw
from rljob_trainer.driver.channel import LENGTH, connect, encode
from rljob_trainer.failure import PeerLost

HEARTBEAT_SECONDS = 0.2
RETRY_SECONDS = 0.1


class DriverLost(PeerLost):
    """The driver ended. It has said why in its own error file; rank 0 only follows."""


class DriverClient:
    """Every call raises DriverLost when the driver is gone."""

    def __init__(self, connection: socket.socket):
        self._socket = connection
        self._reader = connection.makefile("rb")
        self._heartbeats, self._sent = 0, 0.0

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

    def start(
        self,
        step: int,
        data: dict[str, Any] | None,
        checkpoints: Sequence[Checkpoint],
        backend: str,
        buffer: Path | None = None,
    ) -> None:
        """The attempt continues after `step`, with the data cursor of its checkpoint (None: from the beginning) and the rollout buffer in that
        directory, if there is one."""
        listed = [c.dump() for c in checkpoints]
        self._call("start", step=step, data=data, buffer=str(buffer or ""), checkpoints=listed, backend=backend)

    def steps(self) -> int:
        """Of the whole job, once the driver has counted the data."""
        return self._call("steps")

    def colocated(self, servers: list[dict[str, Any]]) -> None:
        """Servers in the trainer's pods, as endpoints; the operator knows of those in pods of their own."""
        self._call("colocated", servers=servers)

    def next(self) -> dict[str, Any]:
        """The next batch, or what there is instead of it. Answered within about a second, by one of

        {"batch": {"step", "metrics", "columns", "probe"}}   read its columns with `read`, then its trajectories in parts with `part`; the
                                    probe is what to ask rollouts about (parity.py)
        {"newcomers": [endpoint]}                   rollouts that need the policy of the last step and have never had one, or have lost it
        {"over": "drained" | "succeeded"}           no batch will come any more
        {}                                          nothing yet: ask again
        """
        return self._call("next")

    def read(self, described: list[list[Any]]) -> dict[str, Array]:
        """The arrays behind an answer, by name; `described`: name, type and length of each, as the answer says."""
        found = allocated(described)
        for array in found.values():
            self.read_into(raw(array))
        return found

    def part(self, rows: Sequence[int]) -> dict[str, int]:
        """Some trajectories of the batch, by their rows: how many numbers each of their arrays has (arrays.sizes). The arrays
        follow in the order of arrays.KINDS, for `read_into`."""
        return self._call("part", rows=list(rows))

    def read_into(self, block: memoryview) -> None:
        """The next bytes of the arrays behind an answer."""
        while block:
            try:
                count = self._reader.readinto(block)
            except OSError:
                count = 0
            if not count:
                raise DriverLost("the driver is gone")
            block = block[count:]

    def trained(self, step: int, metrics: Mapping[str, float]) -> None:
        """Step `step` is done."""
        self._call("trained", step=step, metrics=dict(metrics))

    def replicas(self) -> dict[str, Any]:
        """{"replicas": [endpoint]}: who is to get the policy of the step that was trained last, now that nothing is generated under the one
        before; {}: that is still going on, ask again. Answered within about a second."""
        return self._call("replicas")

    def published(self, step: int, digest: str, failed: dict[str, str], seconds: float) -> None:
        """Those who were to get the policy of `step` have it, but for those in `failed` (by pod, with the reason)."""
        self._call("published", step=step, digest=digest, failed=failed, seconds=seconds)

    def evaluate(self, step: int) -> None:
        """Evaluate the policy of `step` if that is due, then generate what follows it. Answered at once; `next` waits for both."""
        self._call("evaluate", step=step)

    def held_out(self, step: int) -> dict[str, Any]:
        """The held-out data, as `next` answers a batch; {"over": "done"}: no evaluation of `step` is due; {}: not read yet, ask again."""
        return self._call("held_out", step=step)

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """What was measured of the held-out data under the policy of `step`."""
        self._call("evaluated", step=step, metrics=dict(metrics))

    def saving(self) -> dict[str, Any]:
        """The data cursor as of the last trained step, for the checkpoint that is being made."""
        return self._call("saving")

    def save_buffer(self, directory: Path) -> None:
        """Write what the rollout buffer holds into a directory that this makes, if it holds anything."""
        self._call("save_buffer", directory=str(directory))

    def saved(self, step: int, checkpoints: Sequence[Checkpoint], stall: float, background: float) -> None:
        """The checkpoint of `step` is complete; the loop waited `stall` seconds for it, and it was written alongside in `background` seconds."""
        self._call("saved", step=step, checkpoints=[c.dump() for c in checkpoints], stall=stall, background=background)

    def end(self, export: str) -> None:
        """Write the last progress and leave."""
        self._call("end", export=export)
        self._socket.close()

    def heartbeat(self) -> None:
        """A micro-batch, a bucket, a file: something moved. Sent at most five times a second."""
        self._heartbeats += 1
        now = time.monotonic()
        if now - self._sent >= HEARTBEAT_SECONDS:
            self._send({"call": "heartbeat", "count": self._heartbeats})
            self._heartbeats, self._sent = 0, now

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
        body = bytearray(count)
        self.read_into(memoryview(body))
        return bytes(body)
