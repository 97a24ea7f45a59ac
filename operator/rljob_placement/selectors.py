"""CEL expressions that select devices (`spec.selectors[].cel.expression` of a DeviceClass), as far as they are conjunctions of comparisons with
constants. Any other expression is refused: a guess would send pods to nodes that do not take them."""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from rljob_api.quantity import parse


class UnreadableSelector(ValueError):
    """The expression is none that is understood here, or fails for a device, as it would in kube-scheduler."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device of a ResourceSlice, as expressions see it."""

    driver: str
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By name, with or without the domain; each has one of the keys string, bool, int and version."""
    capacity: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By name; each has a quantity as its `value`."""


LONGEST = 2048
"""Characters of an expression, at most."""
TEXT = r"""("[^"\\]*"|'[^'\\]*')"""
COMPARED = r"\s*(==|!=|<=|>=|<|>)\s*"
WHERE = rf"\[{TEXT}\]\.([A-Za-z_]\w*)"
DRIVER = re.compile(rf"device\.driver{COMPARED}{TEXT}")
ATTRIBUTE = re.compile(rf"device\.attributes{WHERE}{COMPARED}({TEXT}|-?\d+|true|false)")
FLAG = re.compile(rf"(!?)device\.attributes{WHERE}")
CAPACITY = re.compile(rf"device\.capacity{WHERE}\.compareTo\(quantity\({TEXT}\)\){COMPARED}0")
AND = re.compile(rf"({TEXT})|&&")
OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Term = Callable[[Device], bool]


def selects(expression: str, device: Device) -> bool:
    """Whether the expression holds for the device. Raises Unreadable. As in CEL, a term that is false outweighs one that fails."""
    failed = None
    for term in _terms(expression):
        try:
            if not term(device):
                return False
        except UnreadableSelector as error:
            failed = error
    if failed:
        raise failed
    return True


@lru_cache(maxsize=1024)
def _terms(expression: str) -> tuple[Term, ...]:
    if len(expression) > LONGEST:
        raise UnreadableSelector(f"has more than {LONGEST} characters")
    parts, start = list[str](), 0
    for sign in AND.finditer(expression):
        if not sign[1]:
            parts.append(expression[start : sign.start()])
            start = sign.end()
    return tuple(_term(part.strip()) for part in (*parts, expression[start:]))


def _term(text: str) -> Term:
    if match := DRIVER.fullmatch(text):
        return _compared(lambda device: device.driver, match[1], _constant(match[2]))
    if match := ATTRIBUTE.fullmatch(text):
        name, value = (match[1][1:-1], match[2]), _constant(match[4])
        return _compared(lambda device: _attribute(device, *name), match[3], value)
    if match := FLAG.fullmatch(text):
        name, value = (match[2][1:-1], match[3]), not match[1]
        return _compared(lambda device: _attribute(device, *name), "==", value)
    if match := CAPACITY.fullmatch(text):
        name, amount = (match[1][1:-1], match[2]), _quantity(match[3][1:-1])
        return _compared(lambda device: _capacity(device, *name), match[4], amount)
    raise UnreadableSelector(f"has {text[:100]!r}, which is not compared with a constant")


def _compared(of: Callable[[Device], Any], sign: str, constant: Any) -> Term:
    def term(device: Device) -> bool:
        value = of(device)
        if type(value) is not type(constant):
            raise UnreadableSelector(f"compares {value!r} with {constant!r}")
        return OPERATORS[sign](value, constant)

    return term


def _constant(written: str) -> str | bool | int:
    if written in ("true", "false"):
        return written == "true"
    return written[1:-1] if written[0] in "\"'" else int(written)


def _quantity(written: Any) -> int:
    try:
        return parse(written)
    except ValueError as error:
        raise UnreadableSelector(str(error)) from error


def _attribute(device: Device, domain: str, name: str) -> Any:
    value = _named(device.attributes, device.driver, domain, name)
    known = [value[kind] for kind in ("string", "bool", "int") if kind in value]
    if not known:
        raise UnreadableSelector(f"asks for a version, {domain}/{name}")
    return known[0]


def _capacity(device: Device, domain: str, name: str) -> int:
    return _quantity(_named(device.capacity, device.driver, domain, name).get("value"))


def _named(values: Mapping[str, Mapping[str, Any]], driver: str, domain: str, name: str) -> Mapping[str, Any]:
    """A name without a domain is in that of the driver."""
    named = values.get(f"{domain}/{name}") or (values.get(name) if domain == driver else None)
    if named is None:
        raise UnreadableSelector(f"asks for {domain}/{name}, which a device of {driver} lacks")
    return named
