"""The clients of the driver, one for rank 0 of each gang: blocking calls, one at a time, and heartbeats, which have no answer."""

import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rljob_api.protocol import Checkpoint
from rljob_trainer.checkpoint.manifest import Files
from rljob_trainer.failure import PeerLost
from rljob_trainer.wire.arrays import Stream, allocated, chunks, raw
from rljob_trainer.wire.batch import Array
from rljob_trainer.wire.channel import LENGTH, connect, encode

HEARTBEAT_SECONDS = 0.2
RETRY_SECONDS = 0.1
GONE = "the driver ended, and this rank with it: driver.log, next to this log, says why"
"""The last line of a rank's log, which people read first."""


class DriverLost(PeerLost):
    """The driver ended, and has written why into its own error file. See failure.PeerLost."""


class Client:
    """Calls that rank 0 of every gang makes. All raise DriverLost when the driver is gone."""

    def __init__(self, connection: socket.socket):
        self._socket = connection
        self._reader = connection.makefile("rb")
        self._heartbeats, self._sent = 0, 0.0

    def read(self, described: list[list[Any]]) -> dict[str, Array]:
        """Read the arrays that follow an answer. `described`: their names, types and lengths, from the answer."""
        found = allocated(described)
        for array in found.values():
            self.read_into(raw(array))
        return found

    def part(self, rows: Sequence[int]) -> dict[str, int]:
        """Ask for these rows of the announced batch. Returns the length of each array: measurements, then those of arrays.sizes. The arrays follow in
        this order, to be read with `read_into`."""
        return self._call("part", rows=list(rows))

    def read_into(self, block: memoryview) -> None:
        """Fill the block with the next bytes of the arrays that follow an answer."""
        while block:
            try:
                count = self._reader.readinto(block)
            except OSError:
                count = 0
            if not count:
                raise DriverLost(GONE)
            block = block[count:]

    def heartbeat(self) -> None:
        """Progress was made: a micro-batch, a bucket, a file. Sent at most five times a second, with the count of calls."""
        self._heartbeats += 1
        now = time.monotonic()
        if now - self._sent >= HEARTBEAT_SECONDS:
            self._send({"call": "heartbeat", "count": self._heartbeats})
            self._heartbeats, self._sent = 0, now

    def awaiting(self, what: str) -> None:
        """Report what rank 0 waits for; empty: nothing any more."""
        self._send({"call": "awaiting", "what": what})

    def _call(self, name: str, arrays: Stream | None = None, **arguments: Any) -> Any:
        """The answer. `arrays`: one-dimensional, sent along."""
        given = {"arrays": arrays.described} if arrays else {}
        self._send({"call": name, **arguments, **given}, arrays)
        (length,) = LENGTH.unpack(self._read(LENGTH.size))
        return json.loads(self._read(length))

    def _send(self, message: dict[str, Any], arrays: Stream | None = None) -> None:
        try:
            self._socket.sendall(encode(message))
            for chunk in chunks(arrays.pieces) if arrays else ():
                self._socket.sendall(chunk)
        except OSError:
            raise DriverLost(GONE) from None

    def _read(self, count: int) -> bytes:
        body = bytearray(count)
        self.read_into(memoryview(body))
        return bytes(body)


def heartbeat_of(client: Client | None) -> Callable[[], None]:
    """The heartbeat of a rank. Only rank 0 has a client; it cannot progress for long without the others, so its heartbeats are enough."""
    return client.heartbeat if client else lambda: None


