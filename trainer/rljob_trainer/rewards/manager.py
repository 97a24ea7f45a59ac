"""Scores responses in the driver: the entries of spec.rewards for a data source, weighted and summed.

If an entry fails, the sample fails. A failure is never counted as a reward of 0.
"""

import asyncio
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

from rljob_api.spec.model import RewardSpec, VllmReward
from rljob_trainer.rewards.http_service import HttpService, Post
from rljob_trainer.rewards.python_file import PythonFile, RewardPods
from rljob_trainer.rewards.request import Reward, RewardFailed, RewardRequest, python_of
from rljob_trainer.rewards.rules import PREDICTIONS, RULES, entries_of
from rljob_trainer.rewards.vllm_server import GenerativeJudge, Pools, RewardModel, Server

_THREADS = ThreadPoolExecutor(2, "responses")
"""For what takes long for a long response, and must not hold the driver's event loop: its text, and the rules that read it. There are few: threads
that wait for the interpreter delay the loop, each by its switch interval of 5 ms."""
MAX_REWARD = 3e38
"""Rewards are trained on in float32, and the mean of a step's rewards has to stay finite."""
VLLM_RETRIES = 2
"""Of a server outside the job."""


async def apart[**P, R](function: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
    """What the function returns in a thread. Raises what it raises."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, partial(function, *arguments, **named))


class Scorer(Protocol):
    """One entry of spec.rewards."""

    async def score(self, request: RewardRequest) -> Reward:
        """Raises RewardFailed."""
        ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class BuiltInRule:
    """A built-in rule."""

    def __init__(self, name: str):
        self._rule, self._prediction = RULES[name], PREDICTIONS[name]

    async def score(self, request: RewardRequest) -> Reward:
        return await apart(self._judged, request.response, request.answer)

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    def _judged(self, response: str, answer: str) -> Reward:
        return Reward(self._rule(response, answer), prediction=self._prediction(response))


def is_scored_by_driver(reward: RewardSpec) -> bool:
    """All but those with `model`, which the ranks score."""
    return not reward.model


class RewardManager:
    """The `scored` entries. Call `start` before the first score and `stop` after the last."""

    def __init__(
        self,
        rewards: Sequence[RewardSpec],
        pools: Pools | None = None,
        scored: Callable[[RewardSpec], bool] = is_scored_by_driver,
        pods: Mapping[int, RewardPods] | None = None,
    ):
        """`pools`: those that entries name. `pods`: where entries run, by their index; all others run next to the driver."""
        self._rewards, self._pods = rewards, pods or {}
        own = {i: spec for i, spec in enumerate(rewards) if scored(spec)}
        self._scorers = {i: _scorer(f"spec.rewards[{i}]", spec, pools, self._pods.get(i)) for i, spec in own.items()}

    @property
    def ready(self) -> bool:
        """Whether there is any process in the pods of each entry that has pods."""
        return all(pods.ready for pods in self._pods.values())

    @property
    def needed_answers(self) -> dict[int, str]:
        """By the index of entries whose functions have no default for a row's answer, what these call it. Known once they have started."""
        own = {i: scorer.needed_answer for i, scorer in self._scorers.items() if isinstance(scorer, PythonFile)}
        return {i: name for i, name in own.items() if name}

    async def start(self) -> None:
        """Start processes and connections. Raises ConfigurationError for a file that cannot be used or a variable that is not set."""
        await asyncio.gather(*(scorer.start() for scorer in self._scorers.values()))

    async def stop(self) -> None:
        await asyncio.gather(*(scorer.stop() for scorer in self._scorers.values()))

    async def score(self, request: RewardRequest) -> Reward:
        """The weighted sum; 0 where only others score. Of what two entries give, a metric or a prediction, the later entry's.

        Raises RewardFailed when any part fails.
        """
        entries = [(i, spec) for i, spec in entries_of(self._rewards, request.data_source) if i in self._scorers]
        parts = await asyncio.gather(*(self._scorers[i].score(request) for i, _ in entries))
        total = sum((spec.weight * part.score for (_, spec), part in zip(entries, parts, strict=True)), 0.0)
        if not abs(total) <= MAX_REWARD:  # also where two infinite parts make no number
            raise RewardFailed(
                "value", "spec.rewards", request.data_source, f"the weighted sum is {total:g}, beyond {MAX_REWARD:g}"
            )
        metrics = dict(ChainMap(*(dict(part.metrics) for part in reversed(parts))))
        return Reward(total, metrics, next((p.prediction for p in reversed(parts) if p.prediction is not None), None))


def _scorer(field: str, spec: RewardSpec, pools: Pools | None, pods: RewardPods | None) -> Scorer:
    python = python_of(spec)
    if python:
        named = (f"{field}.rule", spec.rule) if spec.rule else (f"{field}.python.path", python.path)
        return PythonFile(*named, python, spec.timeout_seconds, pods)
    if spec.http:
        return HttpService(f"{field}.http", spec.http, spec.timeout_seconds)
    if spec.vllm:
        return _model(f"{field}.vllm", spec.vllm, spec.timeout_seconds, pools)
    assert spec.rule is not None, "the spec was checked: exactly one kind of reward"
    return BuiltInRule(spec.rule)


def _model(field: str, spec: VllmReward, seconds: float, pools: Pools | None) -> Scorer:
    path = GenerativeJudge.PATH if spec.judge else RewardModel.PATH
    server: Server
    if spec.pool:
        assert pools is not None, "the spec was checked: its pools are there"
        server = pools.post(f"{field}.pool", spec.pool, path, seconds)
    else:
        assert spec.url is not None, "the spec was checked: pool or url"
        server = Post(f"{field}.url", spec.url.rstrip("/") + path, {}, VLLM_RETRIES, seconds)
    return GenerativeJudge(server, spec.judge) if spec.judge else RewardModel(server)
