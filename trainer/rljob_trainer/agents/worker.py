"""The process that runs an agent: `python -m rljob_trainer.agents.worker KIND TARGET DETAILS`.

TARGET is a file, and DETAILS a JSON list of functions in it: of the one that makes trajectories (KIND python), or of those that the policy may call
(KIND tools). For all other kinds TARGET is an environment of a library, and DETAILS a JSON object of its arguments (environments/). First it says
{"takes": names, "concurrent": true, "tools": JSON schemas} or {"error": text}; a function that takes "history" can continue a trajectory
whose process was lost (history.py). Then it reads pickled triples: ("begin", number, values) begins a
trajectory, ("cancel", number, None) ends it, and ("answer", number, (question, {"value": ...} or {"error": text})) answers a question. It writes
lines of JSON: {"number", "question", "method", "arguments"} asks the driver, {"number", "question", "given_up": true} says that nobody waits for an
answer any more, and the last line of a trajectory is {"number", "trajectory":
{"sequences", "reward", "metrics", "rewards"} or null} or {"number", "error": text, "kind": text} with a kind of recording.py. The driver keeps the
time: a trajectory that takes too long is cancelled.

Functions that the policy may call are shown to it as JSON schemas, made from their signatures, and it is replied to through the chat template.
"""

import asyncio
import inspect
import json
import pickle
import sys
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import IO, Annotated, Any, BinaryIO, Literal, Union, get_args, get_origin, get_type_hints

