"""Saves that are killed before one of their changes: `python killed.py`. Reads lines `NUMBER ROOT` and answers each with the exit code of a fork that
saved in ROOT until its change number NUMBER. A program of one thread, since a fork of many may inherit locks that nobody opens any more."""

import os
import sys
import traceback
from pathlib import Path
from typing import Any

from trainer.checkpoint.saving import open_store, save, write_buffer

CHANGES = {"os.rename", "os.mkdir", "os.rmdir", "os.remove"}
"""Audit events; and `open` for writing."""
KILLED = 9


def main() -> None:
    os.fsync = lambda handle: None  # type: ignore[assignment]  # what is written survives a kill; only a power cut could take it
    for line in sys.stdin:
        number, root = line.rstrip("\n").split(" ", 1)
        print(killed_before(int(number), Path(root)), flush=True)


def killed_before(number: int, root: Path) -> int:
    """0 when `several_saves` had no change of that number, KILLED when it had; anything else is an error, whose traceback is on stderr."""
    root.mkdir()
    (root / "said").write_text("0")
    child = os.fork()
    if not child:
        code = 1
        try:
            sys.addaudithook(Kill(number))
            several_saves(root)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def several_saves(root: Path) -> None:
    """First ones, one that is drained, one for which an old one goes, and one in the place of another branch's."""
    said = os.open(root / "said", os.O_APPEND | os.O_WRONLY)
    store = open_store(root, 1)
    for step in (1, 2, 3):
        save(store, step)
        os.write(said, str(step).encode())
        if step != 2:
            store.renew_buffer(step, write_buffer)
    os.write(said, b"2")
    save(open_store(root, 2, step=2), 3)
    os.write(said, b"3")


class Kill:
    """An audit hook."""

    def __init__(self, number: int) -> None:
        self._left = number

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in CHANGES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            self._left -= 1
            if self._left < 0:
                os._exit(KILLED)


if __name__ == "__main__":
    main()
