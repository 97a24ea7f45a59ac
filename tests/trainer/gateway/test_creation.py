"""Which models a service begins to train: adapters, or all parameters of one model at a time."""

from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec.service import ServiceSpec
from rljob_trainer.gateway import service
from rljob_trainer.gateway.service import GatewayService
from rljob_trainer.wire.gateway import decode_result
from rljob_trainer.wire.service import CreateModel, SaveState
from trainer.gateway.test_routes import opened
from trainer.gateway.world import files

REFUSED: list[tuple[int, dict[str, Any], str]] = [
    (32, {}, "a service where that is 0 trains all parameters"),
    (32, {"lora_config": {"rank": 0}}, "rank must be from 1 to 32 (spec.service.maxRank)"),
    (32, {"lora_config": {"rank": 33}}, "rank must be from 1 to 32 (spec.service.maxRank)"),
    (32, {"lora_config": {"rank": "many"}}, "lora_config.rank: "),
    (32, {"lora_config": {"rank": 8, "train_mlp": False, "train_attn": False}}, "train_unembed is taken as false"),
    (32, {"lora_config": {"rank": 8}, "base_model": "other"}, "this service trains base, not other"),
    (32, {"lora_config": {"rank": 8}, "optimizer_config": {"type": "dimuon"}}, "optimizer_config.type: "),
    (0, {"lora_config": {"rank": 1}}, "this service trains all parameters (spec.service.maxRank is 0)"),
    (0, {"lora_config": {"rank": -1}}, "create the model with rank 0"),
    *((0, {"lora_config": {"rank": 0, part: False}}, f"{part} is false, and all parameters are trained")
      for part in ("train_mlp", "train_attn", "train_unembed")),
]  # fmt: skip
"""Largest rank, what is asked for, and the reason."""


@pytest.mark.parametrize(("most", "given", "reason"), REFUSED)
async def test_a_model_that_the_service_does_not_train_fails_with_the_reason_and_the_next_one_is_made(
    tmp_path: Path, most: int, given: dict[str, Any], reason: str
) -> None:
    async with opened(tmp_path, spec=ServiceSpec(max_rank=most), rank=min(most, 4)) as desk:
        asked = {"session_id": desk.session, "base_model": "base"}
        for number, params in enumerate((given, {"lora_config": {"rank": min(most, 32)}}), 1):
            created = await desk.post("create_model", model_seq_id=number, **asked | params)
            assert created.status == 200
        refused = await (await desk.post("retrieve_future", request_id=f"{desk.session}:train:1:0")).json()
        assert reason in refused["error"] and refused["category"] == "user"
        assert not desk.service.book("anybody", f"{desk.session}:train:2").line.failed


async def test_models_that_failed_are_bounded_for_each_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MOST_FAILED", 2)
    async with opened(tmp_path) as desk:
        unfit, fit = {"base_model": "other"}, {"base_model": "base"}
        asked = {"session_id": desk.session, "lora_config": {"rank": 4}}
        asked["session_id"] = (await (await desk.post("create_session")).json())["session_id"]
        assert (await desk.post("create_model", model_seq_id=0, **asked | unfit)).status == 200
        asked["session_id"] = desk.session
        make = [await desk.post("create_model", model_seq_id=n, **asked | m) for n, m in enumerate((unfit, fit), 1)]
        assert [answer.status for answer in make] == [200, 429]
        assert (await desk.post("create_model", model_seq_id=1, **asked | unfit)).status == 200, "the same request"
        assert len(desk.service.books) == 3, "with the one that was there"


