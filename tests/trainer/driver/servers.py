"""A rollout server in the test's own process: the two routes that the client uses, deterministic answers, and faults on demand."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from aiohttp import web

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.wire.completions import MEDIA_TYPE, Completion, encode
from rljob_trainer.wire.rollout_server import unpack_tokens
from rljob_trainer.wire.weights.protocol import GENERATE, INTERRUPT, PARSE, STATE, STEP_HEADER

EOS = ord(".")
PACE = 0.01


def answer_of(drawn: Sequence[Completion], policy_step: int) -> web.Response:
    """As the generate route answers."""
    body = b"".join(encode(drawn).pieces)
    return web.Response(body=body, content_type=MEDIA_TYPE, headers={STEP_HEADER: str(policy_step)})


class Server:
    """Answers "1+1=" with "2." after `delay` seconds. `policy_step` is what a publish would have set."""

    def __init__(self, pod: str, policy_step: int = 0, delay: float = 0.0):
        self.pod, self.policy_step, self.delay, self.dying = pod, policy_step, delay, False
        self.answering = asyncio.Event()
        """While it is clear, requests for responses wait."""
        self.answering.set()
        self.probed = 0
        """How often its state was asked for."""
        self.token, self.refused = "", 0
        """Which it wants, if any, and how many requests came without."""
        self.requests: list[dict] = []
        self.wrong: Callable[[int, int, dict], bool] = lambda left, sample, body: False
        """Whether sample `sample` of "left+...=" is answered wrongly."""

    async def __aenter__(self) -> "Server":
        app = web.Application()
        posts = {GENERATE: self._generate, INTERRUPT: self._interrupt, PARSE: self._parse}
        app.add_routes([web.get(STATE, self._state), *(web.post(path, route) for path, route in posts.items())])
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        self.endpoint = RolloutEndpoint(pod=self.pod, pod_uid=f"uid-{self.pod}", url=f"http://127.0.0.1:{port}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _state(self, request: web.Request) -> web.Response:
        if self.dying:
            return web.Response(status=500)
        self.probed += 1
        if self.token and request.headers["Authorization"] != f"Bearer {self.token}":
            self.refused += 1
            return web.json_response({"error": "a bearer token is required"}, status=401)
        return web.json_response({"attempt": 1, "policy_step": self.policy_step, "digest": ""})

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        body["prompt"] = unpack_tokens(body["prompt"])
        self.requests.append(body)
        await asyncio.sleep(self.delay)
        await self.answering.wait()
        if self.dying:
            request.transport.close()
            return web.Response(status=500)
        left, right = "".join(map(chr, body["prompt"])).rstrip("=").split("+")
        drawn = [_drawn(int(left) + int(right) + self.wrong(int(left), i, body)) for i in range(body["n"])]
        return answer_of(drawn, self.policy_step)

    async def _interrupt(self, _: web.Request) -> web.Response:
        return web.json_response({})

    async def _parse(self, _: web.Request) -> web.Response:
        """Of a server whose texts have no format."""
        return web.Response(status=404)


class Thinker(Server):
    """Writes `thoughts` blanks before it answers, a token every PACE seconds, from where the request left off, until it is interrupted.

    The log-probability of every token is less 1 the step of the policy that wrote it, which may come while it writes.
    """

    def __init__(self, pod: str, thoughts: Callable[[int, int], int]):
        super().__init__(pod)
        self.thoughts, self._writing = thoughts, asyncio.Event()
        self.interrupted = 0
        self.answered = 0
        """Requests whose answer was written to its end."""
        self.finished = set[tuple[int, int]]()
        """Their prompts' numbers, each less 1."""

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        body["prompt"] = unpack_tokens(body["prompt"])
        self.requests.append(body)
        policy, stop = self.policy_step, self._writing
        question, written = "".join(map(chr, body["prompt"])).split("=")
        left, right = map(int, question.split("+"))
        whole = f"{' ' * self.thoughts(left, right)}{left + right}."
        text, writers = "", list[int]()
        while written + text != whole and len(text) < body["max_tokens"] and not stop.is_set():
            text += whole[len(written + text)]
            writers.append(self.policy_step)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), PACE)
        ended = "stop" if written + text == whole else "abort" if stop.is_set() else "length"
        if ended == "stop":
            self.answered += 1
            self.finished.add((left - 1, right - 1))
        later = [(i, step) for i, step in enumerate(writers) if step != ([policy, *writers])[i]]
        drawn = Completion([*map(ord, text)], [-1.0 - step for step in writers], ended, None, later)
        return answer_of([drawn] * body["n"], policy)

    async def _interrupt(self, _: web.Request) -> web.Response:
        self.interrupted += 1
        self._writing.set()
        self._writing = asyncio.Event()
        return web.json_response({})


class Seeing(Server):
    """Says w7 of every image, in every turn."""

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        drawn = [Completion([7, 1], [-1.0, -1.0], "stop")] * body["n"]
        return answer_of(drawn, self.policy_step)


def _drawn(answer: int) -> Completion:
    tokens = [*map(ord, str(answer)), EOS]
    return Completion(tokens, [-0.5 - i for i in range(len(tokens))], "stop")
