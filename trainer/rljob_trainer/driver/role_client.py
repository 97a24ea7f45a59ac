"""The driver, as rank 0 of a role on ranks of its own sees it."""

import socket
import time
from collections.abc import Mapping
from typing import Any

from rljob_trainer.arrays import Array
from rljob_trainer.checkpoint.manifest import Files
from rljob_trainer.driver.client import RETRY_SECONDS, Client, DriverLost


class RoleClient(Client):
    """Every call raises DriverLost when the driver is gone, or says nothing for as long as `connect` was given."""

    @staticmethod
    def connect(address: tuple[str, int], role: str, attempt: int, token: str, seconds: float) -> "RoleClient":
        """Wait for a driver that is still starting. Raises DriverLost."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                connection = socket.create_connection(address, timeout=seconds)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise DriverLost(f"no driver answers at {address[0]}:{address[1]}") from None
                time.sleep(RETRY_SECONDS)
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
