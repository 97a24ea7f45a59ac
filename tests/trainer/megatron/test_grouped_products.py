"""Gradients of all experts' weights in one product, against float64, and when Transformer Engine's own way is taken."""

import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from rljob_api.callbacks import always
from rljob_trainer.megatron.compat import grouped_products
from rljob_trainer.megatron.compat.grouped_products import add_gradients, at_once, joined

ROWS = [0, 5, 1, 0, 26, 0]
IN, OUT = 16, 24
ONE_BY_ONE = "one by one"
ROUNDING = 2**-8
"""Of bfloat16, twice."""


def values(rows: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)).bfloat16()


INPUTS, GRADIENTS = values(sum(ROWS), IN, 1), values(sum(ROWS), OUT, 2)


def expected() -> list[torch.Tensor]:
    parts = zip(INPUTS.double().split(ROWS), GRADIENTS.double().split(ROWS), strict=True)
    return [gradients.t() @ inputs for inputs, gradients in parts]


def buffers(value: float, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.full((OUT, IN), value, dtype=dtype) for _ in ROWS]


def assert_close(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=ROUNDING, atol=ROUNDING)


def test_gradients_are_added_to_those_of_earlier_micro_batches_also_of_experts_without_tokens() -> None:
    totals = buffers(3.0)
    add_gradients(INPUTS, GRADIENTS, ROWS, totals, add=True)
    assert_close([total - 3 for total in totals], expected())
    assert torch.equal(totals[0], torch.full((OUT, IN), 3.0)), "it met no token"


@pytest.mark.parametrize("experts", [1, 2, 5])
def test_large_experts_are_multiplied_so_many_at_a_time_as_may_be_held(
    monkeypatch: pytest.MonkeyPatch, experts: int
) -> None:
    """One and five at a time leave some without any tokens."""
    monkeypatch.setattr(grouped_products, "PRODUCTS", experts * IN * OUT * 2 + 1)
    totals = buffers(3.0)
    add_gradients(INPUTS, GRADIENTS, ROWS, totals, add=True)
    assert_close([total - 3 for total in totals], expected())


@pytest.mark.parametrize(("add", "left"), [(True, 3.0), (False, 0.0)])
def test_a_rank_whose_experts_meet_no_token_has_gradients_of_zero(add: bool, left: float) -> None:
    totals = buffers(3.0)
    add_gradients(INPUTS[:0], GRADIENTS[:0], [0] * len(ROWS), totals, add=add)
    assert all(torch.equal(total, torch.full((OUT, IN), left)) for total in totals)


def test_gradients_take_the_place_of_what_a_buffer_held() -> None:
    totals = buffers(float("nan"), torch.bfloat16)
    add_gradients(INPUTS, GRADIENTS, ROWS, totals, add=False)
    assert_close(totals, expected())


def test_parts_of_one_tensor_are_joined_without_a_copy() -> None:
    whole = joined(INPUTS.split(ROWS))
    assert whole is not None
    assert torch.equal(whole, INPUTS)
    assert whole.data_ptr() == INPUTS.data_ptr()


@pytest.mark.parametrize(
    "parts",
    [
        [INPUTS[5:], INPUTS[:5]],
        [INPUTS[:5], INPUTS[6:]],
        [INPUTS[:5].clone(), INPUTS[5:].clone()],
        [INPUTS[:5], INPUTS[5:].t().contiguous().t()],
    ],
    ids=["in another order", "with a gap", "of two tensors", "with rows that are columns"],
)
def test_parts_that_do_not_lie_one_after_the_other_are_not_joined(parts: list[torch.Tensor]) -> None:
    assert joined(parts) is None


def multiply(fits: Any = always, **changed: Any) -> tuple[Any, list[torch.Tensor]]:
    """What the call of Transformer Engine's backward pass returns, and the buffers after it."""
    given: dict[str, Any] = {
        "inputs": INPUTS.split(ROWS),  # a tuple, as autograd gives back what was saved
        "gradients": list(GRADIENTS.split(ROWS)),
        "totals": buffers(0.0),
        "quantization_params": [None] * len(ROWS),
        "out_dtype": torch.bfloat16,
        "layout": "NT",
        "grad": True,
        "m_splits": ROWS,
        "use_bias": False,
        "accumulate": True,
    } | changed
    positional = [given.pop(name) for name in ("inputs", "gradients", "totals")]
    return at_once(lambda *_, **__: ONE_BY_ONE, fits)(*positional, **given), positional[2]


def test_gradients_of_weights_are_made_at_once() -> None:
    (totals, biases, _), held = multiply()
    assert totals is held
    assert len(biases) == len(ROWS)
    assert_close(totals, expected())


@pytest.mark.parametrize(
    "changed",
    [
        {"layout": "TN"},
        {"layout": "NN"},
        {"use_bias": True},
        {"fits": lambda device: False},
        {"inputs": INPUTS.float().split(ROWS)},
        {"gradients": [torch.nn.Parameter(part) for part in GRADIENTS.split(ROWS)]},
        {"inputs": values(sum(ROWS), 4, 1).split(ROWS)},
        {"inputs": [object()] * len(ROWS)},
        {"inputs": [INPUTS[:5].clone(), INPUTS[5:].clone()], "m_splits": [5, 27]},
    ],
    ids=[
        "forward",
        "of inputs",
        "with biases",
        "another GPU",
        "float32",
        "another type",
        "narrow",
        "float8",
        "not of one tensor",
    ],
)
def test_all_else_is_left_to_transformer_engine(changed: dict[str, Any]) -> None:
    found, totals = multiply(**changed)
    assert found == ONE_BY_ONE
    assert not any(total.any() for total in totals)


@pytest.mark.parametrize(
    ("layout", "shapes", "way"),
    [
        ("TN", ((64, 128), (5, 128)), "1"),
        ("TN", ((4, 128), (5, 128)), "0"),
        ("NN", ((128, 64), (5, 128)), "1"),
        ("NN", ((128, 4), (5, 128)), "0"),
        ("NT", ((128, 64), (128, 4)), "0"),
        ("NT", ((5, 64), (5, 64)), "1"),
    ],
    ids=[
        "forward",
        "into adapters of rank 4",
        "gradients of inputs",
        "gradients of rank 4",
        "of weights of rank 4",
        "of weights",
    ],
)
def test_rows_that_the_kernels_refuse_are_left_to_cublas(
    monkeypatch: pytest.MonkeyPatch, layout: str, shapes: tuple[tuple[int, int], tuple[int, int]], way: str
) -> None:
    """CUTLASS reads and writes rows of 16 bytes, and ends the process where it cannot; it is chosen by the variable alone."""
    monkeypatch.setenv(grouped_products.VARIABLE, "1")
    product = at_once(lambda *_, **__: os.environ[grouped_products.VARIABLE], lambda device: False)
    first, second = ([torch.zeros(shape, dtype=torch.bfloat16)] for shape in shapes)
    assert product(first, second, [], layout=layout) == way
    assert os.environ[grouped_products.VARIABLE] == "1"
