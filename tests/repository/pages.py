"""The pages that people read, in parts that can be checked."""

import re
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
WRITTEN = [ROOT / f for f in TRACKED if f.endswith(".md") and not f.startswith("docs/reference/")]
PAGES = [*WRITTEN, *sorted((ROOT / "docs/reference").glob("*.md"))]


def name(page: Path) -> str:
    """For test ids."""
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """Without fenced blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def ticked(page: Path) -> set[str]:
    """What stands in backticks in the prose."""
    return {t for line in prose(page).splitlines() for t in re.findall(r"`([^`]+)`", line)}


def commands(page: Path) -> set[str]:
    """Lines of code and what stands in backticks, without comments."""
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += [line for line in prose(page).splitlines() if line.startswith("    ")]
    return {re.sub(r"\s+#.*", "", line).strip().removeprefix("$ ") for line in lines} | ticked(page)


def anchors(page: Path) -> set[str]:
    """As the usual renderers make them of headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def plain_blocks(page: Path) -> list[str]:
    """Blocks of code that are not marked as YAML: fenced ones of other kinds, and what is indented."""
    fenced = re.findall(r"^```(?!yaml)[a-z]*\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    indented = re.findall(r"(?:^(?:    .*)?\n)+", prose(page), re.MULTILINE)
    return [*fenced, *(textwrap.dedent(block) for block in indented if block.strip())]


def yaml_blocks(page: Path) -> list[dict[str, Any]]:
    return [
        yaml.safe_load(block)
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    ]
