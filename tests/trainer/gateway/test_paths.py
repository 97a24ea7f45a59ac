"""What becomes of calls whose path names nothing: as they come over HTTP, and as the official SDK makes them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tinker
from tinker import types

from api.test_type_errors import without_words
from rljob_trainer.gateway.wire.requests import ClientRequest
from rljob_trainer.wire.gateway import encode
from rljob_trainer.wire.service import WorkResult
from trainer.gateway.test_routes import Desk, opened

STATE, SNAPSHOT = "tinker://nobody/weights/x", "tinker://nobody/sampler_weights/x"
LOAD_NEW = {"session_id": "{session}", "model_seq_id": 1, "optimizer": False}
OF_MODEL = {"model_id": "{model}", "seq_id": 1}

FUTURES: list[tuple[str, dict[str, Any], str]] = [
    ("load_weights", LOAD_NEW | {"path": STATE}, f"there is no {STATE}"),
    ("load_weights", LOAD_NEW | {"path": "x"}, "there is no x"),
    ("load_weights", OF_MODEL | {"path": STATE}, f"there is no {STATE}"),
    ("load_weights", OF_MODEL | {"path": "x", "optimizer": True}, "there is no x"),
    *((call, OF_MODEL | {"path": path}, "path: ")
      for call in ("save_weights", "save_weights_for_sampler", "save_weights_external") for path in ("../x", "", "a/b")),
]  # fmt: skip
"""Calls of which the protocol has a future, which fails."""
ANSWERS: list[tuple[str, str, dict[str, Any], int]] = [
    ("POST", "create_sampling_session", {"session_id": "{session}", "sampling_session_seq_id": 1, "model_path": SNAPSHOT}, 404),
    ("POST", "weights_info", {"tinker_path": STATE}, 404),
    ("GET", "training_runs/nobody", {}, 404),
    ("GET", "training_runs/nobody/checkpoints/external_weights/x/external_weights_urls", {}, 404),
    ("PUT", "training_runs/nobody/checkpoints/weights/x/ttl", {"ttl_seconds": None}, 404),
    ("DELETE", "training_runs/nobody/checkpoints/weights/x", {}, 404),
]  # fmt: skip
"""Calls that are answered at once, and have no future."""


async def work(desk: Desk) -> None:
    """Ranks for which everything succeeds."""
    while True:
        piece = await desk.service.desk.next("life", False, 1.0)
        if piece:
            await desk.service.desk.done(piece.ticket, encode(WorkResult()))


@contextlib.asynccontextmanager
async def working(root: Path) -> AsyncIterator[Desk]:
    async with opened(root) as desk:
        ranks = asyncio.create_task(work(desk))
        yield desk
        ranks.cancel()
        await asyncio.wait({ranks})


def of_desk(desk: Desk, body: dict[str, Any]) -> dict[str, Any]:
    names = {"session": desk.session, "model": desk.model}
    return {key: value.format(**names) if isinstance(value, str) else value for key, value in body.items()}


@pytest.mark.parametrize(("call", "body", "why"), FUTURES)
async def test_a_path_that_names_nothing_fails_the_future_and_the_next_request_has_its_turn(
    tmp_path: Path, call: str, body: dict[str, Any], why: str
) -> None:
    async with working(tmp_path) as desk:
        accepted = await desk.post(call, **of_desk(desk, body))
        assert accepted.status == 200, await accepted.text()
        found = await (await desk.post("retrieve_future", request_id=(await accepted.json())["request_id"])).json()
        assert why in found["error"] and found["category"] == "user"
        following = 2 if "seq_id" in body else 1
        await desk.post("save_weights", model_id=desk.model, seq_id=following, path="kept")
        saved = await desk.post("retrieve_future", request_id=f"{desk.model}:{following}")
        assert (await saved.json())["path"] == f"tinker://{desk.model}/weights/kept"


@pytest.mark.parametrize(("method", "call", "body", "status"), ANSWERS)
async def test_a_path_that_names_nothing_is_said_at_once_by_a_call_without_a_future(
    tmp_path: Path, method: str, call: str, body: dict[str, Any], status: int
) -> None:
    async with opened(tmp_path) as desk:
        found = await desk.call(method, call, **of_desk(desk, body))
        assert found.status == status and "there is no" in (await found.json())["detail"]


def all_requests(kind: type[ClientRequest]) -> Iterator[type[ClientRequest]]:
    yield kind
    for derived in kind.__subclasses__():
        yield from all_requests(derived)


@pytest.mark.parametrize("kind", all_requests(ClientRequest))
def test_whatever_is_wrong_with_a_request_there_are_words_for_it(kind: type[ClientRequest]) -> None:
    assert without_words(kind) == set()


Script = Callable[[tinker.ServiceClient, Any, tinker.RestClient], object]
SCRIPTS: dict[str, tuple[type[Exception], Script]] = {
    "create_training_client_from_state": (
        tinker.RequestFailedError,
        lambda service, training, rest: service.create_training_client_from_state(STATE).result(),
    ),
    "create_training_client_from_state_with_optimizer": (
        tinker.RequestFailedError,
        lambda service, training, rest: service.create_training_client_from_state_with_optimizer(STATE).result(),
    ),
    "load_state": (tinker.RequestFailedError, lambda service, training, rest: training.load_state(STATE).result()),
    "load_state_with_optimizer": (
        tinker.RequestFailedError,
        lambda service, training, rest: training.load_state_with_optimizer(STATE).result(),
    ),
    "create_sampling_client": (
        tinker.NotFoundError,
        lambda service, training, rest: service.create_sampling_client(model_path=SNAPSHOT).result(),
    ),
    "create_sampling_client of a training client": (
        tinker.NotFoundError,
        lambda service, training, rest: training.create_sampling_client(SNAPSHOT).result(),
    ),
    "get_weights_info_by_tinker_path": (
        tinker.NotFoundError,
        lambda service, training, rest: rest.get_weights_info_by_tinker_path(STATE).result(),
    ),
    "get_training_run_by_tinker_path": (
        tinker.NotFoundError,
        lambda service, training, rest: rest.get_training_run_by_tinker_path(STATE).result(),
    ),
    "set_checkpoint_ttl_from_tinker_path": (
        tinker.NotFoundError,
        lambda service, training, rest: rest.set_checkpoint_ttl_from_tinker_path(STATE, None).result(),
    ),
    "delete_checkpoint_from_tinker_path": (
        tinker.NotFoundError,
        lambda service, training, rest: rest.delete_checkpoint_from_tinker_path(STATE).result(),
    ),
}
"""What the SDK raises, and the call."""


def script(url: str, name: str) -> None:
    """A loop makes a call, and continues."""
    error, call = SCRIPTS[name]
    with tinker.ServiceClient(base_url=url, api_key="tml-any") as service:
        training = service.create_lora_training_client("base", rank=4, train_unembed=False).result()
        rest = tinker.RestClient(base_url=url, api_key="tml-any")
        with pytest.raises(error, match="there is no"):
            call(service, training, rest)
        assert training.optim_step(types.AdamParams(learning_rate=0.1)).result() is not None


@pytest.mark.parametrize("name", SCRIPTS)
async def test_the_sdk_raises_the_reason_from_the_call_and_the_loop_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    async with working(tmp_path) as desk:
        await asyncio.to_thread(script, desk.url, name)
