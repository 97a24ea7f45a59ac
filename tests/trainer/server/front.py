"""The front before a stand-in for vLLM's engine, and who calls it."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from rljob_trainer.server.front import Front
from rljob_trainer.server.guard import Guard
from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.slices import NOTHING, Needs, Slice

NEEDS = [Needs.of({"experts.1": NOTHING}).as_json(), Needs.of({"q.weight": Slice(0, ((0, 8),))}).as_json()]
SENDERS = [{"address": "127.0.0.1", "port": port} for port in (1, 2)]
TOKEN = {"Authorization": "Bearer secret"}


class Engine:
    """Records what the front asks of vLLM's engine; `fails` names the call that raises."""

    def __init__(self, copies: int = 1) -> None:
        self.calls: list[str] = []
        self.fails = ""
        self.room = True
        """Its workers can keep a policy while they receive the next."""
        self.meanwhile: Callable[[str], Awaitable[Any]] | None = None
        """Happens during each call."""
        self.engine_core = self.renderer = self
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(enable_sleep_mode=True),
            lora_config=None,
            cache_config=SimpleNamespace(kv_cache_size_tokens=4096),
            parallel_config=SimpleNamespace(data_parallel_size=copies),
        )

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **named: Any) -> Any:
            utility = args[0] if name == "call_utility_all_async" else name
            what = args[1] if utility == "collective_rpc" else utility
            self.calls.append(f"{what}:keep" if named.get("mode") == "keep" else what)
            if self.meanwhile:
                await self.meanwhile(self.calls[-1])
            if what == self.fails:
                raise RuntimeError(f"{what} failed")
            if what == "rljob_admit":
                _, senders, serves = args[3]
                assert senders == SENDERS
                return [[(["10.0.0.1", 7000 + worker], serves and self.room, NEEDS[worker])] for worker in range(2)]
            return [[None]] if utility == "collective_rpc" else True

        return call


class Caller:
    """A front with its engine. `meanwhile` happens between a request and its answer."""

    def __init__(self, front: type[Guard] = Front) -> None:
        async def application(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                await self.meanwhile()
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b'"from vLLM"'})

        self.meanwhile: Callable[[], Awaitable[Any]] = lambda: asyncio.sleep(0)
        self.engine = Engine()
        self.front = front(application)

    async def __call__(
        self, method: str, path: str, headers: dict[str, str] | None = None, **body: Any
    ) -> tuple[int, Any]:
        sent: list[dict] = []
        messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

        async def receive() -> dict:
            return messages.pop() if messages else await asyncio.Future()

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "app": SimpleNamespace(state=SimpleNamespace(engine_client=self.engine)),
            "headers": [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()],
            "server": ("localhost", 80),
            "scheme": "http",
        }
        await self.front(scope, receive, send)
        self.headers = {k.decode(): v.decode() for k, v in sent[0].get("headers", [])}
        return sent[0]["status"], json.loads(b"".join(m.get("body", b"") for m in sent[1:]))

    async def update(self, attempt: int, step: int = 1, keep: bool = False) -> list[int]:
        """Statuses of a whole update."""
        steps: list[tuple[str, dict[str, Any]]] = [
            (protocol.OPEN, {"session": "s", "server": "uid", "senders": SENDERS, "keep": keep}),
            (protocol.COMMIT, {"session": "s", "step": step, "digest": "d", "workers": ["1", "2"]}),
        ]
        return [(await self("POST", path, of(attempt), **body))[0] for path, body in steps]


def of(attempt: object) -> dict[str, str]:
    return TOKEN | {protocol.ATTEMPT_HEADER: str(attempt)}
