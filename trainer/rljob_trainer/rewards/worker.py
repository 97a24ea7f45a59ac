"""The process that runs a user's reward function: `python -m rljob_trainer.rewards.worker FILE FUNCTION VALUES SECONDS`.

First it says {"takes": names, "needs": names, "concurrent": whether the function is async}: of VALUES, a JSON list of names, those that the
function's signature asks for, and of these the ones without a default. Or it says {"error": text}: where the file lacks the function with "defined",
the functions that it has and the names of their parameters; where a parameter would have no value with "parameter", and all "parameters". Then it
reads pickled pairs of a number and a dict of the values that it takes, since a row may hold bytes and dates, and answers each with {"number",
"score": number, "metrics": {name: number}, "prediction": text or null} or {"number", "error": text, "kind": text}, whose kinds are those of
rewards/request.py. Answers are lines of JSON, since the user's code may write them. Calls of an async function run at the same time, each for at
most SECONDS.
The user's own prints go to stderr; what the function runs or forks reads none of the questions and keeps no hold of the answers.
Imports nothing large, so that it starts at once.

A function returns a number, or a dict of a `score` and whatever else it has to say.
"""

import asyncio
import contextlib
import ctypes
import inspect
import json
import math
import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any, BinaryIO, NamedTuple

from rljob_api.metrics import MOST_REWARD_METRICS, OWN_NAME
from rljob_trainer.user_code import explain, imported, require_imports

SCORE, PREDICTION = "score", "pred"
"""Keys of a dict that are no metrics. The second has its name from verl."""
LONGEST_PREDICTION = 1000
LARGEST = 3e38
"""Numbers beyond it have no mean in float32, and are no metrics."""
Function = Callable[..., Any]
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Returned(NamedTuple):
    """As rewards/request.py has it."""

    score: float
    metrics: dict[str, float]
    prediction: str | None


class NotAReward(Exception):
    """Completes "reward() in reward.py returned ..."."""


def split(returned: Any) -> Returned:
    """The score, the other finite numbers by their names, and the prediction. Raises NotAReward."""
    if not isinstance(returned, Mapping):
        return Returned(_score(returned, ""), {}, None)
    if SCORE not in returned:
        raise NotAReward(f"a dict without {SCORE!r}: its keys are {_short(', '.join(map(str, returned))) or 'none'}")
    others = {key: value for key, value in returned.items() if key not in (SCORE, PREDICTION)}
    numbers = {key: _metric(value) for key, value in others.items()}
    metrics = {key: number for key, number in numbers.items() if number is not None}
    strange = [key for key in metrics if not isinstance(key, str) or not OWN_NAME.fullmatch(key)]
    if strange:
        raise NotAReward(
            f"a metric called {_short(repr(strange[0]))}: names are 1 to 64 letters, digits and _ . - @ / (the pattern {OWN_NAME.pattern})"
        )
    if len(metrics) > MOST_REWARD_METRICS:
        raise NotAReward(
            f"{len(metrics)} numbers in addition to {SCORE!r}, and at most {MOST_REWARD_METRICS} become metrics"
        )
    return Returned(_score(returned[SCORE], f"{SCORE} "), metrics, _prediction(returned.get(PREDICTION)))


class NoSuchFunction(AttributeError):
    """The file lacks what is to be called. `defined`: what it has, with the names of its parameters."""

    def __init__(self, defined: Mapping[str, Sequence[str]]):
        super().__init__(f"the file has no such function; it has {', '.join(defined) or 'none'}")
        self.defined = defined


class NoValue(TypeError):
    """The `parameter` of a function with these `parameters` would stay without a value."""

    def __init__(self, parameter: str, known: Sequence[str], parameters: Sequence[str]):
        super().__init__(
            f"nothing to give as {parameter!r}: parameters get their values by name, out of {', '.join(known)}; others from arguments in the spec"
        )
        self.parameter, self.parameters = parameter, parameters


def _details(error: BaseException) -> dict[str, object]:
    """By which the driver knows what to do about it."""
    if isinstance(error, NoSuchFunction):
        return {"defined": {name: list(parameters) for name, parameters in error.defined.items()}}
    if isinstance(error, NoValue):
        return {"parameter": error.parameter, "parameters": list(error.parameters)}
    return {}


def _score(value: Any, name: str) -> float:
    if isinstance(value, str | bytes):  # most often the answer that was read, and not what it is worth
        raise NotAReward(f"{name}the text {_short(repr(value))}, which is not a finite number")
    if value is None:
        hint = "" if name else ": it ended without a return statement, or with one that has no value"
        raise NotAReward(f"{name}None, which is not a finite number{hint}")
    try:
        number = float(value)
    except Exception:  # an array or a tensor of several elements raises what it likes
        number = math.nan
    if not math.isfinite(number):
        raise NotAReward(f"{name}{_short(repr(str(value)))}, which is not a finite number")
    return number


def _metric(value: Any) -> float | None:
    """None for texts, lists and the like, and for a number that has no mean."""
    if not hasattr(value, "__float__"):
        return None
    try:
        number = float(value)
    except Exception:  # as above
        return None
    return number if abs(number) <= LARGEST else None


