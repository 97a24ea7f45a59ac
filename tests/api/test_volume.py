"""What checkpoints and exports take, and a sync sends, by hand: a small real job has the same (tests/trainer/megatron/test_volume.py)."""

from typing import Any

import pytest

from api.sized import MOE, QWEN_1_5B, gpu_spec
from rljob_api.sizing.host import host_memory
from rljob_api.sizing.network import NOTHING, hand_over, owned, sync
from rljob_api.sizing.shape import NOMINAL, Shape
from rljob_api.sizing.traffic import links
from rljob_api.sizing.volume import volume_space

BFLOAT16, FLOAT32 = {"path": "/data/model", "dtype": "bfloat16"}, {"path": "/data/model", "dtype": "float32"}
LEARNS = {"speculation": {"method": "eagle3", "draft": "/data/draft", "tokens": 3, "learningRate": 1e-4}}
DRAFT = 4096 * 128 * (3 * 32 + 4 * 8) + 3 * 4096 * 12288 + 3 * 4096**2 + 32_000 * 4096
"""Parameters of one for Qwen3-8B with 32,000 tokens, each of which has a number of 8 bytes in files and updates."""
LAYER = MOE.outside(1, 0) + MOE.mixed + 2 * 64**2
SCORES = NOMINAL.parameters - NOMINAL.embedding


@pytest.mark.parametrize(
    ("shape", "changes", "checkpoint", "export"),
    [
        (NOMINAL, {"model": BFLOAT16}, 14 * NOMINAL.parameters, 2 * NOMINAL.parameters),
        (NOMINAL, {"model": FLOAT32}, 16 * NOMINAL.parameters, 4 * NOMINAL.parameters),
        (
            NOMINAL,
            {"critic": {}, "algorithm": {"advantage": "gae"}},
            14 * (NOMINAL.parameters + SCORES),
            2 * NOMINAL.parameters,
        ),
        (
            QWEN_1_5B,
            {"critic": {}, "algorithm": {"advantage": "gae"}},
            28 * QWEN_1_5B.parameters,
            2 * QWEN_1_5B.parameters,
        ),
        (
            MOE,
            {"model": BFLOAT16 | {"multiTokenPrediction": True}},
            14 * (MOE.parameters + LAYER),
            2 * (MOE.parameters + LAYER),
        ),
        (
            NOMINAL,
            {"rollout": LEARNS},
            14 * NOMINAL.parameters + 12 * DRAFT,
            2 * (NOMINAL.parameters + DRAFT) + 8 * 32_000,
        ),
        (
            NOMINAL,
            {"model": FLOAT32, "rollout": LEARNS},
            16 * NOMINAL.parameters + 12 * DRAFT,
            4 * (NOMINAL.parameters + DRAFT) + 8 * 32_000,
        ),
    ],
    ids=["bfloat16", "float32", "critic", "critic of tied", "multi-token", "draft", "draft in float32"],
)
def test_checkpoints_and_exports_have_all_that_learns(
    shape: Shape, changes: dict[str, Any], checkpoint: float, export: float
) -> None:
    found = volume_space(gpu_spec(**changes), shape)
    assert (found.checkpoint, found.export) == (checkpoint, export)


def test_a_reward_model_has_a_score_in_place_of_an_output_layer() -> None:
    data = {"train": ["/data/train.parquet"], "maxTokens": 32}
    found = volume_space(gpu_spec(task="rewardModel", data=data, train={"steps": 1, "samplesPerStep": 4}), NOMINAL)
    assert (found.checkpoint, found.export) == (14 * SCORES, 2 * SCORES)


def test_a_job_that_only_evaluates_writes_nothing_and_hands_no_batch_over() -> None:
    spec = gpu_spec(evaluation={"only": True}, data={"validation": ["/data/heldout.parquet"]})
    found = volume_space(spec, NOMINAL)
    assert (found.checkpoints, found.exports, found.total) == (0, 0, 0)
    assert host_memory(spec, NOMINAL).checkpoint == 0
    assert hand_over(spec, NOMINAL) == NOTHING


def test_a_service_writes_what_its_clients_say() -> None:
    """Checkpoints and snapshots of a client's adapters, or of the whole model."""
    adapters = gpu_spec(task="service", service={"maxTokens": 64, "maxRank": 16})
    assert adapters.adapters
    learnt = 36 * NOMINAL.adapters(adapters.adapters)
    found = volume_space(adapters, NOMINAL)
    assert (found.checkpoint, found.export, found.total) == (14 * learnt, 2 * learnt, 0)
    whole = volume_space(gpu_spec(task="service", service={"maxTokens": 64, "maxRank": 0, "maxModels": 1}), NOMINAL)
    assert (whole.checkpoint, whole.export) == (14 * NOMINAL.parameters, 2 * NOMINAL.parameters)
    assert hand_over(adapters, NOMINAL) == NOTHING


def test_a_draft_that_learns_is_sent_with_every_policy_and_copied_once_for_a_checkpoint() -> None:
    kept = {"speculation": {k: v for k, v in LEARNS["speculation"].items() if k != "learningRate"}}
    plain, learns = gpu_spec(rollout=kept), gpu_spec(rollout=LEARNS)
    sent = 2 * DRAFT + 8 * 32_000
    assert owned(learns, NOMINAL)[0] - owned(plain, NOMINAL)[0] == sent
    assert sync(learns, NOMINAL).received - sync(plain, NOMINAL).received == sent
    [one], [other] = (links(spec, NOMINAL, 1) for spec in (plain, learns))
    assert other.bytes - one.bytes == sent
    assert host_memory(learns, NOMINAL).checkpoint - host_memory(plain, NOMINAL).checkpoint == 12 * DRAFT


def test_the_layer_for_multi_token_prediction_is_sent_with_every_policy() -> None:
    plain, further = (gpu_spec(model=BFLOAT16 | {"multiTokenPrediction": given}) for given in (False, True))
    assert sync(further, MOE).received - sync(plain, MOE).received == 2 * LAYER
    [one], [other] = (links(spec, MOE, 1) for spec in (plain, further))
    assert other.bytes - one.bytes == 2 * LAYER
