"""A rollout server in the test's own process: the two routes that the client uses, deterministic answers, and faults on demand."""

import asyncio
from collections.abc import Callable

from aiohttp import web

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.weights.wire import STATE, STEP_HEADER

EOS = ord(".")


class Server:
    """Answers "1+1=" with "2." after `delay` seconds. `policy_step` is what a publish would have set."""

    def __init__(self, pod: str, policy_step: int = 0, delay: float = 0.0):
        self.pod, self.policy_step, self.delay, self.dying = pod, policy_step, delay, False
        self.requests: list[dict] = []
        self.wrong: Callable[[int, int, dict], bool] = lambda left, sample, body: False
        """Whether sample `sample` of "left+...=" is answered wrongly."""

    async def __aenter__(self) -> "Server":
        app = web.Application()
        app.add_routes([web.get(STATE, self._state), web.post("/v1/completions", self._complete)])
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        self.endpoint = RolloutEndpoint(pod=self.pod, pod_uid=f"uid-{self.pod}", url=f"http://127.0.0.1:{port}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _state(self, _: web.Request) -> web.Response:
        return web.json_response({"attempt": 1, "policy_step": self.policy_step, "digest": ""})

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        await asyncio.sleep(self.delay)
        if self.dying:
            request.transport.close()
            return web.Response(status=500)
        left, right = "".join(map(chr, body["prompt"])).rstrip("=").split("+")
        choices = [
            _choice(i, int(left) + int(right) + self.wrong(int(left), i, body)) for i in reversed(range(body["n"]))
        ]
        return web.json_response({"choices": choices}, headers={STEP_HEADER: str(self.policy_step)})


def _choice(index: int, answer: int) -> dict:
    tokens = [*map(ord, str(answer)), EOS]
    log_probs = {"token_logprobs": [-0.5 - i for i in range(len(tokens))]}
    return {"index": index, "finish_reason": "stop", "token_ids": tokens, "logprobs": log_probs}