def _prediction(value: Any) -> str | None:
    """None: there is none, or it cannot be written."""
    try:
        text = "" if value is None else str(value).strip()[:LONGEST_PREDICTION]
        return text.encode(errors="replace").decode() or None  # half a character, as JSON may hold, is in no file
    except Exception:  # a user's object
        return None


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:197] + "..."


def main() -> None:
    path, name, known, seconds = sys.argv[1:]
    die_with_parent()
    questions, answers = channel()
    try:
        function = load(path, name)
        takes = parameters_of(function, json.loads(known))
    except BaseException as error:
        say(answers, error=explain(error, path, name), **_details(error))
        return
    concurrent = is_async(function)
    say(answers, takes=takes, needs=needed(function, takes), concurrent=concurrent)
    with contextlib.suppress(EOFError):
        if concurrent:
            asyncio.run(serve(function, questions, answers, path, name, float(seconds)))
        while True:
            number, values = pickle.load(questions)
            say(answers, number=number, **answer(function, values, path, name))


def channel() -> tuple[BinaryIO, IO[str]]:
    """What the driver asks and where it is answered: stdin and stdout, which the user's code has no hold of."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    os.register_at_fork(after_in_child=answers.close)  # the driver would wait for the end of a child that outlives us
    return questions, answers


async def serve(
    function: Function, questions: BinaryIO, answers: IO[str], path: str, name: str, seconds: float
) -> None:
    """An async function, whose calls do not wait for each other. Raises EOFError when there are no more questions."""

    async def one(number: int, values: dict[str, Any]) -> None:
        say(answers, number=number, **await async_answer(function, values, path, name, seconds))

    calls = set()
    while True:
        call = asyncio.create_task(one(*await asyncio.to_thread(pickle.load, questions)))
        calls.add(call)
        call.add_done_callback(calls.discard)


def load(path: str, name: str) -> Function:
    """The function of that name in the file; the file's directory is importable, as for a script."""
    module = imported(path)
    function = getattr(module, name, None)
    if not callable(function):
        own = {key: value for key, value in vars(module).items() if callable(value) and is_defined_in(module, value)}
        raise NoSuchFunction({key: _names(value) for key, value in own.items()})
    require_imports(path, name)
    return function


def _names(function: Function) -> list[str]:
    """Of its parameters; none where they cannot be read."""
    try:
        return [*inspect.signature(function).parameters]
    except (TypeError, ValueError):
        return []


def is_defined_in(module: ModuleType, value: Callable[..., Any]) -> bool:
    """Not imported there from another file."""
    return getattr(value, "__module__", None) == module.__name__


def is_async(function: Function) -> bool:
    """Also an object whose calls are."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def answer(function: Function, values: dict[str, Any], path: str, name: str) -> dict[str, object]:
    """One call, with whatever the user's code raises turned into text."""
    try:
        returned = function(**values)
        if inspect.iscoroutine(returned):  # of a wrapper that is not async itself
            returned = asyncio.run(returned)
    except BaseException as error:
        return {"error": explain(error, path, name), "kind": "raised"}
    return _judged(returned, path, name)


async def async_answer(
    function: Function, values: dict[str, Any], path: str, name: str, seconds: float
) -> dict[str, object]:
    """As `answer`, within so many seconds."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            returned = await function(**values)
    except BaseException as error:
        if limit.expired():
            return {"error": f"took longer than {seconds:g} s", "kind": "timeout"}
        return {"error": explain(error, path, name), "kind": "raised"}
    return _judged(returned, path, name)


def _judged(returned: Any, path: str, name: str) -> dict[str, object]:
    try:
        reward = split(returned)
    except NotAReward as error:
        return {"error": f"{name}() in {Path(path).name} returned {error}", "kind": "value"}
    return reward._asdict()


def say(stream: IO[str], **message: object) -> None:
    stream.write(json.dumps(message) + "\n")


def die_with_parent() -> None:
    """A function that never returns must not outlive a driver that was killed. Linux only; elsewhere the closed pipe ends this process."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def parameters_of(function: Callable[..., Any], known: Sequence[str]) -> list[str]:
    """Those of the `known` values that the function takes; all of them with `**kwargs`.

    Raises NoValue for a parameter that would stay without one.
    """
    parameters = inspect.signature(function).parameters.values()
    for p in parameters:
        variadic = p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        if not variadic and p.default is p.empty and (p.name not in known or p.kind not in BY_NAME):
            raise NoValue(p.name, known, [other.name for other in parameters])
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return list(known)
    return [p.name for p in parameters if p.name in known and p.kind in BY_NAME]


def needed(function: Callable[..., Any], takes: Sequence[str]) -> list[str]:
    """Those of the names it takes without which it cannot be called."""
    parameters = inspect.signature(function).parameters
    return [name for name in takes if name in parameters and parameters[name].default is inspect.Parameter.empty]


if __name__ == "__main__":
    main()
