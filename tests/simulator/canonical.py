"""Pods and their templates as the API server stores them: quantities in their canonical form, and nothing that is empty.

As `Quantity.CanonicalizeBytes` and `omitempty` of k8s.io/apimachinery and k8s.io/api do it.
"""

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from rljob_operator.kube.api import Object

QUANTITY = re.compile(r"([+-]?[0-9]*\.?[0-9]*)([numkKMGTPE]?i?)(?:[eE]([+-]?[0-9]+))?")
BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
DECIMAL = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
NOT_POINTERS = ("readOnly", "hostNetwork", "hostPID", "hostIPC", "stdin", "tty")
"""Truth values that are left out when they are false. Others are pointers, and stay."""
MAPS = ("labels", "annotations", "nodeSelector", "matchLabels", "requests", "limits")


def canonical(obj: Object) -> None:
    """Makes the object what the API server would store of it."""
    if obj["kind"] in ("Pod", "StatefulSet"):
        for part in ("metadata", "spec"):
            if part in obj:
                obj[part] = _stored(obj[part])


def _stored(value: Any, field: str = "") -> Any:
    if isinstance(value, list):
        return [_stored(entry, field) for entry in value]
    if not isinstance(value, dict):
        return quantity(str(value)) if field in ("sizeLimit", "divisor") else value
    if field in ("requests", "limits"):
        return {name: quantity(str(amount)) for name, amount in value.items()}
    return {k: _stored(inner, k) for k, inner in value.items() if not _omitted(k, inner)}


def _omitted(field: str, value: Any) -> bool:
    return value in ("", []) or (value == {} and field in MAPS) or (value is False and field in NOT_POINTERS)


def quantity(text: str) -> str:
    found = QUANTITY.fullmatch(text)
    assert found, text
    number, suffix = Fraction(found[1]), found[2]
    if suffix in BINARY[1:]:
        value = number * 1024 ** BINARY.index(suffix)
        if abs(value) >= 1024 and value.denominator == 1:
            power = max(n for n in range(7) if value % 1024**n == 0)
            return f"{value / 1024**power}{BINARY[power]}"
        return _decimal(value)
    value = number * Fraction(10) ** next(n for n, name in DECIMAL.items() if name == suffix)
    if found[3]:
        return _decimal(value * Fraction(10) ** int(found[3]), lambda power: f"e{power}" if power else "")
    return _decimal(value)


def _decimal(value: Fraction, suffix: Callable[[int], str] = DECIMAL.__getitem__) -> str:
    """The largest suffix with which the number is whole. Less than a billionth becomes one, and what exceeds 64 bits the largest number that they
    hold."""
    if not value:
        return "0"
    value = min(Fraction(math.ceil(value * 10**9), 10**9), Fraction(2**63 - 1))
    power = max(n for n in DECIMAL if (value / Fraction(10) ** n).denominator == 1)
    return f"{value / Fraction(10) ** power}{suffix(power)}"
