"""UNREADABLE stands for a value of a spec that cannot be read. Every rule that uses it ends, so that it says nothing about what depends on it."""

from typing import Final, NoReturn


class Undecidable(Exception):
    """What was asked depends on a value that cannot be read."""


class Unreadable:
    """Every use raises Undecidable; only `is` and isinstance are answered."""


def undecidable(*_: object) -> NoReturn:
    raise Undecidable


for _use in (
    *("bool", "eq", "ne", "lt", "le", "gt", "ge", "hash", "str", "repr", "format", "fspath", "index", "int", "float"),
    *("len", "iter", "contains", "getitem", "getattr", "round", "neg", "abs", "pow", "rpow"),
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod"),
):
    setattr(Unreadable, f"__{_use}__", undecidable)

UNREADABLE: Final = Unreadable()
