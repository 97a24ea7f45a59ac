"""Bytes as they are shown, in GiB with one digit: equal bytes as equal numbers, and of several parts a sum that is the sum of what is shown."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from rljob_api.sizing.devices import GIB
from rljob_api.sizing.host import HostMemory
from rljob_api.sizing.memory import PhaseParts, TrainerMemory
from rljob_api.sizing.replica import RolloutHost

Parts = PhaseParts | TrainerMemory | HostMemory | RolloutHost


def tenths(size: float) -> int:
    """Of a GiB, rounded."""
    return round(size / GIB * 10)


def text(size: float) -> str:
    return f"{tenths(size) / 10:.1f}"


def total(parts: Iterable[float]) -> float:
    """GiB of the parts as each of them is shown."""
    return sum(map(tenths, parts)) / 10


def whole(held: Parts) -> str:
    """The sum of all fields."""
    return f"{total(asdict(held).values()):.1f}"


def row(parts: Sequence[float]) -> list[str]:
    """The parts, and their sum."""
    return [*(text(part) if part else "-" for part in parts), f"{total(parts):.1f}"]
