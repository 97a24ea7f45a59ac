"""Writing the rollout buffer's contents in the background, while the next step trains."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rljob_api.spec import RLJobSpec
from rljob_trainer.checkpoint.manifest import Files
from rljob_trainer.driver.buffer import saved
from rljob_trainer.driver.buffer.saved import BufferContents


class BufferSave:
    """The last save of the rollout buffer. `changed` is called when `files` has an answer."""

    def __init__(self, spec: RLJobSpec, changed: Callable[[], None]):
        self._spec, self._changed = spec, changed
        self._writing: asyncio.Task[Files] | None = None

    def begin(self, directory: Path, contents: BufferContents) -> None:
        self._writing = asyncio.create_task(asyncio.to_thread(saved.write_hashed, directory, contents, self._spec))
        self._writing.add_done_callback(lambda _: self._changed())

    def files(self) -> dict[str, Any]:
        """{"files": what was written}, as `DriverCalls.buffer_saved` answers; {} while it is written. Raises OSError when it could not be."""
        if self._writing is None:
            return {"files": {}}
        return {"files": self._writing.result()} if self._writing.done() else {}