class DriverClient(Client):
    """Calls of the trainer's rank 0."""

    @staticmethod
    def connect(path: Path, error_file: Path, seconds: float) -> "DriverClient":
        """Connect, waiting for a driver that is still starting, but not for one that has failed. Raises DriverLost."""
        starting = (FileNotFoundError, ConnectionRefusedError)
        return DriverClient(
            _connected(
                lambda: connect(path), starting, seconds, "the driver did not start: see driver.log", error_file.exists
            )
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
        """The attempt starts after `step`.

        Args:
            data: data cursor of its checkpoint; None: from the beginning
            checkpoints: those of this run, for the report
            backend: what the trainer computes with, for the report
            buffer, engine: directories of the rollout buffer and of the engine in its checkpoint; None without one
        """
        listed, places = [c.dump() for c in checkpoints], [str(place or "") for place in (buffer, engine)]
        self._call(
            "start", step=step, data=data, checkpoints=listed, backend=backend, buffer=places[0], engine=places[1]
        )

    def steps(self) -> int:
        """Steps of the whole job, once the driver has counted the data."""
        return self._call("steps")

    def colocated(self, servers: list[dict[str, Any]]) -> None:
        """Report the rollout servers in the trainer's pods, as endpoints. Those in pods of their own are listed by the operator."""
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

    def learn(self, step: int, columns: Stream) -> None:
        """Have the critic on a gang of its own learn from the batch of `step`, without waiting. `columns`: what Scatter.collect returns."""
        self._call("learn", columns, step=step)

    def learnt(self) -> dict[str, float]:
        """The metrics of the critic's update; {}: it is not done yet, ask again. Answered within about a second."""
        return self._call("learnt")

    def save_gangs(self, step: int, directory: Path, reshardable: bool) -> None:
        """See saving.OtherGangs.save."""
        self._call("save_gangs", step=step, directory=str(directory), reshardable=reshardable)

    def gangs_saved(self, step: int, wait: bool) -> dict[str, Any]:
        """See saving.OtherGangs.saved."""
        return self._call("gangs_saved", step=step, wait=wait)

    def replicas(self) -> dict[str, Any]:
        """{"replicas": [endpoint]}: the rollouts that are to get the policy of the last trained step, now that nothing is generated under the
        previous one any more; {}: something still is, ask again. Answered within about a second."""
        return self._call("replicas")

    def published(self, step: int, digest: str, failed: dict[str, str], seconds: float) -> None:
        """The rollouts that were to get the policy of `step` have it, except those in `failed` (pod -> reason)."""
        self._call("published", step=step, digest=digest, failed=failed, seconds=seconds)

    def evaluate(self, step: int) -> None:
        """Evaluate the policy of `step` if that is due, then generate what follows it. Answered at once; `next` waits for both."""
        self._call("evaluate", step=step)

    def held_out(self, step: int) -> dict[str, Any]:
        """The held-out data, as `next` answers a batch; {"over": "done"}: no evaluation of `step` is due; {}: not read yet, ask again."""
        return self._call("held_out", step=step)

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of the held-out data under the policy of `step`."""
        self._call("evaluated", step=step, metrics=dict(metrics))

    def saving(self) -> dict[str, Any]:
        """The data cursor as of the last trained step, for the checkpoint that is being made."""
        return self._call("saving")

    def save_buffer(self, directory: Path) -> None:
        """Write the contents of the rollout buffer into a new directory; an empty buffer makes none."""
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
        """Write the last progress and end. `export`: path of the exported model, empty without one."""
        self._call("end", export=export)
        self._socket.close()


class RoleClient(Client):
    """Calls of rank 0 of another gang. All raise DriverLost when the driver is gone, or does not answer within the seconds given to `connect`."""

    @staticmethod
    def connect(address: tuple[str, int], role: str, attempt: int, token: str, seconds: float) -> "RoleClient":
        """Connect, waiting for a driver that is still starting, and show the job's token. Raises DriverLost."""
        lost = f"no driver answers at {address[0]}:{address[1]}"
        connection = _connected(lambda: socket.create_connection(address, timeout=seconds), (OSError,), seconds, lost)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = RoleClient(connection)
        client._call("hello", role=role, attempt=attempt, token=token)
        return client

    def next(self) -> dict[str, Any]:
        """The next request to the role. Answered within about a second, by one of

        {"ask": "open", "steps"}               load the model, for a job of this many steps; the first request to every role
        {"ask": "measure", "batch": {...}}     as DriverClient.next describes a batch, and its columns and parts are read alike
        {"ask": "restore", "directory"}        of the critic: continue from the engine's part of a checkpoint
        {"ask": "learn", "batch": {...}}       of the critic: from the batch that it measured last, of which this one has what was measured since
        {"ask": "save", "step", "directory", "reshardable"}    of the critic: begin to write its state into the engine's part of a checkpoint
        {"over": "drained" | "succeeded"}      nothing will be asked any more
        {}                                     nothing yet: ask again
        """
        return self._call("next")

    def done(self, arrays: Stream | None = None, **found: Any) -> None:
        """Answer the last request."""
        self._call("done", arrays, **found)

    def saved(self, step: int, layout: str, files: Files) -> None:
        """All files of the save that the role had begun are on the disk."""
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
    """Call `connect` until it does not raise `starting`. Raises DriverLost with the message `lost` after `seconds`, or once `has_failed`."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return connect()
        except starting:
            if has_failed() or time.monotonic() > deadline:
                raise DriverLost(lost) from None
            time.sleep(RETRY_SECONDS)
