"""A service that cannot take or do a request now: scripts wait for hours, and hear why."""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
from tinker import types

from rljob_trainer.gateway import clients
from rljob_trainer.gateway.journal import Journal
from trainer.gateway.process import BASE, GatewayProcess, Surroundings
from trainer.gateway.test_content import body_of
from trainer.gateway.test_routes import Desk, opened
from trainer.pod.gang import wait_for

SECONDS = 120


def no_room(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


CALLS = {
    "optim_step": {"adam_params": {}},
    "save_weights": {"path": "a"},
    "save_weights_for_sampler": {"path": "a"},
    "save_weights_external": {"path": "a"},
    "load_weights": {"path": "tinker://a/weights/b"},
}


async def submitted(desk: Desk, call: str) -> tuple[int, str]:
    """Status and detail."""
    if call == "forward_backward":
        answer = await desk.bytes(call, body_of(desk, 1, tokens=100))
    else:
        answer = await desk.post(call, model_id=desk.model, seq_id=1, **CALLS[call])
    return answer.status, await answer.text()


@pytest.mark.parametrize("call", ["forward_backward", *CALLS])
async def test_a_request_of_a_model_is_held_while_there_is_no_room_and_is_taken_after_that(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as desk:
        with monkeypatch.context() as full:
            full.setattr(Journal, "append", no_room)
            status, why = await submitted(desk, call)
            assert status == 402 and "a volume of the service does not work now: No space left" in why
        with monkeypatch.context() as full:
            full.setattr(clients, "MOST_OF_CLIENT", 10)
            full.setattr(clients, "SPARE", 0)
            status, why = await submitted(desk, call)
            assert status == 402 and "10 and 536870912 are the most" in why
        assert (await submitted(desk, call))[0] == 200
        assert 1 in desk.service.books[desk.model].line.entries


async def test_what_can_wait_for_ever_by_the_sdk_is_for_later_on_a_full_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as desk:
        await desk.post(
            "create_sampling_session", session_id=desk.session, sampling_session_seq_id=0, base_model="base"
        )
        monkeypatch.setattr(Journal, "append", no_room)
        prompt = {"chunks": [{"type": "encoded_text", "tokens": [1]}]}
        asked = {"sampling_session_id": f"{desk.session}:sample:0", "seq_id": 0, "prompt": prompt}
        assert (await desk.post("asample", **asked, sampling_params={"max_tokens": 1})).status == 429


@pytest.mark.slow
def test_the_user_of_a_script_reads_why_it_waits_and_the_script_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inputs = {"target_tokens": np.ones(50, np.int64), "weights": np.ones(50, np.float32)}
    columns = {name: types.TensorData.from_numpy(values) for name, values in inputs.items()}
    datum = types.Datum(model_input=types.ModelInput.from_ints([7] * 50), loss_fn_inputs=columns)
    (gateway := GatewayProcess(tmp_path)).start()
    with (
        Surroundings(gateway, tmp_path).running() as others,
        tinker.ServiceClient(base_url=gateway.url, api_key="tml-any") as service,
    ):
        others.call(others.may_work.set)
        training = service.create_lora_training_client(BASE, rank=4, train_unembed=False).result(timeout=SECONDS)
        with gateway.full_volume(4000):
            asked = training.forward([datum] * 10, "cross_entropy")
            wait_for(
                "the reason",
                lambda: "a volume of the service does not work now: File too large" in caplog.text,
                SECONDS,
            )
        assert asked.result(timeout=SECONDS).loss_fn_outputs[0]["logprobs"].to_numpy().tolist() == [7] * 50
    gateway.kill()


@pytest.mark.parametrize("away", ["", "RLJob x has no trainers now"])
async def test_a_poll_says_whether_there_is_anybody_to_wait_for(
    tmp_path: Path, away: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljob_trainer.gateway.wire.routes.POLL_SECONDS", 0.0)
    async with opened(tmp_path) as desk:
        desk.service.away = away
        poll = await (await desk.post("retrieve_future", request_id=f"{desk.model}:0")).json()
        assert (poll["type"], poll["queue_state"]) == ("try_again", "paused_capacity" if away else "active")
        assert poll["queue_state_reason"] == (away or "waiting for the ranks")