@pytest.mark.parametrize("restarts", [False, True], ids=["one gateway", "a gateway that was started again"])
async def test_a_client_that_fetches_why_its_models_fail_may_make_further_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    monkeypatch.setattr(service, "MOST_FAILED", 2)
    wrong = {"path": "tinker://nobody/weights/x", "optimizer": False}
    async with opened(tmp_path) as desk:
        for number in range(1, 8):
            accepted = await desk.post("load_weights", session_id=desk.session, model_seq_id=number, **wrong)
            assert accepted.status == 200, await accepted.text()
            name = (await accepted.json())["request_id"]
            found = await (await desk.post("retrieve_future", request_id=name)).json()
            assert "there is no tinker://nobody" in found["error"] and found["category"] == "user"
        kept = [f"{desk.session}:train:{number}" for number in (0, 6, 7)]
        assert list(desk.service.books) == kept
        assert sum(file.startswith("models/") for file in files(tmp_path)) == 3
    if restarts:
        again = service.GatewayService(desk.service.spec, tmp_path)
        await again.create("anybody", CreateModel(model=f"{desk.session}:train:8", seq=0, rank=4, seed=1))
        assert list(again.books) == [kept[0], kept[2], f"{desk.session}:train:8"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"base_model": "other"}, "this service trains base, not other"),
        ({"optimizer_config": {"type": "dimuon"}}, "optimizer_config.type: "),
        ({"optimizer": "yes, please"}, "optimizer: "),
    ],
)
async def test_a_model_that_would_continue_a_state_otherwise_than_it_was_asked_for_fails(
    tmp_path: Path, given: dict[str, Any], reason: str
) -> None:
    async with opened(tmp_path) as desk:
        path = f"tinker://{desk.model}/weights/x"
        await desk.save(1, SaveState(model=desk.model, seq=1, path=""), path)
        asked = {"session_id": desk.session, "model_seq_id": 1, "path": path, "optimizer": True}
        assert (await desk.post("load_weights", **asked | given)).status == 200
        refused = await (await desk.post("retrieve_future", request_id=f"{desk.session}:train:1:0")).json()
        assert reason in refused["error"]


@pytest.mark.parametrize(
    ("call", "given", "reason"),
    [
        ("optim_step", {"optimizer_params": {"type": "dimuon", "learning_rate": 0.1, "beta1": 0.9}}, ".type: "),
        ("load_weights", {"path": "x" * 5000, "optimizer": True}, "path: "),
        ("load_weights", {"path": "x", "optimizer_config": {"type": "dimuon"}}, "optimizer_config.type: "),
    ],
)
async def test_what_a_model_cannot_do_fails_its_own_future_and_the_next_request_has_a_turn(
    tmp_path: Path, call: str, given: dict[str, Any], reason: str
) -> None:
    async with opened(tmp_path) as desk:
        asked = await desk.post(call, model_id=desk.model, seq_id=1, **given)
        assert asked.status == 200, await asked.text()
        await desk.save(2, SaveState(model=desk.model, seq=2, path=""), f"tinker://{desk.model}/weights/x")
        refused = await (await desk.post("retrieve_future", request_id=f"{desk.model}:1")).json()
        assert reason in refused["error"]


async def test_a_client_hears_why_a_model_was_refused_from_a_gateway_that_was_started_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        asked = {"session_id": desk.session, "model_seq_id": 1, "base_model": "base", "lora_config": {"rank": 64}}
        assert (await desk.post("create_model", **asked)).status == 200
    service = GatewayService(ServiceSpec(), tmp_path)
    found = await service.book("anybody", f"{desk.session}:train:1").result(0, 1.0)
    assert found and "rank must be from 1 to 32" in str(decode_result(found))
    await service.close_session("anybody", desk.session)
    assert not any(service.files.models.iterdir())


async def test_a_second_model_of_which_all_parameters_would_be_trained_is_refused_until_the_first_one_has_ended(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, spec=ServiceSpec(max_rank=0, max_models=1), rank=0) as desk:
        other = await desk.service.open_session("anybody")
        asked = {"session_id": other, "base_model": "base", "lora_config": {"rank": 0}}
        for number in (0, 1):
            model = str((await (await desk.post("create_model", model_seq_id=number, **asked)).json())["model_id"])
            found = await (await desk.post("retrieve_future", request_id=f"{model}:0")).json()
            assert found["error"] == (
                "this service trains 1 models at a time (spec.service.maxModels): end another session first"
            )
        info = await (await desk.post("get_info", model_id=desk.model)).json()
        assert (info["is_lora"], info["lora_rank"]) == (False, None)
        await desk.service.close_session("anybody", desk.session)
        model = str((await (await desk.post("create_model", model_seq_id=2, **asked)).json())["model_id"])
        assert await desk.service.desk.next("life", False, 0.0) and not desk.service.book("anybody", model).line.failed
