"""Which values a user's reward function takes: those that its signature names."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def taken(function: Callable[..., Any], known: Sequence[str]) -> list[str]:
    """Those of the `known` values that the function takes; all of them with `**kwargs`.

    Raises TypeError for a parameter that would stay without a value.
    """
    parameters = inspect.signature(function).parameters.values()
    for p in parameters:
        variadic = p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        if not variadic and p.default is p.empty and (p.name not in known or p.kind not in BY_NAME):
            raise TypeError(
                f"nothing to give as {p.name!r}: parameters get their values by name, out of {', '.join(known)}; others from arguments in the spec"
            )
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return list(known)
    return [p.name for p in parameters if p.name in known and p.kind in BY_NAME]
