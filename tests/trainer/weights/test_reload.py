"""When an update may be loaded over the tensors that vLLM computes with."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import Module
from vllm.model_executor.layers.fused_moe.oracle.unquantized import (
    UnquantizedMoeBackend,
    convert_to_unquantized_kernel_format,
)
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.fp8 import Fp8LinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

from rljob_trainer.weights import reload


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
