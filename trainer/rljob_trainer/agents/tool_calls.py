"""The agent that lets the policy call functions, in the format of Hermes and Qwen, and replies through the chat template."""

import asyncio
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rljob_trainer.agents.api import Policy, Prompt, Trajectory
from rljob_trainer.agents.schemas import ROW

CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
"""Each holds a JSON object of `name` and `arguments`."""


class NotACall(Exception):
    """What the policy is told of a call that cannot be made."""


class ToolCalls:
    """Turn after turn, until one calls nothing or is cut off."""

    def __init__(self, functions: Sequence[Callable[..., Any]]):
        self._functions = {function.__name__: function for function in functions}

    async def rollout(self, prompt: Prompt, policy: Policy, row: Mapping[str, Any]) -> Trajectory:
        context, metrics = prompt.tokens, {"tool_calls": 0.0, "tool_errors": 0.0}
        while turn := await policy.generate(context):
            context = turn.whole
            calls = CALL.findall(turn.text)
            if not calls or turn.finish_reason == "length":
                break
            found = await asyncio.gather(*(self._result(call, row) for call in calls))
            metrics["tool_calls"] += len(found)
            metrics["tool_errors"] += sum(failed for _, failed in found)
            context += await policy.reply(context, [{"role": "tool", "content": text} for text, _ in found])
        return Trajectory(context, metrics=metrics)

    async def _result(self, call: str, row: Mapping[str, Any]) -> tuple[str, bool]:
        """What the policy is told, and whether the call failed. A wrong call is the policy's to learn from, and no failure of the agent."""
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

    def _parsed(self, call: str, row: Mapping[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
        try:
            said = json.loads(call)
            name, arguments = said["name"], dict(said.get("arguments") or {})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise NotACall("a call is a JSON object of name and arguments") from error
        function = self._functions.get(name)
        if function is None:
            raise NotACall(f"there is no function {name!r}, only {', '.join(self._functions)}")
        parameters = inspect.signature(function).parameters
        if strange := arguments.keys() - (parameters.keys() - {ROW}):
            raise NotACall(f"{name} has no parameter {min(strange)!r}")
        return function, arguments | ({ROW: row} if ROW in parameters else {})
