"""verifiers: the library plays the episode itself, and its harness asks the policy through the OpenAI-compatible endpoint of the trajectory."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from itertools import islice
from typing import Any

from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.task import Task
from verifiers.v1.types import SamplingConfig
from verifiers.v1.utils.loaders import env_config_type, load_environment, load_taskset, resolve_env_config

from rljob_trainer.agents.api import Policy, Prompt, Trajectory
from rljob_trainer.agents.environments.threads import in_thread
from rljob_trainer.agents.episode import Nonsense

TASK = "task"
"""Column of the number of the row's task in the task set."""
NO_KEY = "RLJOB_NO_API_KEY"
"""A variable that nobody sets: the endpoint takes any key."""


def load(environment: str, arguments: dict[str, Any]) -> "Verifiers":
    """`environment`: a task set, which may bring a harness and an Env. `arguments`: fields of the EnvConfig."""
    return Verifiers(environment, load_environment(resolve_env_config(_config(environment, arguments))))


def rows(environment: str, arguments: dict[str, Any], offset: int, size: int, seed: int) -> Iterator[dict[str, Any]]:
    """Tasks from `offset` on, in an order that the seed says; those of an endless task set come in its own order."""
    tasks = load_taskset(resolve_env_config(_config(environment, arguments)).taskset)
    chosen = tasks.shuffle(seed) if tasks.bounded else tasks
    for task in islice(chosen, offset, offset + size):
        yield {"prompt": task.data.prompt_text, "answer": "", TASK: task.data.idx}


def _config(environment: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Programs run in this pod unless the arguments name another runtime; the library's default is a service of its authors."""
    config = {**arguments, "taskset": {"id": environment, **arguments.get("taskset", {})}}
    if "agent" in env_config_type(environment, arguments.get("id", "")).model_fields:
        config["agent"] = {"runtime": {"type": "subprocess"}, **config.get("agent", {})}
    return config


class Verifiers:
    def __init__(self, environment: str, env: Any):
        self._environment, self._env = environment, env
        self._serving, self._starting = AsyncExitStack(), asyncio.Lock()
        self._begun = False
        self._source: Iterator[Task] = iter(env.taskset)
        self._tasks: list[Task] = []
        self._reading = threading.Lock()

    async def rollout(self, prompt: Prompt, policy: Policy, row: Mapping[str, Any]) -> Trajectory:
        async with self._starting:
            if not self._begun:
                await self._serving.enter_async_context(self._env.serving())
                self._begun = True
            task = await in_thread(self._task, row.get(TASK))
        client = EvalClientConfig(base_url=policy.base_url, api_key_var=NO_KEY)
        episode = await self._env.run_episode(task, ModelContext("policy", client, SamplingConfig()))
        errors = [error for part in (episode, *episode.traces) for error in part.errors]
        if errors:
            raise RuntimeError(f"{errors[0].type}: {errors[0].message}")
        if len(episode.traces) != 1:
            raise Nonsense(f"has {len(episode.traces)} agents, and one policy is trained")
        (trace,) = episode.traces
        metrics = {name: value for name, value in trace.metrics.items() if value is not None}
        return await policy.trajectory(trace.reward, metrics, branches=True)

    def _task(self, number: Any) -> Task:
        """Read from the task set in its order, up to this one. A read whose episode was cancelled continues in its thread, and the next one waits."""
        if not isinstance(number, int) or number < 0:
            raise Nonsense(f"plays tasks by their numbers, and the row has none in the column {TASK!r}")
        with self._reading:
            self._tasks += islice(self._source, max(0, number + 1 - len(self._tasks)))
        if number >= len(self._tasks):
            raise Nonsense(f"has {len(self._tasks)} tasks, and the row names number {number}")
        return self._tasks[number]
