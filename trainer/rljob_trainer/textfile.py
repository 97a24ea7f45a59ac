"""Small files that processes leave each other: replaced whole, so that no reader sees half of one. They need not outlive the machine."""

from pathlib import Path


def read_text(file: Path) -> str:
    """Empty when there is no such file."""
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""


def replace(file: Path, text: str) -> None:
    """Atomically."""
    scratch = file.with_name(f".{file.name}.tmp")
    scratch.write_text(text)
    scratch.replace(file)
