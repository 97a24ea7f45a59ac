"""Measured figures, from the tables of the pages that people read: a picture and its page cannot differ."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1]


def rows(page: str, heading: str) -> list[list[str]]:
    """Cells of all table rows below a heading, without the heads of the tables. KeyError: no such heading."""
    parts = dict(re.findall(r"^##+ (.+?)\n(.*?)(?=^##|\Z)", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE))
    tables = re.split(r"\n\n", parts[heading])
    found = [[line.split(" | ") for line in t.splitlines() if line.startswith("|")] for t in tables]
    return [[cell.strip("| ") for cell in row] for table in found for row in table[2:]]
