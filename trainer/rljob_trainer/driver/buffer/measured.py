"""Adds to a batch what others measure of it before it is trained: models on gangs of their own, or a teacher in a pool, whose log-probabilities
of each response token are distilled.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rljob_api.spec import RLJobSpec
from rljob_api.spec.algorithm import Distillation
from rljob_trainer.data.tokenizer import Tokenizer, tokenizer_of
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards.vllm_server import Pools
from rljob_trainer.wire.arrays import split
from rljob_trainer.wire.batch import ROWS, SCORES, TEACHER_LOG_PROBS, Array, Batch, candidates
from rljob_trainer.wire.trajectory import Floats, Trajectory

Measure = Callable[[Batch], Awaitable[Mapping[str, Array]]]
"""Measures a whole batch. The result has SCORES, [n] float64, or per-token values by name, [response tokens of the step] float32. These are in the
order of the rows, or of ROWS."""
FIELD = "spec.algorithm.distillation.pool"
PATH = "/v1/completions"
SECONDS = 300.0
"""Longest wait for one response."""


async def measured(batch: Batch, roles: Sequence[Measure]) -> Batch:
    """The batch with the measurements of all roles, which work concurrently."""
    began = time.monotonic()
    for columns in await asyncio.gather(*(role(batch) for role in roles)):
        batch = joined(batch, columns)
    return replace(batch, metrics={**batch.metrics, "time/measure": time.monotonic() - began})


def joined(batch: Batch, measured_columns: Mapping[str, Array]) -> Batch:
    """The batch with one measurement: scores are added to its rewards, per-token values to `Batch.measured`."""
    columns = batch.columns.scored(measured_columns[SCORES]) if SCORES in measured_columns else batch.columns
    rows = measured_columns.get(ROWS, np.arange(len(columns))).tolist()
    counts = columns.response_length[rows].tolist()
    nothing = dict.fromkeys(range(len(columns)), np.zeros(0, np.float32))
    tokens = {
        name: nothing | dict(zip(rows, split(values, counts), strict=True))
        for name, values in measured_columns.items()
        if name not in (SCORES, ROWS)
    }
    return replace(batch, columns=columns, measured={**batch.measured, **tokens})


class Teacher:
    """The teacher of spec.algorithm.distillation. Call `start` before the first batch and `stop` after the last."""

    def __init__(self, distillation: Distillation, pools: Pools) -> None:
        """`distillation`: with a pool."""
        assert distillation.pool, "the reference is measured by its own ranks"
        self._pool, self._server = distillation.pool, pools.post(FIELD, distillation.pool, PATH, SECONDS)
        self._count = distillation.top_k or 0
        ids, log_probs = candidates(self._count)
        self._names = [TEACHER_LOG_PROBS, *ids, *log_probs]

    async def start(self) -> None:
        await self._server.open()

    async def stop(self) -> None:
        await self._server.close()

    async def measure(self, batch: Batch) -> Mapping[str, Array]:
        """Log-probabilities at temperature 1 by name, [response tokens of the step] float32: of the sampled tokens, and with `topK` also ids and
        log-probabilities of the likeliest ones (batch.candidates). Raises RewardFailed when the pool fails."""
        rows = range(len(batch.columns.response_length))
        log_probs = await asyncio.gather(*(self._log_probs(batch.trajectories[row]) for row in rows))
        return dict(zip(self._names, np.concatenate([self._nothing, *log_probs], axis=1), strict=True))

    @property
    def _nothing(self) -> Floats:
        return np.zeros((len(self._names), 0), np.float32)

    async def _log_probs(self, trajectory: Trajectory) -> Floats:
        """[names, response_length]. Raises ConfigurationError for a sample with images, which an agent may show: only tokens are sent."""
        if trajectory.images:
            fix = "use distillation.reference, whose ranks read images"
            raise ConfigurationError(FIELD, self._pool, "is sent token ids, and a sample has images", fix)
        tokens = trajectory.tokens.tolist()
        if not trajectory.response_length:
            return self._nothing
        question = {"prompt": tokens, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": self._count}
        answer = await self._server.ask({"model": self._pool} | question)
        try:
            said = answer["choices"][0]["prompt_logprobs"][trajectory.prompt_length :]
            return _floats(said, tokens[trajectory.prompt_length :], self._count)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise self._server.failed(
                "value", f"an answer without a log-probability for each token: {error!r}"
            ) from error


def _floats(said: list[dict[str, dict[str, Any]]], tokens: list[int], count: int) -> Floats:
    """[1 + 2 count, tokens]: the log-probability of each token, then ids and log-probabilities of the `count` likeliest tokens at its position.

    `said`: vLLM's `prompt_logprobs`. Raises KeyError, TypeError or ValueError when one is missing.
    """
    log_probs = np.array(
        [_of_place(entry, token, count) for entry, token in zip(said, tokens, strict=True)], np.float32
    )
    if not np.isfinite(log_probs).all():
        raise ValueError("not finite")
    return log_probs.T


def _of_place(said: dict[str, dict[str, Any]], token: int, count: int) -> list[float]:
    """`said`: [token id] -> entry, of the likeliest tokens and of the sampled one, whatever its rank."""
    best = sorted(said.items(), key=lambda entry: entry[1]["rank"])[:count]
    if len(best) < count:
        raise ValueError(f"{len(best)} tokens, not {count}")
    return [said[str(token)]["logprob"], *(int(name) for name, _ in best), *(of["logprob"] for _, of in best)]


def require_same_vocabulary(spec: RLJobSpec, tokenizer: Tokenizer) -> None:
    """Raise ConfigurationError when the teacher's vocabulary differs from the policy's: the same ids would mean other tokens."""
    section, path = _directory(spec)
    if not path:
        return
    theirs = tokenizer_of(section, path, spec.model.trust_remote_code).get_vocab()
    ours = tokenizer.get_vocab()
    other = next((token for token, number in ours.items() if theirs.get(token) != number), None)
    if other is not None:
        number = theirs.get(other)
        word = f"{other!r} is token {ours[other]} of {Path(spec.model.path).name} and " + (
            "no token here" if number is None else f"token {number} here"
        )
        fix = "choose a teacher of the policy's own family, with the same tokenizer"
        raise ConfigurationError(section, path, f"has another vocabulary than the policy: {word}", fix)


def _directory(spec: RLJobSpec) -> tuple[str, str | None]:
    """Of the teacher, with the field that names it; None: a Megatron checkpoint of the policy's own architecture, which has no vocabulary."""
    distillation = spec.algorithm.distillation
    assert distillation is not None
    if distillation.reference:
        return "spec.reference.path", spec.reference.path
    number = next(i for i, pool in enumerate(spec.pools) if pool.name == distillation.pool)
    return f"spec.pools[{number}].model", spec.pools[number].model
