"""The one place where the plugin writes to a terminal or a pipe.

Status, events, messages and logs come from pods, which may write anything. So every text passes `visible` on its way
out: an escape sequence is printed as text and never interpreted.
"""

import codecs
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.live import Live
from rich.theme import Theme

CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"  # all but tab and newline
)
"""C0 and C1 controls, line separators, marks that reverse the direction of text, and halves of surrogate pairs."""
WIDEST = 150
"""Columns of a page where the terminal is wider, or is none."""


def visible(text: str) -> str:
    r"""Control characters as they are written in Python: ESC becomes the four characters `\x1b`."""
    return CONTROL.sub(_escaped, text)


def _escaped(control: re.Match[str]) -> str:
    return control[0].encode("unicode_escape").decode()


class Colours(RegexHighlighter):
    """Colours of pages on a terminal. Pages are complete without them."""

    base_style = "rljob."
    highlights = [
        r"(?m)^(?P<key>[A-Z][A-Za-z]*:)(?= )",
        r" {2,}(?P<key>(State|Attempt|Restarts|Checkpoint):) ",
        r"(?m)^(?P<heading>[A-Z][A-Z /-]{2,}[A-Z]\b)",
        r"(?m)(?P<good>\b(Succeeded|Running|serving)\b|^Valid\.$)",
        r"(?m)(?P<bad>\b(Failed|Unreadable|LAST FAILURE)\b|^error:)",
        r"(?m)^(?P<policy>  policy \d+ .*(\n {15}.*)*)",
        r"(?m)^(?P<environment>  environment .*(\n {15}.*)*)",
        r"(?m)^(?P<prompt>  prompt .*(\n {15}.*)*)",
        r"(?m)(?P<held>\b(Pending|Starting|Draining|Suspended|Restarting)\b|^warning:)",
    ]


_THEME = Theme(
    {
        "rljob.key": "dim",
        "rljob.heading": "bold",
        "rljob.good": "green",
        "rljob.bad": "bold red",
        "rljob.held": "yellow",
        "rljob.policy": "green",
        "rljob.environment": "yellow",
        "rljob.prompt": "dim",
    }
)


class Terminal:
    """Standard output and standard error."""

    def __init__(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a terminal without UTF-8 gets question marks, not a traceback
        self.console = _console(sys.stdout)
        self._errors = _console(sys.stderr)

    @property
    def width(self) -> int:
        """Columns that a page may have."""
        return min(self.console.width, WIDEST) if self.console.is_terminal else WIDEST

    @property
    def height(self) -> int:
        """Lines that a page may have which is drawn again; more would be cut off at the bottom."""
        return self.console.height - 1

    def show(self, text: str) -> None:
        """A page or a line on standard output."""
        self.console.print(visible(text), soft_wrap=True)

    def data(self, text: str) -> None:
        """JSON or YAML on standard output."""
        self.console.print(visible(text), soft_wrap=True, highlight=False)

    @contextmanager
    def redrawing(self) -> Iterator[Callable[[str], None] | None]:
        """Yields a function that replaces the page on a terminal, where the last page stays; elsewhere None."""
        if not self.console.is_terminal:
            yield None
            return
        with Live(console=self.console, auto_refresh=False) as live:

            def redraw(text: str) -> None:
                live.update(Colours()(visible(text)), refresh=True)

            yield redraw

    def tell(self, text: str) -> None:
        """A line on standard error."""
        self._errors.print(visible(text), soft_wrap=True)

    def stream(self, pieces: Iterable[bytes]) -> None:
        """A log as it comes: byte for byte into a pipe, visible on a terminal, where a progress bar gets a line for each state."""
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        for piece in pieces:
            if self.console.is_terminal:
                piece = visible(decode(piece).replace("\r\n", "\n").replace("\r", "\n")).encode()
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()

    def flush(self) -> None:
        """Raises BrokenPipeError when nobody reads any more."""
        sys.stdout.flush()

    @staticmethod
    def give_up() -> None:
        """Keep the interpreter's own flush at exit quiet after BrokenPipeError: `| head` has seen enough."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Called while BrokenPipeError is handled. It ends the plugin, but not with the exit code that rich chose."""
        raise


def _console(stream: TextIO) -> Console:
    return _Console(file=stream, highlighter=Colours(), theme=_THEME, markup=False, emoji=False)
