"""Integer arithmetic as it stands in shell scripts and configurations: parsed, never evaluated as code."""

import ast
import operator
from collections.abc import Callable
from typing import Any


def _divide(a: Any, b: Any) -> int:
    return int(a / b)


OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def _zero(_: str) -> str:
    return "0"


def _unknown(_: str) -> str:
    return ""


def evaluate(text: str, value: Callable[[str], str] = _zero) -> str:
    """The number that `$((text))` stands for; `value` gives that of a name.

    Text that is none comes back as it is. A division by zero is empty, as after bash's error.
    """
    try:
        return str(int(_number(ast.parse(text.strip(), mode="eval").body, value)))
    except ZeroDivisionError:
        return ""
    except (SyntaxError, ValueError, RecursionError):
        return text


def _number(node: ast.expr, value: Callable[[str], str]) -> int:
    match node:
        case ast.Constant(int(number)):
            return number
        case ast.Name(name):
            return int(value(name))
        case ast.UnaryOp(ast.USub(), operand):
            return -_number(operand, value)
        case ast.BinOp(left, op, right) if type(op) in OPERATIONS:
            return int(OPERATIONS[type(op)](_number(left, value), _number(right, value)))
        case ast.Compare(left, [op], [right]) if type(op) in OPERATIONS:
            return int(OPERATIONS[type(op)](_number(left, value), _number(right, value)))
    raise ValueError(ast.dump(node))


def devices(text: str) -> list[int] | None:
    """The numbers that `list(range(0, 8)) + [9]` stands for; None: it is of another form."""
    try:
        return _devices(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _devices(node: ast.expr) -> list[int]:
    match node:
        case ast.List(elements) | ast.Tuple(elements):
            return [_number(element, _unknown) for element in elements]
        case ast.Call(ast.Name("list"), [inner], []):
            return _devices(inner)
        case ast.Call(ast.Name("range"), bounds, []) if 1 <= len(bounds) <= 3:
            return [*range(*(_number(bound, _unknown) for bound in bounds))]
        case ast.BinOp(left, ast.Add(), right):
            return _devices(left) + _devices(right)
    raise ValueError(ast.dump(node))
