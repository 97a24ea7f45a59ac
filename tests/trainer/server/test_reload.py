"""When an update may be loaded over the tensors that vLLM computes with."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import Linear, Module, Parameter
from vllm.model_executor.layers.fused_moe.oracle.unquantized import (
    UnquantizedMoeBackend,
    convert_to_unquantized_kernel_format,
)
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.fp8 import Fp8LinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

from rljob_trainer.server.weights import reload


def module(**attributes: Any) -> Module:
    found = Module()
    for name, value in attributes.items():
        setattr(found, name, value)
    return found


def model(*parts: Module) -> Module:
    return module(**{f"part{i}": part for i, part in enumerate(parts)})


PLAIN = (
    module(),
    module(quant_method=UnquantizedLinearMethod()),
    module(quant_method=UnquantizedEmbeddingMethod()),
    module(quant_method=None),
)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "current_platform", SimpleNamespace(is_cpu=lambda: False))


def test_a_model_without_quantization_is_overwritten_in_place() -> None:
    assert reload.computes_with_what_it_loads(model(*PLAIN))


def test_not_on_a_cpu_where_weights_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "current_platform", SimpleNamespace(is_cpu=lambda: True))
    assert not reload.computes_with_what_it_loads(model(*PLAIN))


def test_not_where_one_layer_makes_something_else_of_its_weights() -> None:
    quantized = Fp8LinearMethod.__new__(Fp8LinearMethod)
    assert not reload.computes_with_what_it_loads(model(*PLAIN, module(quant_method=quantized)))
    latent = module(process_weights_after_loading=lambda _: None)
    assert not reload.computes_with_what_it_loads(model(*PLAIN, latent))


def experts(backend: UnquantizedMoeBackend) -> Module:
    method = UnquantizedFusedMoEMethod.__new__(UnquantizedFusedMoEMethod)
    torch.nn.Module.__init__(method)
    method.unquantized_backend = backend
    return module(quant_method=method)


def are_kept(backend: UnquantizedMoeBackend) -> bool:
    """By vLLM's own conversion."""
    gated: Any = SimpleNamespace(is_act_and_mul=True)
    loaded = torch.randn(2, 8, 4), torch.randn(2, 4, 4)
    taken = convert_to_unquantized_kernel_format(backend, gated, *loaded)
    return all(a.data_ptr() == b.data_ptr() for a, b in zip(loaded, taken, strict=True))


@pytest.mark.parametrize("name", ["TRITON", "BATCHED_TRITON", "FLASHINFER_CUTLASS"])
def test_experts_are_overwritten_in_place_where_their_kernel_takes_them_as_they_are(name: str) -> None:
    backend = UnquantizedMoeBackend[name]
    assert reload.computes_with_what_it_loads(model(*PLAIN, experts(backend))) == are_kept(backend)
    assert are_kept(backend) == ("TRITON" in name)


def test_experts_of_other_kernels_are_not() -> None:
    assert not reload.computes_with_what_it_loads(model(*PLAIN, experts(UnquantizedMoeBackend.FLASHINFER_TRTLLM)))


class Latent(Module):
    """Two matrices, and one that is made of the first after loading, as multi-latent attention has it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.attention = Linear(3, 2, bias=False), Linear(2, 3, bias=False), Module()
        record_metadata_for_reloading(self)
        self.attention.made = Parameter(self.first.weight.T.clone())

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        parameters = dict(self.named_parameters())
        for name, tensor in tensors:
            getattr(parameters[name], "weight_loader", default_weight_loader)(parameters[name], tensor)


def new(*names: str) -> dict[str, torch.Tensor]:
    return {name: torch.randn_like(parameter) for name, parameter in Latent().named_parameters() if name in names}


@torch.no_grad()
def load(model: Module, tensors: dict[str, torch.Tensor]) -> None:
    made = reload.InPlace(model, None, keeps=False)
    made.load(tensors.items())
    made.check()
    made.apply()


def test_what_is_made_of_other_tensors_needs_none_of_its_own() -> None:
    found, update = Latent(), new("first.weight", "second.weight")
    load(found, update)
    assert all(torch.equal(found.get_parameter(name), tensor) for name, tensor in update.items())


def test_a_matrix_that_got_none_is_named() -> None:
    with pytest.raises(reload.LostUpdateError, match="Latent do not reach second.weight: remove "):
        load(Latent(), new("first.weight"))
