"""All columns of a prompt's row, read from its file when a reward asks for them, so that none are held in memory."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from threading import Lock

from rljob_trainer.data.files import Place, Record
from rljob_trainer.data.tables import Table, open_table


class FileRows:
    """The rows of several files, counted one after another. The files are opened at the first look. Threads may share it."""

    def __init__(self, files: Sequence[Place], scratch: Path):
        """`scratch`: a directory, which may be missing, for files without random access."""
        self._files, self._scratch = files, scratch
        self._tables: list[Table] = []
        self._starts = [0]
        self._lock = Lock()

    def __getitem__(self, index: int) -> Record:
        """Raises ConfigurationError for a file that has changed since it was read, OSError when its volume is away."""
        with self._lock:
            self._open()
            number = bisect_right(self._starts, index) - 1
            place = self._files[min(number, len(self._files) - 1)]
            try:
                return self._tables[number][index - self._starts[number]]
            except (ValueError, IndexError) as error:
                fix = "leave data files as they are while a job reads them"
                raise place.error(f"no longer holds the row of a prompt: {error}", fix) from error

    def place(self, index: int) -> Place:
        """Of a row that was read, for people."""
        with self._lock:
            self._open()
            number = bisect_right(self._starts, index) - 1
            file = self._files[number]
            return Place(file.field, file.path, self._tables[number].number(index - self._starts[number]))

    def _open(self) -> None:
        if not self._tables:
            self._scratch.mkdir(parents=True, exist_ok=True)
            self._tables = [open_table(place, self._scratch) for place in self._files]
            self._starts = [0, *accumulate(map(len, self._tables))]
