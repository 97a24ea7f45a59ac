"""Calls that come again, since their answer was lost with its connection: on every route the first answer, and nothing is done twice.

The SDK gives a call a key, which its repetitions have, too.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rljob_trainer.gateway import clients, service
from rljob_trainer.gateway.wire import repeats
from rljob_trainer.gateway.wire.requests import EXTERNAL_WEIGHTS
from rljob_trainer.gateway.wire.routes import API
from trainer.gateway.test_content import body_of
from trainer.gateway.test_expiry import TTL, save
from trainer.gateway.test_routes import Desk, opened

KEY = "a key of the SDK's"
SAMPLER = {"sampling_session_id": "{session}:sample:0"}
PROMPT = {"prompt": {"chunks": [{"type": "encoded_text", "tokens": [1]}]}, "sampling_params": {"max_tokens": 1}}
NEXT = {"model_id": "{model}", "seq_id": 4}
"""The next request of the model."""
STATE, SAVED = "tinker://{model}/weights/a", "training_runs/{model}/checkpoints"
READS: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "client/config", {}),
    ("POST", "client/dynamic_config", {}),
    ("POST", "telemetry", {}),
    ("POST", "session_heartbeat", {"session_id": "{session}"}),
    ("POST", "get_info", {"model_id": "{model}"}),
    ("POST", "weights_info", {"tinker_path": STATE}),
    ("POST", "retrieve_future", {"request_id": "{model}:1"}),
    ("POST", "retrieve_futures", {"target": SAMPLER, "timeout": 0}),
    ("GET", "healthz", {}),
    ("GET", "get_server_capabilities", {}),
    ("GET", "samplers/{session}:sample:0", {}),
    ("GET", "training_runs", {}),
    ("GET", "training_runs/{model}", {}),
    ("GET", SAVED, {}),
    ("GET", "checkpoints", {}),
    ("GET", "sessions", {}),
    ("GET", "sessions/{session}", {}),
    ("GET", SAVED + "/external_weights/c/external_weights_urls", {}),
]
CHANGES: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "create_session", {}),
    ("POST", "sessions/{session}/finish", {}),
    ("POST", "create_model", {"session_id": "{session}", "model_seq_id": 1, "base_model": "base"}),
    ("POST", "load_weights", {"session_id": "{session}", "model_seq_id": 2, "path": STATE}),
    ("POST", "load_weights", {**NEXT, "path": STATE}),
    ("POST", "forward_backward", NEXT),
    ("POST", "optim_step", {**NEXT, "adam_params": {}}),
    ("POST", "save_weights", {**NEXT, "path": "d"}),
    ("POST", "save_weights_for_sampler", {**NEXT, "sampling_session_seq_id": 7}),
    ("POST", "save_weights_external", {**NEXT, "path": "d", "ttl_seconds": TTL}),
    ("POST", "create_sampling_session", {"session_id": "{session}", "sampling_session_seq_id": 1, "base_model": "base"}),
    ("POST", "asample", {**SAMPLER, **PROMPT, "seq_id": 1}),
    ("POST", "cancel_future", {"request_id": "{session}:sample:0:0"}),
    ("POST", "a_call_that_is_not_there", NEXT),
    ("PUT", SAVED + "/weights/a/ttl", {"ttl_seconds": TTL}),
    ("DELETE", SAVED + "/weights/a", {}),
]  # fmt: skip
"""Of every route: a call that succeeds."""
CASES = [*READS, *CHANGES]


@dataclass
class Caller:
    """Sends a call of the table to a gateway."""

    desk: Desk
    root: Path

    async def send(self, method: str, call: str, body: dict[str, Any], key: str = KEY) -> tuple[int, Any]:
        """Status and body of the answer."""
        path = self._filled(call)
        if call == "forward_backward":
            found = await self.desk.bytes(path, body_of(self.desk, body["seq_id"]), key=key)
        else:
            found = await self.desk.call(method, path, key=key, **self._filled(body))
        return found.status, _lasting(await found.json())

    def state(self) -> object:
        """What a client can tell of: all files of the service, and samples under way."""
        files = {path: path.read_bytes() for path in self.root.rglob("*") if path.is_file()}
        names = {path for path in self.root.rglob("*") if path.is_dir()}
        return files, names, dict(self.desk.samples.held), self.desk.samples.waiting

    def _filled(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._filled(inner) for key, inner in value.items()}
        names = {"session": self.desk.session, "model": self.desk.model}
        return value.format(**names) if isinstance(value, str) else value


def _lasting(answer: Any) -> Any:
    """The answer without moments, which are those of the answer, and links, which have them."""
    if isinstance(answer, list):
        return [_lasting(inner) for inner in answer]
    if not isinstance(answer, dict):
        return answer
    moments = ("urls", "expires", "last_request_time")
    return {name: _lasting(value) for name, value in answer.items() if name not in moments}


@contextlib.asynccontextmanager
async def calling(root: Path) -> AsyncIterator[Caller]:
    """Of a client that has a model, a sampler, a sample that waits, and has saved one thing of each kind."""
    async with opened(root) as desk:
        await save(desk, "save_weights", 1, "a")
        await save(desk, "save_weights_for_sampler", 2, "b")
        await save(desk, "save_weights_external", 3, "c")
        base = {"session_id": desk.session, "sampling_session_seq_id": 0, "base_model": "base"}
        assert (await desk.post("create_sampling_session", **base)).status == 200
        await desk.sample(0)
        yield Caller(desk, root)


def named(cases: list[tuple[str, str, dict[str, Any]]]) -> list[str]:
    return [f"{method} {call} {', '.join(body)}".strip() for method, call, body in cases]


@pytest.mark.parametrize(("method", "call", "body"), CASES, ids=named(CASES))
async def test_a_call_that_comes_again_gets_the_same_answer_and_is_not_done_again(
    tmp_path: Path, method: str, call: str, body: dict[str, Any]
) -> None:
    async with calling(tmp_path) as caller:
        first = await caller.send(method, call, body)
        assert first[0] == 200, first
        done = caller.state()
        assert await caller.send(method, call, body) == first
        assert caller.state() == done


@pytest.mark.parametrize(("method", "call", "body"), CHANGES, ids=named(CHANGES))
async def test_a_call_that_comes_again_while_it_is_carried_out_gets_the_same_answer(
    tmp_path: Path, method: str, call: str, body: dict[str, Any]
) -> None:
    async with calling(tmp_path) as caller:
        both = await asyncio.gather(*(caller.send(method, call, body) for _ in range(2)))
        assert both[0] == both[1] and both[0][0] == 200
        done = caller.state()
        assert await caller.send(method, call, body) == both[0]
        assert caller.state() == done


HELD = [case for case in CHANGES if case[1] not in ("asample", "a_call_that_is_not_there")]


@pytest.mark.parametrize(("method", "call", "body"), HELD, ids=named(HELD))
async def test_a_call_that_was_carried_out_is_not_refused_for_lack_of_room_when_it_comes_again(
    tmp_path: Path, method: str, call: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with calling(tmp_path) as caller:
        first = await caller.send(method, call, body)
        for module, most in ((clients, "MOST_OF_CLIENT"), (clients, "SPARE"), (service, "MOST_SESSIONS")):
            monkeypatch.setattr(module, most, 0)
        assert await caller.send(method, call, body) == first


async def test_a_call_that_was_refused_is_carried_out_when_it_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with calling(tmp_path) as caller:
        with monkeypatch.context() as patched:
            patched.setattr(service, "MOST_SESSIONS", 0)
            assert (await caller.send("POST", "create_session", {}))[0] == 429
        assert (await caller.send("POST", "create_session", {}))[0] == 200


async def test_a_sampler_that_is_asked_for_again_samples_from_what_its_path_named_before(tmp_path: Path) -> None:
    async with calling(tmp_path) as caller:
        desk, path = caller.desk, f"tinker://{caller.desk.model}/sampler_weights/b"
        before = [(await desk.sampler(1, path)).status, desk.service.names.samplers[f"{desk.session}:sample:1"]]
        await save(desk, "save_weights_for_sampler", 4, "b")
        assert [(await desk.sampler(1, path)).status, desk.service.names.samplers[f"{desk.session}:sample:1"]] == before
        other = await desk.sampler(1, f"tinker://{desk.model}/sampler_weights/another")
        assert other.status == 400 and "samples from something else" in (await other.json())["detail"]


async def test_of_the_calls_of_a_client_the_last_ones_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "MOST_CALLS", 3)
    async with calling(tmp_path) as caller:
        opened = [await caller.send("POST", "create_session", {}, str(i)) for i in range(4)]
        assert [await caller.send("POST", "create_session", {}, str(i)) for i in (1, 2, 3)] == opened[1:]
        assert await caller.send("POST", "create_session", {}, "0") not in opened


async def test_the_table_has_every_route(tmp_path: Path) -> None:
    called = [(method, re.sub("{[^}]*}", "x", call)) for method, call, _ in CASES]
    async with opened(tmp_path) as desk:
        for route in desk.routes:
            path = route.resource.canonical.removeprefix(API) if route.resource else ""
            if route.method in ("POST", "GET", "PUT", "DELETE") and not path.startswith(EXTERNAL_WEIGHTS):
                pattern = re.sub("{[^}]*}", "[^/]+", path)
                assert any(method == route.method and re.fullmatch(pattern, call) for method, call in called), path
