"""Data files through spec.data.custom: the rows that it makes of theirs, in files that are read in their place.

One process makes all rows of a list of files, in their order, so that a class may remember what it has seen, and every attempt makes the same ones.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO, Self

from rljob_api.callbacks import nothing
from rljob_api.spec.model import CustomRows, DataSpec
from rljob_trainer.custom_rows.worker import ANSWER_SECONDS, VALUES
from rljob_trainer.data.files import Place, Record, read_records
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.workers.process import GRACE_SECONDS, WorkerLost, WorkerProcess

ReadRow = tuple[Place, Record]
AT_ONCE = 256
"""Rows of one call, at most."""
QUICK_SECONDS = 0.1
"""A call that takes less may have twice as many rows the next time."""
FIELD = "spec.data.custom"
FIXES = {
    "raised": f"correct {FIELD}, which `python -m rljob_trainer try` runs in seconds, or the row",
    "value": "return a dict of columns, a list of such, or None for a row that is left out",
    "timeout": f"make the row sooner, or raise {FIELD}.timeoutSeconds",
}


class RowProcess(WorkerProcess):
    """The process that runs the function."""

    MODULE = "rljob_trainer.custom_rows.worker"

    @classmethod
    async def of(cls, custom: CustomRows, seed: int) -> Self:
        """Raises WorkerLost."""
        arguments = (custom.path, custom.function, json.dumps(custom.arguments), str(custom.timeout_seconds), str(seed))
        return await cls.start(arguments, custom.timeout_seconds, {"PYTHONHASHSEED": "0"})

    async def made(self, rows: Sequence[ReadRow]) -> tuple[list[list[str]], tuple[str, str] | None]:
        """What was made of the first rows, and why the next one failed (kind, reason), if it did."""
        asked = [{"row": dict(record), "file": place.path} for place, record in rows]
        asked = [{name: values[name] for name in VALUES if name in self.takes} for values in asked]
        try:
            reply = await self.call({"rows": asked}, ANSWER_SECONDS + self._seconds + GRACE_SECONDS)
        except WorkerLost as error:
            others = f" (it made this row, or one of the {len(rows) - 1} after it)" if len(rows) > 1 else ""
            return [], (error.kind, f"{error}{others}")
        return reply["made"], (reply["kind"], reply["error"]) if "error" in reply else None


class RowMaker:
    """Call it with files; it gives them with the rows that were made of theirs, or as they are without spec.data.custom."""

    def __init__(
        self, data: DataSpec, scratch: Path, most: int | None = None, moved: Callable[[str], object] = nothing
    ):
        """`scratch`: a directory, which may be missing and has to live as long as the data. `most`: rows that are read of each file; None: all.
        `moved` is called after each step with what is done."""
        self._custom, self._seed, self._scratch, self._most, self._moved = data.custom, data.seed, scratch, most, moved

    def __call__(self, files: Sequence[Place]) -> Sequence[Place]:
        """Not within an event loop. Raises ConfigurationError, for a row with its file and number; OSError when a volume is away or full."""
        if self._custom is None:
            return files
        if not Path(self._custom.path).is_file():
            fix = "correct the path, or mount the ConfigMap or volume that holds the file in spec.volumes"
            rule = "there is no such file in the trainer pod"
            raise ConfigurationError(f"{FIELD}.path", self._custom.path, rule, fix)
        return asyncio.run(self._made(self._custom, files))

    async def _made(self, custom: CustomRows, files: Sequence[Place]) -> list[Place]:
        self._scratch.mkdir(parents=True, exist_ok=True)
        process = await self._started(custom)
        try:
            return [await self._file(process, custom, file) for file in files]
        finally:
            await process.stop()

    async def _started(self, custom: CustomRows) -> RowProcess:
        try:
            return await RowProcess.of(custom, self._seed)
        except WorkerLost as error:
            fix = "correct the file; it is imported as a file of its own, with the image's packages"
            raise ConfigurationError(f"{FIELD}.path", custom.path, f"cannot be loaded: {error}", fix) from error

    async def _file(self, process: RowProcess, custom: CustomRows, file: Place) -> Place:
        target = self._scratch / f"{len(list(self._scratch.iterdir()))}.rows"
        rows = islice(read_records(file, ()), self._most)
        with target.open("w", encoding="utf-8") as sink:
            count = 0
            async for made in _in_order(process, rows):
                count += sum(_written(sink, place, texts) for place, texts in made)
                self._moved(f"{custom.function}() in {Path(custom.path).name} made {count} rows of {file.path}")
        if not count:
            rule = f"{custom.function}() in {custom.path} leaves out all its rows"
            raise file.error(rule, "correct the function, or leave the file out")
        return replace(file, made=target)


def _written(sink: IO[str], place: Place, texts: Iterable[str]) -> int:
    return sum(1 for text in texts if sink.write(f"[{place.row}, {text}]\n"))


async def _in_order(process: RowProcess, rows: Iterator[ReadRow]) -> AsyncIterator[list[tuple[Place, list[str]]]]:
    """Rows with what was made of each, some at a time: one at first, more while they are quick."""
    loop, at_once, left = asyncio.get_running_loop(), 1, list[ReadRow]()
    while True:
        left += islice(rows, max(0, at_once - len(left)))
        if not left:
            return
        began, asked = loop.time(), left[:at_once]
        made, failed = await process.made(asked)
        if failed:
            kind, reason = failed
            raise asked[len(made)][0].error(reason, FIXES[kind])
        yield [(place, texts) for (place, _), texts in zip(asked, made, strict=False)]
        quick = len(made) == len(asked) and loop.time() - began < QUICK_SECONDS
        at_once = min(2 * at_once, AT_ONCE) if quick else max(1, len(made) // 2)
        left = left[len(made) :]