from rljob_trainer.agents import environments
from rljob_trainer.agents.api import Ask, Policy, PolicyError, Prompt, Trajectory, ids
from rljob_trainer.agents.episode import Nonsense
from rljob_trainer.agents.history import HISTORY, PARAMETERS, parameters_of, read
from rljob_trainer.rewards.worker import Function, NotAReward, channel, die_with_parent, load, say, split
from rljob_trainer.user_code import explain

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
            results = await asyncio.gather(*(self._result(call, row) for call in turn.tool_calls[:MOST_CALLS]))
            results += [(TOO_MANY, True)] * (len(turn.tool_calls) - len(results))
            metrics["tool_calls"] += len(results)
            metrics["tool_errors"] += sum(failed for _, failed in results)
            said = zip(turn.tool_calls, results, strict=True)
            context += await policy.reply(context, [_message(call, text) for call, (text, _) in said])
        return Trajectory(context, metrics=metrics)

    async def _result(self, call: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[str, bool]:
        """What the policy reads, and whether the call failed. A wrong call is the policy's to learn from, and no failure of the agent."""
        try:
            function, arguments = self._parsed(call, row)
            if inspect.iscoroutinefunction(function):
                result = await function(**arguments)
            else:
                result = await asyncio.to_thread(function, **arguments)
        except Exception as error:  # the functions are the user's
            text = str(error) if isinstance(error, NotACall) else f"{type(error).__name__}: {error}"
            return f"error: {text}", True
        return result if isinstance(result, str) else json.dumps(result, default=str), False

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
        strange = arguments.keys() - (parameters.keys() - {ROW})
        if strange:
            raise NotACall(f"{name} has no parameter {min(strange)!r}")
        return function, arguments | ({ROW: row} if ROW in parameters else {})


def _message(call: Mapping[str, Any], text: str) -> dict[str, Any]:
    """What a call returned."""
    return {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": text}


def main() -> None:
    kind, target, given = sys.argv[1:]
    details = json.loads(given)
    is_library = kind in environments.MODULES
    explained = partial(_explained, target) if is_library else partial(explain, path=target, name=details[0])
    die_with_parent()
    questions, answers = channel()
    try:
        function, schemas = _library(kind, target, details) if is_library else _own(kind, target, details)
        takes = parameters_of(function) if kind == "python" else PARAMETERS
    except BaseException as error:
        say(answers, error=explained(error))
        return
    say(answers, takes=takes, concurrent=True, tools=schemas)
    asyncio.run(Rollouts(function, answers, explained).serve(questions))


def _library(kind: str, environment: str, arguments: dict[str, Any]) -> tuple[Function, list[dict[str, Any]]]:
    return environments.load(kind, environment, arguments).rollout, []


def _own(kind: str, path: str, names: list[str]) -> tuple[Function, list[dict[str, Any]]]:
    """What makes trajectories, and schemas of what the policy may call."""
    functions = [load(path, name) for name in names]
    if kind == "tools":
        calls = ToolCalls(functions)
        return calls.rollout, calls.schemas
    return functions[0], []


def _explained(environment: str, error: BaseException) -> str:
    """For example `environment gsm8k: KeyError: 'reward_spec' (env.py, line 17)`."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"environment {environment}: {type(error).__name__}: {error}"[:3000] + place


class Rollouts:
    """The trajectories that are under way."""

    def __init__(self, function: Function, answers: IO[str], explained: Callable[[BaseException], str]):
        self._function, self._answers, self._explained = function, answers, explained
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._waiting: dict[tuple[int, int], asyncio.Future[Any]] = {}
        """By trajectory and question."""
        self._questions = count()

    async def serve(self, messages: BinaryIO) -> None:
        """Until the driver hangs up. Messages are read in a thread of their own: the function's threads are the function's."""
        loop, reader = asyncio.get_running_loop(), ThreadPoolExecutor(1)
        while True:
            try:
                kind, number, value = await loop.run_in_executor(reader, pickle.load, messages)
            except EOFError:
                return
            if kind == "begin":
                self._tasks[number] = asyncio.create_task(self._run(number, value))
            elif kind == "cancel" and number in self._tasks:
                self._tasks[number].cancel()
            elif kind == "answer":
                self._answered(number, *value)

    def _answered(self, number: int, question: int, answer: Any) -> None:
        future = self._waiting.get((number, question))
        if future and not future.done():
            future.set_result(answer)

    async def _run(self, number: int, values: Mapping[str, Any]) -> None:
        try:
            trajectory = await self._called(partial(self._ask, number), **values)
            say(self._answers, number=number, **returned(trajectory))
        except Nonsense as error:
            say(self._answers, number=number, **_strange(str(error)))
        except BaseException as error:
            say(self._answers, number=number, error=self._explained(error), kind="raised")
        finally:
            del self._tasks[number]

    async def _called(
        self, ask: Ask, prompt: dict[str, Any], row: Mapping[str, Any], base_url: str, history: Mapping[str, Any] | None
    ) -> Any:
        """What the function returns. `history`: of a function that takes it."""
        if history is None:
            return await self._function(Prompt(**prompt), Policy(ask, base_url), row)
        known, last = read(history)
        return await self._function(Prompt(**prompt), Policy(ask, base_url, last), row, **{HISTORY: known})

    async def _ask(self, number: int, method: str, arguments: dict[str, Any]) -> Any:
        question = next(self._questions)
        future = self._waiting[number, question] = asyncio.get_running_loop().create_future()
        try:
            say(self._answers, number=number, question=question, method=method, arguments=arguments)
            answer = await future
        except asyncio.CancelledError:
            say(self._answers, number=number, question=question, given_up=True)
            raise
        finally:
            del self._waiting[number, question]
        if "error" in answer:
            raise PolicyError(answer["error"])
        return answer["value"]


def returned(trajectory: Any) -> dict[str, Any]:
    """What the function returned, as JSON says it."""
    if trajectory is None:
        return {"trajectory": None}
    if not isinstance(trajectory, Trajectory):
        return _strange(f"returned {type(trajectory).__name__}, not a Trajectory of rljob_trainer.agents or None")
    try:
        sequences = [ids(tokens) for tokens in (trajectory.tokens, *trajectory.branches)]
        said = split({**trajectory.metrics, "score": trajectory.reward})
        rewards = [split(reward).score for reward in trajectory.rewards]
    except NotAReward as error:
        return _strange(f"returned a Trajectory whose reward or metrics hold {error}")
    except (TypeError, ValueError) as error:
        return _strange(f"returned a Trajectory whose tokens are no ids: {error}")
    return {"trajectory": {"sequences": sequences, "reward": said.score, "metrics": said.metrics, "rewards": rewards}}


def _strange(text: str) -> dict[str, Any]:
    return {"error": text, "kind": "value"}


if __name__ == "__main__":
    main()
