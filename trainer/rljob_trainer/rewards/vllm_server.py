"""Models on vLLM servers as rewards: a discriminative one gives a number, a generative one an answer that holds a number. Servers of the job's
pools are asked the least loaded first, of those that are ready. A request that loses its server goes to another.

Routes and bodies are those of vLLM 0.32 (vllm/entrypoints/pooling/pooling/protocol.py, vllm/entrypoints/openai/chat_completion/protocol.py).
"""

import asyncio
import re
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from rljob_api.callbacks import nothing
from rljob_api.protocol import RolloutEndpoint
from rljob_api.spec.model import Judge
from rljob_trainer.rewards.http_service import Post, TransientError, UnauthorizedError, UnreachableError, finite
from rljob_trainer.rewards.request import Reward, RewardFailed, RewardFailureKind, RewardRequest

AT_ONCE = 64
"""Concurrent calls to one server."""
RETRIES = 4
"""After a status that another server may not answer. A server that cannot be reached costs no retry: it is the job's to bring back."""
STRANGERS = (401, 403, 404)
"""Statuses of whoever has the address of a pod that is gone."""
REFUSALS = 3
"""In a row of one server, after which it is said to hold another token: one alone may be of a stranger who has the address of a pod that is gone."""
REST_SECONDS = 1.0
"""For which a server that failed is asked nothing."""
PLACEHOLDER = re.compile(r"\{(prompt|response|answer)\}")


class Pool:
    """The servers of one pool, as the operator lists them. Requests wait while none is there or all are busy, and go in the order in which they came:
    a server that is free again wakes one of them, however many wait."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._listed: dict[str, str] = {}
        """Pods by the addresses of their servers."""
        self._refusals: Counter[str] = Counter()
        """In a row, by address."""
        self._load: Counter[str] = Counter()
        self._resting: dict[str, float] = {}
        """Until when."""
        self._waiting: deque[asyncio.Future[str]] = deque()

    @property
    def ready(self) -> bool:
        return bool(self._listed)

    @property
    def unauthorized(self) -> list[str]:
        """Pods whose servers refuse the token."""
        return [pod for url, pod in self._listed.items() if self._refusals[url] >= REFUSALS]

    def follow(self, servers: Iterable[RolloutEndpoint]) -> None:
        """These servers answer."""
        self._listed = {server.url: server.pod for server in servers}
        self._hand_out()

    def said(self, url: str, refused: bool) -> None:
        """A server answered, or refused the token."""
        self._refusals[url] = self._refusals[url] + 1 if refused else 0

    @asynccontextmanager
    async def server(self) -> AsyncIterator[str]:
        """The address of one, which counts as loaded meanwhile."""
        url = await self._taken()
        try:
            yield url
        finally:
            self._give_back(url)

    def rest(self, url: str) -> None:
        """Ask this server nothing for a while."""
        self._resting[url] = time.monotonic() + REST_SECONDS
        asyncio.get_running_loop().call_later(REST_SECONDS, self._hand_out)

    async def _taken(self) -> str:
        """The address of a server, which already counts as loaded."""
        turn: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._hand_out()
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its turn came in the same moment
                self._give_back(turn.result())
            raise

    def _give_back(self, url: str) -> None:
        self._load[url] -= 1
        self._hand_out()

    def _hand_out(self) -> None:
        """Give free servers to those who wait."""
        while self._waiting:
            url = self._least_loaded()
            if url is None:
                return
            turn = self._waiting.popleft()
            if not turn.done():  # nobody waits for it any more
                self._load[url] += 1
                turn.set_result(url)

    def _least_loaded(self) -> str | None:
        now = time.monotonic()
        free = (u for u in self._listed if self._load[u] < AT_ONCE and self._resting.get(u, 0.0) <= now)
        return min(free, key=lambda url: self._load[url], default=None)


class Pools:
    """All pools of a job, with the token that its servers ask for."""

    def __init__(self, names: Iterable[str], token: str) -> None:
        self._pools = {name: Pool(name) for name in names}
        self._headers = {"Authorization": f"Bearer {token}"}
        self.wake: Callable[[], None] = nothing
        """Called when `unauthorized` may be another."""

    @property
    def unauthorized(self) -> list[str]:
        """Pods whose servers refuse the token again and again."""
        return [pod for pool in self._pools.values() for pod in pool.unauthorized]

    @property
    def ready(self) -> bool:
        """Every pool has a server."""
        return all(pool.ready for pool in self._pools.values())

    def follow(self, endpoints: Mapping[str, Sequence[RolloutEndpoint]]) -> None:
        """The operator's list changed."""
        for name, pool in self._pools.items():
            pool.follow(endpoints.get(name, ()))

    def post(self, field: str, name: str, path: str, seconds: float) -> "PoolPost":
        """Requests to `path` of the pool's servers. `field`: of the spec, which names the pool."""
        return PoolPost(Post(field, name, self._headers, 0, seconds), self._pools[name], path, seconds, self)


class PoolPost:
    """As Post. `seconds` limits what one server may take; how long requests wait for a server is not limited."""

    def __init__(self, post: Post, pool: Pool, path: str, seconds: float, pools: Pools) -> None:
        self._post, self._pool, self._path, self._seconds, self._pools = post, pool, path, seconds, pools

    async def open(self) -> None:
        await self._post.open()

    async def close(self) -> None:
        await self._post.close()

    async def ask(self, body: dict[str, Any]) -> Any:
        """A server's answer, parsed. Raises RewardFailed."""
        answered = 0
        while True:
            async with self._pool.server() as url:
                try:
                    async with asyncio.timeout(self._seconds):
                        answer = await self._post.once(url + self._path, body, STRANGERS)
                    self._pool.said(url, refused=False)
                    return answer
                except TimeoutError as error:
                    raise self.failed("timeout", f"took longer than {self._seconds:g} s") from error
                except TransientError as error:
                    self._pool.rest(url)
                    self._pool.said(url, refused=isinstance(error, UnauthorizedError))
                    self._pools.wake()
                    answered += not isinstance(error, UnreachableError | UnauthorizedError)
                    if answered > RETRIES:
                        raise self.failed("service", f"{error}, asked {answered} times") from error

    def failed(self, kind: Any, reason: str) -> RewardFailed:
        return self._post.failed(kind, reason)


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
        numbers = self._pattern.findall(text)
        try:
            return float(numbers[-1]) if numbers else None
        except ValueError:
            return None


def filled(prompt: str, request: RewardRequest) -> str:
    """A judge's prompt with the texts of one response. What stands in these is not filled in again."""
    texts = {"prompt": request.prompt, "response": request.response, "answer": request.answer}

    def text_of(placeholder: re.Match[str]) -> str:
        return texts[placeholder[1]]

    return PLACEHOLDER.sub(text_of, prompt)


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
