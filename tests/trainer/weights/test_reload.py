"""When an update may be loaded over the tensors that vLLM computes with."""

from types import SimpleNamespace
from typing import Any

import pytest
from torch.nn import Module
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
