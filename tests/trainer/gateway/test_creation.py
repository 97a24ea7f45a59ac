"""Which models a service begins to train: adapters, or all parameters of one model at a time."""

from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec.service import ServiceSpec
from trainer.gateway.test_routes import opened


@pytest.mark.parametrize(
    ("most", "lora", "reason", "right"),
    [
        (32, {}, "a service where that is 0 trains all parameters", {"lora_config": {"rank": 32}}),
        (32, {"lora_config": {"rank": 0}}, "rank must be from 1 to 32 (spec.service.maxRank)", {"lora_config": {"rank": 1}}),
        (32, {"lora_config": {"rank": 33}}, "rank must be from 1 to 32 (spec.service.maxRank)", {"lora_config": {"rank": 8}}),
        (0, {"lora_config": {"rank": 1}}, "this service trains all parameters (spec.service.maxRank is 0)", {}),
        (0, {"lora_config": {"rank": -1}}, "create the model with rank 0", {"lora_config": {"rank": 0}}),
    ],
)  # fmt: skip
async def test_a_model_that_the_service_does_not_train_is_refused_with_the_reason_and_the_next_one_is_made(
    tmp_path: Path, most: int, lora: dict[str, Any], reason: str, right: dict[str, Any]
) -> None:
    async with opened(tmp_path, spec=ServiceSpec(max_rank=most), rank=min(most, 4)) as desk:
        asked = {"session_id": desk.session, "model_seq_id": 1, "base_model": "base"}
        refused = await desk.post("create_model", **asked, **lora)
        assert refused.status == 400 and reason in await refused.text()
        assert (await desk.post("create_model", **asked, **right)).status == 200


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
