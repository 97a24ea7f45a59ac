"""Text from pods and people, made safe to show: no terminal, log or table may take a part of it for something else."""

import re

_SEQUENCES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?")
"""ANSI escape sequences: colours, cursor movements, titles and links."""
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters other than tabs and line ends, Unicode's line separators and changes of direction, and lone surrogates."""


def plain(text: str) -> str:
    """The text without control characters. Line ends are kept."""
    return _CONTROLS.sub("", _SEQUENCES.sub("", text.replace("\r\n", "\n")))


def one_line(text: str) -> str:
    """The text without control characters, with a space in place of each run of white space that contains a line end or a tab."""
    return re.sub(r"(?<! ) *[\n\t][ \n\t]*", " ", plain(text)).strip()


def table_cell(text: str) -> str:
    """The text as a cell of a Markdown table: on one line, with its bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")
