"""The teacher of spec.algorithm.distillation: a pool of the job that says how likely it would have written each token of a response.

The route and its body are those of vLLM 0.26 (vllm/entrypoints/openai/completion/protocol.py).
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rljob_api.spec import RLJobSpec
from rljob_trainer.arrays import Array
from rljob_trainer.batch import Batch
from rljob_trainer.data.tokenizer import Tokenizer, tokenizer_of
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards.pool import Pools
from rljob_trainer.trajectory import Floats, Trajectory

FIELD = "spec.algorithm.distillation.pool"
PATH = "/v1/completions"
COLUMN = "teacher_log_probs"
SECONDS = 300.0
"""For one response, of one server."""


class Teacher:
    """Call `start` before the first batch and `stop` after the last."""

    def __init__(self, pool: str, pools: Pools) -> None:
        self._pool, self._server = pool, pools.post(FIELD, pool, PATH, SECONDS)

    async def start(self) -> None:
        await self._server.open()

    async def stop(self) -> None:
        await self._server.close()

    async def measure(self, batch: Batch) -> Mapping[str, Array]:
        """COLUMN: [response tokens of the step] float32, log-probabilities at temperature 1. Raises RewardFailed where the pool fails."""
        rows = range(len(batch.columns.response_length))
        found = await asyncio.gather(*(self._log_probs(batch.trajectories[row]) for row in rows))
        return {COLUMN: np.concatenate(found) if found else np.zeros(0, np.float32)}

    async def _log_probs(self, trajectory: Trajectory) -> Floats:
        """[response_length]"""
        tokens = trajectory.tokens.tolist()
        if not trajectory.response_length:
            return np.zeros(0, np.float32)
        question = {"prompt": tokens, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
        answer = await self._server.ask({"model": self._pool} | question)
        try:
            said = answer["choices"][0]["prompt_logprobs"][trajectory.prompt_length :]
            return _floats(said, tokens[trajectory.prompt_length :])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise self._server.failed(
                "value", f"an answer without a log-probability for each token: {error!r}"
            ) from error


def _floats(said: list[dict[str, dict[str, Any]]], tokens: list[int]) -> Floats:
    """Raises KeyError, TypeError or ValueError where a token has none."""
    pairs = zip(said, tokens, strict=True)
    found = np.array([entry[str(token)]["logprob"] for entry, token in pairs], np.float32)
    if not np.isfinite(found).all():
        raise ValueError("not finite")
    return found


def require_same_vocabulary(spec: RLJobSpec, tokenizer: Tokenizer) -> None:
    """A teacher of another vocabulary would judge other words by the same numbers. Raises ConfigurationError."""
    assert spec.algorithm.distillation is not None
    pool = next(p for p in spec.pools if p.name == spec.algorithm.distillation.pool)
    section = f"spec.pools[{spec.pools.index(pool)}].model"
    theirs = tokenizer_of(section, pool.model, spec.model.trust_remote_code).get_vocab()
    ours = tokenizer.get_vocab()
    other = next((token for token, number in ours.items() if theirs.get(token) != number), None)
    if other is not None:
        number = theirs.get(other)
        word = f"{other!r} is token {ours[other]} of {Path(spec.model.path).name} and " + (
            "no token here" if number is None else f"token {number} here"
        )
        fix = "choose a teacher of the policy's own family, with the same tokenizer"
        raise ConfigurationError(section, pool.model, f"has another vocabulary than the policy: {word}", fix)
