"""gpt-oss in vLLM, whose `load_weights` copies experts and sinks into the parameters past their loaders."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from vllm.config import VllmConfig

from rljob_trainer.server.weights.reload import LostUpdateError
from tests.trainer.server.vllm_models import Makes, Tensors, engine, in_place, loaded, policy, served, shadow, update

pytestmark = pytest.mark.slow


@pytest.fixture
def policies(tmp_path: Path) -> list[Tensors]:
    return [policy(tmp_path / str(seed), seed, "gpt_oss", hidden_size=128) for seed in (1, 2)]


@pytest.fixture
def config(tmp_path: Path, policies: object) -> Iterator[VllmConfig]:
    with engine(tmp_path / "1") as found:
        yield found


@pytest.mark.parametrize("target", [in_place, shadow])
def test_an_update_is_the_same_as_a_start_with_its_weights(
    config: VllmConfig, policies: list[Tensors], target: Makes
) -> None:
    old, new = policies
    model, fresh = loaded(config, old), dict(loaded(config, new).named_parameters())
    update(target(model, config, True), new, pieces=3)
    found = dict(model.named_parameters())
    assert found.keys() == fresh.keys()
    assert [name for name in fresh if not torch.equal(found[name], fresh[name])] == []


def test_a_layer_wise_update_is_refused_rather_than_served_without_its_experts(
    config: VllmConfig, policies: list[Tensors]
) -> None:
    model = served(config, policies[0])
    with pytest.raises(LostUpdateError, match=r"GptOssForCausalLM.*\.attn\.sinks.*w13_weight"):
        update(in_place(model, config), policies[1])
