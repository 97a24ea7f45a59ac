"""The agent that lets the policy call functions, and replies through the chat template. Functions are shown to the policy as JSON schemas, made from
their signatures. Pure Python, for the agent's process."""

import asyncio
import inspect
import json
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from rljob_trainer.agents.api import Policy, Prompt, Trajectory

TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
ROW = "row"
"""A parameter of this name gets the row of the data, and the policy does not see it."""
MOST_CALLS = 128
"""Of one turn that are made. A policy in training may write thousands."""
TOO_MANY = f"error: too many calls: only the first {MOST_CALLS} of a turn are made"
NO_OBJECT = "the arguments of a call are a JSON object"


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """In OpenAI's form. The docstring is the description; `Annotated[int, "text"]` describes a parameter.

    Raises TypeError for a parameter without a type that JSON has.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != ROW]
    properties = {p.name: _property(p, hints.get(p.name)) for p in parameters}
    required = [p.name for p in parameters if p.default is p.empty]
    schema = {"type": "object", "properties": properties, "required": required}
    described = {"name": function.__name__, "description": inspect.getdoc(function) or "", "parameters": schema}
    return {"type": "function", "function": described}


def _property(parameter: inspect.Parameter, hint: Any) -> dict[str, Any]:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise TypeError(f"the parameter {parameter.name!r} cannot be given by name")
    text = {"description": hint.__metadata__[0]} if get_origin(hint) is Annotated else {}
    return _type(parameter.name, get_args(hint)[0] if text else hint) | text


def _type(name: str, hint: Any) -> dict[str, Any]:
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType) and type(None) in arguments and len(arguments) == 2:
        return _type(name, next(a for a in arguments if a is not type(None)))
    if origin is list and arguments:
        return {"type": "array", "items": _type(name, arguments[0])}
    if origin in TYPES:
        return {"type": TYPES[origin]}
    raise TypeError(f"the parameter {name!r} needs a type of {', '.join(t.__name__ for t in TYPES)}, or Literal")


class NotACall(Exception):
    """What the policy reads of a call that cannot be made."""


class ToolCalls:
    """Turn after turn, until one calls nothing or is cut off."""

    def __init__(self, functions: Sequence[Callable[..., Any]]):
        self._functions = {function.__name__: function for function in functions}
        self.schemas = [schema_of(function) for function in functions]

    async def rollout(self, prompt: Prompt, policy: Policy, row: Mapping[str, Any]) -> Trajectory:
        context, metrics = prompt.tokens, {"tool_calls": 0.0, "tool_errors": 0.0}
        while turn := await policy.generate(context, tools=self.schemas):
            context = turn.whole
            if not turn.tool_calls or turn.finish_reason == "length":
                break
            found = await asyncio.gather(*(self._result(call, row) for call in turn.tool_calls[:MOST_CALLS]))
            found += [(TOO_MANY, True)] * (len(turn.tool_calls) - len(found))
            metrics["tool_calls"] += len(found)
            metrics["tool_errors"] += sum(failed for _, failed in found)
            said = zip(turn.tool_calls, found, strict=True)
            context += await policy.reply(context, [_message(call, text) for call, (text, _) in said])
        return Trajectory(context, metrics=metrics)

    async def _result(self, call: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[str, bool]:
        """What the policy reads, and whether the call failed. A wrong call is the policy's to learn from, and no failure of the agent."""
        try:
            function, arguments = self._parsed(call, row)
            if inspect.iscoroutinefunction(function):
                found = await function(**arguments)
            else:
                found = await asyncio.to_thread(function, **arguments)
        except Exception as error:  # the functions are the user's
            text = str(error) if isinstance(error, NotACall) else f"{type(error).__name__}: {error}"
            return f"error: {text}", True
        return found if isinstance(found, str) else json.dumps(found, default=str), False

    def _parsed(self, call: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
        name = call["function"]["name"]
        function = self._functions.get(name)
        if function is None:
            raise NotACall(f"there is no function {name!r}, only {', '.join(self._functions)}")
        try:
            arguments = json.loads(call["function"]["arguments"] or "{}")
        except (ValueError, TypeError, RecursionError) as error:
            raise NotACall(NO_OBJECT) from error
        arguments = {} if arguments is None else arguments
        if not isinstance(arguments, dict):
            raise NotACall(NO_OBJECT)
        parameters = inspect.signature(function).parameters
        if strange := arguments.keys() - (parameters.keys() - {ROW}):
            raise NotACall(f"{name} has no parameter {min(strange)!r}")
        return function, arguments | ({ROW: row} if ROW in parameters else {})


def _message(call: Mapping[str, Any], text: str) -> dict[str, Any]:
    """What a call returned."""
    return {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": text}
