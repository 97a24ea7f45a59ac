"""A reward service of the user's."""

from rljob_api.spec.model import HttpReward
from rljob_trainer.rewards.post import Post, fill_in, finite
from rljob_trainer.rewards.request import Reward, RewardRequest


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
        return finite(self._post, answer.get("reward") if isinstance(answer, dict) else None, answer)

    async def stop(self) -> None:
        if self._post is not None:
            await self._post.close()
