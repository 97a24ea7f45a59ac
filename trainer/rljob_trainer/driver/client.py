"""Rank 0's end of the channel: blocking calls, one at a time, and heartbeats that nobody answers."""

import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rljob_api.protocol import Checkpoint
from rljob_trainer.arrays import Array, allocated, chunks, described, raw
from rljob_trainer.checkpoint.manifest import Files
from rljob_trainer.driver.channel import LENGTH, connect, encode
from rljob_trainer.failure import PeerLost

HEARTBEAT_SECONDS = 0.2
RETRY_SECONDS = 0.1


class DriverLost(PeerLost):
    """The driver ended. It has said why in its own error file; who raises this only follows."""


class Client:
    """What rank 0 of every gang asks the driver alike. Every call raises DriverLost when the driver is gone."""

    def __init__(self, connection: socket.socket):
        self._socket = connection
        self._reader = connection.makefile("rb")
        self._heartbeats, self._sent = 0, 0.0

    def read(self, described: list[list[Any]]) -> dict[str, Array]:
        """The arrays behind an answer, by name; `described`: name, type and length of each, as the answer says."""
        found = allocated(described)
        for array in found.values():
            self.read_into(raw(array))
        return found

    def part(self, rows: Sequence[int]) -> dict[str, int]:
        """Some trajectories of the batch, by their rows: how many numbers each of their arrays has: those that were measured, and arrays.sizes.
        The arrays follow in this order, for `read_into`."""
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

    def heartbeat(self) -> None:
        """A micro-batch, a bucket, a file: something moved. Sent at most five times a second."""
        self._heartbeats += 1
        now = time.monotonic()
        if now - self._sent >= HEARTBEAT_SECONDS:
            self._send({"call": "heartbeat", "count": self._heartbeats})
            self._heartbeats, self._sent = 0, now

    def _call(self, name: str, arrays: Mapping[str, Array] | None = None, **arguments: Any) -> Any:
        """The answer. `arrays`: one-dimensional, sent along."""
        given = {"arrays": described(arrays)} if arrays is not None else {}
        self._send({"call": name, **arguments, **given}, arrays)
        (length,) = LENGTH.unpack(self._read(LENGTH.size))
        return json.loads(self._read(length))

    def _send(self, message: dict[str, Any], arrays: Mapping[str, Array] | None = None) -> None:
        try:
            self._socket.sendall(encode(message))
            for chunk in chunks(arrays.values()) if arrays else ():
                self._socket.sendall(chunk)
        except OSError:
            raise DriverLost("the driver is gone") from None

    def _read(self, count: int) -> bytes:
        body = bytearray(count)
        self.read_into(memoryview(body))
        return bytes(body)


def heartbeat_of(client: Client | None) -> Callable[[], None]:
    """Of this rank. Only the first rank has a client: what the others do shows in what the first can do."""
    return client.heartbeat if client else lambda: None


