"""Remote rewards: a reward service of the user's, and a reward model behind a vLLM server."""

import contextlib
import math
from typing import Any

from rljob_api.spec.model import HttpReward, VllmReward
from rljob_trainer.rewards.post import Post, fill_in
from rljob_trainer.rewards.request import Reward, RewardRequest

VLLM_RETRIES = 2


class HttpService:
    """POST `{"prompt", "response", "answer", "data_source"}`, answered with `{"reward": number}`."""

    def __init__(self, field: str, spec: HttpReward, seconds: float):
        self._field, self._spec, self._seconds = field, spec, seconds
        self._post: Post | None = None

    async def start(self) -> None:
        """Raises ConfigurationError when a header names a variable that is not set."""
        headers = fill_in(f"{self._field}.headers", self._spec.headers)
        self._post = Post(f"{self._field}.url", self._spec.url, headers, self._spec.retries, self._seconds)
        await self._post.open()

    async def score(self, request: RewardRequest) -> Reward:
        """Raises RewardFailed."""
        assert self._post is not None, "start comes first"
        answer = await self._post.ask(
            {
                "prompt": request.prompt,
                "response": request.response,
                "answer": request.answer,
                "data_source": request.data_source,
            }
        )
        return _finite(self._post, answer.get("reward") if isinstance(answer, dict) else None, answer)

    async def stop(self) -> None:
        if self._post is not None:
            await self._post.close()


class VllmServer:
    """vLLM 0.26: POST /pooling (vllm/entrypoints/pooling/pooling/protocol.py). The reward is the model's raw output for the last token.

    It is sent the token ids of the policy: of the text it would make others, with a second beginning and without the end.

    `data` of the answer is [score] from a sequence classifier and [[score], ...], one per token, from a token-wise reward model.
    """

    def __init__(self, field: str, spec: VllmReward, seconds: float):
        self._post = Post(f"{field}.url", f"{spec.url.rstrip('/')}/pooling", {}, VLLM_RETRIES, seconds)

    async def start(self) -> None:
        await self._post.open()

    async def score(self, request: RewardRequest) -> Reward:
        """Raises RewardFailed, also for a model of more than one label."""
        # With the activation, the default, a score would pass a sigmoid.
        answer = await self._post.ask({"input": list(request.tokens), "use_activation": False})
        return _finite(self._post, _last_score(answer), answer)

    async def stop(self) -> None:
        await self._post.close()


def _last_score(answer: Any) -> Any:
    try:
        scores = answer["data"][0]["data"]
        last = scores[-1] if isinstance(scores[-1], list) else scores
        return last[0] if len(last) == 1 else None
    except (KeyError, IndexError, TypeError):
        return None


def _finite(post: Post, value: Any, answer: Any) -> Reward:
    if isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # an integer may be beyond every float
            if math.isfinite(number := float(value)):
                return Reward(number)
    raise post.failed("value", f"answered {str(answer)[:300]}, which does not hold one finite number as the reward")
