"""gpt-oss in vLLM, whose `load_weights` copies experts and sinks into the parameters past their loaders."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import Module
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import cleanup_dist_env_and_memory, init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
from vllm.utils.torch_utils import set_default_torch_dtype

from rljob_trainer.machine import free_port
from rljob_trainer.weights.reload import LostUpdateError, load
from trainer.megatron.models import make_config, random_model

pytestmark = pytest.mark.slow


def policy(path: Path, seed: int) -> dict[str, torch.Tensor]:
    """The tensors of a random model."""
    random_model(make_config("gpt_oss", hidden_size=128), seed).save_pretrained(path)
    return {name: t for file in path.glob("*.safetensors") for name, t in load_file(file).items()}


@pytest.fixture
def policies(tmp_path: Path) -> list[dict[str, torch.Tensor]]:
    return [policy(tmp_path / str(seed), seed) for seed in (1, 2)]


@pytest.fixture
def config(tmp_path: Path, policies: object) -> Iterator[VllmConfig]:
    found = EngineArgs(str(tmp_path / "1"), dtype="float32", skip_tokenizer_init=True).create_engine_config()
    with set_current_vllm_config(found):
        init_distributed_environment(1, 0, f"tcp://127.0.0.1:{free_port()}", 0, "gloo")
        initialize_model_parallel(1, 1)
        yield found
    cleanup_dist_env_and_memory()


def served(config: VllmConfig, tensors: dict[str, torch.Tensor]) -> Module:
    """The model as a server has it, but for what CPUs make of its weights after loading."""
    config.compilation_config.static_forward_context.clear()  # of another one
    with set_default_torch_dtype(torch.float32), torch.no_grad():
        model = initialize_model(config)
        record_metadata_for_reloading(model)
        load(model, config.model_config, iter(tensors.items()), in_place=True)
    return model


def test_an_update_in_place_is_the_same_as_a_start_with_its_weights(
    config: VllmConfig, policies: list[dict[str, torch.Tensor]]
) -> None:
    old, new = policies
    model, fresh = served(config, old), dict(served(config, new).named_parameters())
    with torch.no_grad():
        load(model, config.model_config, iter(new.items()), in_place=True)
    found = dict(model.named_parameters())
    assert found.keys() == fresh.keys()
    assert [name for name in fresh if not torch.equal(found[name], fresh[name])] == []


def test_a_layer_wise_update_is_refused_rather_than_served_without_its_experts(
    config: VllmConfig, policies: list[dict[str, torch.Tensor]]
) -> None:
    model = served(config, policies[0])
    process_weights_after_loading(model, config.model_config, torch.device("cpu"))
    with torch.no_grad(), pytest.raises(LostUpdateError, match=r"GptOssForCausalLM.*\.attn\.sinks.*w13_weight"):
        load(model, config.model_config, iter(policies[1].items()), in_place=False)
