"""The process that runs an agent: `python -m rljob_trainer.agents.worker KIND TARGET DETAILS`.

TARGET is a file, and DETAILS a JSON list of functions in it: of the one that makes trajectories (KIND python), or of those that the policy may call
(KIND tools). For all other kinds TARGET is an environment of a library, and DETAILS a JSON object of its arguments (environments/). First it says
{"takes": names, "concurrent": true, "tools": JSON schemas} or {"error": text}. Then it reads pickled triples: ("begin", number, values) begins a
trajectory, ("cancel", number, None) ends it, and ("answer", number, (question, {"value": ...} or {"error": text})) answers a question. It writes
lines of JSON: {"number", "question", "method", "arguments"} asks the driver, {"number", "question", "given_up": true} says that nobody waits for an
answer any more, and the last line of a trajectory is {"number", "trajectory":
{"sequences", "reward", "metrics", "rewards"} or null} or {"number", "error": text, "kind": text} with a kind of recording.py. The driver keeps the
time: a trajectory that takes too long is cancelled.
"""

import asyncio
import inspect
import json
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import IO, Any, BinaryIO

from rljob_trainer.agents import environments
from rljob_trainer.agents.api import Policy, PolicyError, Prompt, Trajectory, ids
from rljob_trainer.agents.episode import Nonsense
from rljob_trainer.agents.tool_calls import ToolCalls
from rljob_trainer.rewards.worker import Function, NotAReward, channel, die_with_parent, load, say, split
from rljob_trainer.user_code import explain

PARAMETERS = ("prompt", "policy", "row")


def main() -> None:
    kind, target, given = sys.argv[1:]
    details = json.loads(given)
    is_library = kind in environments.MODULES
    explained = partial(_explained, target) if is_library else partial(explain, path=target, name=details[0])
    die_with_parent()
    questions, answers = channel()
    try:
        function, schemas = _library(kind, target, details) if is_library else _own(kind, target, details)
    except BaseException as error:
        say(answers, error=explained(error))
        return
    say(answers, takes=PARAMETERS, concurrent=True, tools=schemas)
    asyncio.run(Rollouts(function, answers, explained).serve(questions))


def _library(kind: str, environment: str, arguments: dict[str, Any]) -> tuple[Function, list[dict[str, Any]]]:
    return environments.load(kind, environment, arguments).rollout, []


def _own(kind: str, path: str, names: list[str]) -> tuple[Function, list[dict[str, Any]]]:
    """What makes trajectories, and schemas of what the policy may call."""
    functions = [load(path, name) for name in names]
    if kind == "tools":
        calls = ToolCalls(functions)
        return calls.rollout, calls.schemas
    return _agent(functions[0]), []


def _explained(environment: str, error: BaseException) -> str:
    """For example `environment gsm8k: KeyError: 'reward_spec' (env.py, line 17)`."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"environment {environment}: {type(error).__name__}: {error}"[:3000] + place


def _agent(function: Function) -> Function:
    """Raises TypeError for what is none."""
    if not inspect.iscoroutinefunction(function):
        raise TypeError("has to be async: async def rollout(prompt, policy, row)")
    inspect.signature(function).bind(*PARAMETERS)
    return function


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
            elif kind == "answer" and (future := self._waiting.get((number, value[0]))) and not future.done():
                future.set_result(value[1])

    async def _run(self, number: int, values: Mapping[str, Any]) -> None:
        try:
            policy = Policy(partial(self._ask, number), values["base_url"])
            found = await self._function(Prompt(**values["prompt"]), policy, values["row"])
            say(self._answers, number=number, **returned(found))
        except Nonsense as error:
            say(self._answers, number=number, **_strange(str(error)))
        except BaseException as error:
            say(self._answers, number=number, error=self._explained(error), kind="raised")
        finally:
            del self._tasks[number]

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


def returned(found: Any) -> dict[str, Any]:
    """What the function returned, as JSON says it."""
    if found is None:
        return {"trajectory": None}
    if not isinstance(found, Trajectory):
        return _strange(f"returned {type(found).__name__}, not a Trajectory of rljob_trainer.agents or None")
    try:
        sequences = [ids(tokens) for tokens in (found.tokens, *found.branches)]
        said = split({**found.metrics, "score": found.reward})
        rewards = [split(reward).score for reward in found.rewards]
    except NotAReward as error:
        return _strange(f"returned a Trajectory whose reward or metrics hold {error}")
    except (TypeError, ValueError) as error:
        return _strange(f"returned a Trajectory whose tokens are no ids: {error}")
    trajectory = {"sequences": sequences, "reward": said.score, "metrics": said.metrics, "rewards": rewards}
    return {"trajectory": trajectory}


def _strange(text: str) -> dict[str, Any]:
    return {"error": text, "kind": "value"}


if __name__ == "__main__":
    main()
