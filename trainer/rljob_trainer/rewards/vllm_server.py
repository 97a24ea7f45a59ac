"""Models on vLLM servers as rewards: a discriminative one gives a number, a generative one an answer that holds a number.

Routes and bodies are those of vLLM 0.32 (vllm/entrypoints/pooling/pooling/protocol.py, vllm/entrypoints/openai/chat_completion/protocol.py).
"""

import re
from typing import Any, Protocol

from rljob_api.spec.model import Judge
from rljob_trainer.rewards.http_service import finite
from rljob_trainer.rewards.request import Reward, RewardFailed, RewardFailureKind, RewardRequest

PLACEHOLDER = re.compile(r"\{(prompt|response|answer)\}")


class Server(Protocol):
    """One address, or the servers of a pool."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def ask(self, body: dict[str, Any]) -> Any:
        """Raises RewardFailed."""
        ...

    def failed(self, kind: RewardFailureKind, reason: str) -> RewardFailed: ...


class RewardModel:
    """The reward is the model's raw output for the last token.

    It is sent the token ids of the policy: of the text it would make others, with a second beginning and without the end.

    `data` of the answer is [score] from a sequence classifier and [[score], ...], one per token, from a token-wise reward model.
    """

    PATH = "/pooling"

    def __init__(self, server: Server) -> None:
        self._server = server

    async def start(self) -> None:
        await self._server.open()

    async def score(self, request: RewardRequest) -> Reward:
        """Raises RewardFailed, also for a model of more than one label."""
        # With the activation, the default, a score would pass a sigmoid.
        answer = await self._server.ask({"input": list(request.tokens), "use_activation": False})
        return finite(self._server, _last_score(answer), answer)

    async def stop(self) -> None:
        await self._server.close()


class GenerativeJudge:
    """The reward is the number that the judge's answer holds."""

    PATH = "/v1/chat/completions"

    def __init__(self, server: Server, judge: Judge) -> None:
        self._server, self._judge, self._pattern = server, judge, re.compile(judge.score)

    async def start(self) -> None:
        await self._server.open()

    async def score(self, request: RewardRequest) -> Reward:
        """Raises RewardFailed, also for an answer without a number where the pattern matches last."""
        question = {"role": "user", "content": filled(self._judge.prompt, request)}
        sampling = {"max_tokens": self._judge.max_tokens, "temperature": self._judge.temperature}
        answer = await self._server.ask({"messages": [question]} | sampling)
        return finite(self._server, self._number(_text(answer)), answer)

    async def stop(self) -> None:
        await self._server.close()

    def _number(self, text: str) -> float | None:
        found = self._pattern.findall(text)
        try:
            return float(found[-1]) if found else None
        except ValueError:
            return None


def filled(prompt: str, request: RewardRequest) -> str:
    """A judge's prompt with the texts of one response. What stands in these is not filled in again."""
    texts = {"prompt": request.prompt, "response": request.response, "answer": request.answer}
    return PLACEHOLDER.sub(lambda found: texts[found[1]], prompt)


def _text(answer: Any) -> str:
    """Of the first choice; empty where there is none."""
    try:
        return answer["choices"][0]["message"]["content"] or ""
    except (KeyError, IndexError, TypeError):
        return ""


def _last_score(answer: Any) -> Any:
    try:
        scores = answer["data"][0]["data"]
        last = scores[-1] if isinstance(scores[-1], list) else scores
        return last[0] if len(last) == 1 else None
    except (KeyError, IndexError, TypeError):
        return None