class DriverClient(Client):
    """Of the trainer's rank 0."""

    @staticmethod
    def connect(path: Path, error_file: Path, seconds: float) -> "DriverClient":
        """Wait for a driver that is still starting, but not for one that has failed."""
        starting = (FileNotFoundError, ConnectionRefusedError)
        return DriverClient(
            _connected(lambda: connect(path), starting, seconds, "the driver did not start", error_file.exists)
        )

    def start(
        self,
        step: int,
        data: dict[str, Any] | None,
        checkpoints: Sequence[Checkpoint],
        backend: str,
        buffer: Path | None = None,
        engine: Path | None = None,
    ) -> None:
        """The attempt continues after `step`, with the data cursor of its checkpoint (None: from the beginning), and with the rollout buffer and the
        engine's part of it in these directories, if there are any."""
        listed, places = [c.dump() for c in checkpoints], [str(place or "") for place in (buffer, engine)]
        self._call(
            "start", step=step, data=data, checkpoints=listed, backend=backend, buffer=places[0], engine=places[1]
        )

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

    def trained(self, step: int, metrics: Mapping[str, float]) -> None:
        """Step `step` is done."""
        self._call("trained", step=step, metrics=dict(metrics))

    def learn(self, step: int, columns: Mapping[str, Array]) -> None:
        """The critic on ranks of its own learns from the batch of `step`, with these columns of it, [response tokens] each. Not waited for."""
        self._call("learn", columns, step=step)

    def learnt(self) -> dict[str, float]:
        """The critic's metrics, once it has learnt; {}: not yet, ask again. Answered within about a second."""
        return self._call("learnt")

    def save_gangs(self, step: int, directory: Path, reshardable: bool) -> None:
        """See saving.OtherGangs.save."""
        self._call("save_gangs", step=step, directory=str(directory), reshardable=reshardable)

    def gangs_saved(self, step: int, wait: bool) -> dict[str, Any]:
        """See saving.OtherGangs.saved."""
        return self._call("gangs_saved", step=step, wait=wait)

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

    def connected(self, transports: str) -> None:
        """How NCCL connects the ranks, in a sentence for people."""
        self._call("connected", transports=transports)

    def exported(self, directory: Path) -> None:
        """A Hugging Face directory is complete."""
        self._call("exported", directory=str(directory))

    def uploaded(self) -> bool:
        """Whether all checkpoints and exports are in spec.checkpoint.upload; not waited for in a drain. Answered within about a second."""
        return self._call("uploaded")

    def end(self, export: str) -> None:
        """Write the last progress and leave."""
        self._call("end", export=export)
        self._socket.close()


class RoleClient(Client):
    """Every call raises DriverLost when the driver is gone, or says nothing for as long as `connect` was given."""

    @staticmethod
    def connect(address: tuple[str, int], role: str, attempt: int, token: str, seconds: float) -> "RoleClient":
        """Wait for a driver that is still starting. Raises DriverLost."""
        lost = f"no driver answers at {address[0]}:{address[1]}"
        connection = _connected(lambda: socket.create_connection(address, timeout=seconds), (OSError,), seconds, lost)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = RoleClient(connection)
        client._call("hello", role=role, attempt=attempt, token=token)
        return client

    def next(self) -> dict[str, Any]:
        """What the role is to do. Answered within about a second, by one of

        {"ask": "open", "steps"}               load the model, for a job of so many steps: what is asked first, of every role
        {"ask": "measure", "batch": {...}}     as DriverClient.next describes a batch, and its columns and parts are read alike
        {"ask": "restore", "directory"}        of the critic: continue from the engine's part of a checkpoint
        {"ask": "learn", "step", "arrays"}     of the critic: from the batch that it measured last, with these columns, whose arrays follow
        {"ask": "save", "step", "directory", "reshardable"}    of the critic: begin to write its state into the engine's part of a checkpoint
        {"over": "drained" | "succeeded"}      nothing will be asked any more
        {}                                     nothing yet: ask again
        """
        return self._call("next")

    def done(self, arrays: Mapping[str, Array] | None = None, **found: Any) -> None:
        """What was asked is done, with this result."""
        self._call("done", arrays, **found)

    def saved(self, step: int, layout: str, files: Files) -> None:
        """All of what the role had begun to write is on the disk."""
        self._call("saved", step=step, layout=layout, files=files)

    def end(self) -> None:
        self._call("end")
        self._socket.close()


def _connected(
    connect: Callable[[], socket.socket],
    starting: tuple[type[OSError], ...],
    seconds: float,
    lost: str,
    has_failed: Callable[[], bool] = lambda: False,
) -> socket.socket:
    """Waits for a driver of which `connect` raises `starting`. Raises DriverLost with `lost` after `seconds`, or once it has failed."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return connect()
        except starting:
            if has_failed() or time.monotonic() > deadline:
                raise DriverLost(lost) from None
            time.sleep(RETRY_SECONDS)
