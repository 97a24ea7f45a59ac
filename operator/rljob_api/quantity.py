"""Kubernetes quantities as integers, in thousandths of the unit, so that sums are exact."""

import math
import re
from decimal import ROUND_UP, Decimal
from functools import lru_cache

SUFFIXES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip
NUMBER = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)([A-Za-z]*)")

LONGEST = 64
"""Characters of a quantity, at most: the time to read a number grows with the square of its digits."""

Thousandths = dict[str, int]
"""Thousandths by resource name."""


def parse(text: object) -> int:
    """A quantity in thousandths, rounded up. Raises ValueError for what is none."""
    return math.ceil(_value(text) * 1000)


SMALLEST, LARGEST = Decimal("1e-9"), Decimal(2**63 - 1)
"""What the API server rounds up to, and the largest number that it keeps (ParseQuantity of k8s.io/apimachinery)."""


def same(one: object, other: object) -> bool:
    """Whether both are the same quantity for the API server, in whatever form it is written: `0.5` and `500m`."""
    try:
        return _kept(_value(one)) == _kept(_value(other))
    except ValueError:
        return False


def _kept(value: Decimal) -> Decimal:
    return min(max(value, -LARGEST), LARGEST).quantize(SMALLEST, ROUND_UP)


def _value(text: object) -> Decimal:
    return _read(str(text).strip())


@lru_cache(maxsize=4096)
def _read(written: str) -> Decimal:
    """Remembered, since the events of nodes and pods repeat the same few quantities."""
    match = NUMBER.fullmatch(written) if len(written) <= LONGEST else None
    if not match or match[2] not in SUFFIXES:
        raise ValueError(f"{written[:LONGEST]!r} is no Kubernetes quantity")
    return Decimal(match[1]) * SUFFIXES[match[2]]


def show(thousandths: int) -> str:
    """For people: `8`, `1500m`, `64Gi`."""
    whole, rest = divmod(thousandths, 1000)
    if rest:
        return f"{thousandths}m"
    for suffix in ("Ti", "Gi", "Mi"):
        if whole and whole % int(SUFFIXES[suffix]) == 0:
            return f"{whole // int(SUFFIXES[suffix])}{suffix}"
    return str(whole)


def rounded(thousandths: int) -> str:
    """For people, down to whole units: `7`, `23Gi`."""
    for suffix in ("Gi", "Mi"):
        unit = int(SUFFIXES[suffix]) * 1000
        if thousandths >= unit:
            return f"{thousandths // unit}{suffix}"
    return show(thousandths)


def exact(thousandths: int) -> str:
    """The amount as a Kubernetes quantity, without rounding."""
    return f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)


def add(one: Thousandths, other: Thousandths) -> Thousandths:
    return {name: one.get(name, 0) + other.get(name, 0) for name in one | other}


def most(one: Thousandths, other: Thousandths) -> Thousandths:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in one | other}
