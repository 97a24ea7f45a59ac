"""Gated delta nets on packed rows, against the formula one token at a time in numpy, in float64."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_trainer.megatron.plain_torch.gated_delta_net import CHUNK, causal_conv1d, chunk_gated_delta_rule, l2norm

HEADS, KEYS, VALUES, WINDOW = 2, 4, 6, 4


def row(lengths: list[int], seed: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """q, k, v, g, beta of a row in which sequences of these lengths are packed, and where they start and end."""
    torch.manual_seed(seed)
    tokens = sum(lengths)
    q, k = (l2norm(torch.randn(1, tokens, HEADS, KEYS)) for _ in range(2))
    v, decays = torch.randn(1, tokens, HEADS, VALUES), torch.rand(1, tokens, HEADS)
    ends = torch.tensor([0, *lengths]).cumsum(0).int()
    return [q, k, v, -3 * decays, torch.rand(1, tokens, HEADS)], ends


def one_by_one(q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Equation 10 of arXiv 2412.06464 for one sequence: [t, h, ...]; the read is scaled as in Qwen3-Next."""
    state, out = np.zeros((HEADS, KEYS, VALUES)), []
    for t in range(len(q)):
        state = state * np.exp(g[t])[:, None, None]
        missing = v[t] - np.einsum("hkv,hk->hv", state, k[t])
        state = state + np.einsum("hk,hv->hkv", k[t], missing * beta[t][:, None])
        out.append(np.einsum("hkv,hk->hv", state, q[t]) / np.sqrt(KEYS))
    return np.array(out).reshape(-1, HEADS, VALUES)


LENGTHS = st.lists(st.integers(1, 3 * CHUNK), min_size=1, max_size=6)


@settings(max_examples=30)
@given(lengths=LENGTHS, seed=st.integers(0, 2**16))
def test_each_sequence_of_a_row_is_what_the_formula_gives_it_alone(lengths: list[int], seed: int) -> None:
    given_, ends = row(lengths, seed)
    out, _ = chunk_gated_delta_rule(*given_[:3], g=given_[3], beta=given_[4], cu_seqlens=ends)
    whole = [x[0].double().numpy() for x in given_]
    expected = [one_by_one(*(x[a:b] for x in whole)) for a, b in pairwise(ends)]
    np.testing.assert_allclose(out[0].numpy(), np.concatenate(expected), atol=2e-5)


def test_no_gradient_crosses_the_border_of_two_sequences() -> None:
    given_, ends = row([70, 1, 60], 0)
    for x in given_:
        x.requires_grad_()
    out, _ = chunk_gated_delta_rule(*given_[:3], g=given_[3], beta=given_[4], cu_seqlens=ends)
    out[:, 70].sum().backward()
    for x in given_:
        assert x.grad is not None and torch.isfinite(x.grad).all()
        assert not x.grad[:, :70].any() and not x.grad[:, 71:].any()
    assert given_[2].grad is not None and given_[2].grad[:, 70].any()


def test_gradients_are_those_of_finite_differences() -> None:
    given_, ends = row([5, CHUNK + 3], 1)
    for x in given_:
        x.requires_grad_()

    def loss() -> torch.Tensor:
        out, _ = chunk_gated_delta_rule(*given_[:3], g=given_[3], beta=given_[4], cu_seqlens=ends)
        return (out * torch.linspace(-1, 1, VALUES)).square().sum()

    loss().backward()
    for x in given_:
        assert x.grad is not None
        direction = torch.randn_like(x)
        with torch.no_grad():
            x += 1e-3 * direction
            above = loss()
            x -= 2e-3 * direction
            below = loss()
            x += 1e-3 * direction
        assert float((above - below) / 2e-3) == pytest.approx(float((x.grad * direction).sum()), rel=2e-2, abs=1e-2)


@settings(max_examples=30)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), bias=st.booleans())
def test_a_convolution_sees_no_token_of_another_sequence(lengths: list[int], bias: bool) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(1, sum(lengths), 5), torch.randn(5, WINDOW)
    added = torch.randn(5) if bias else None
    ends = torch.tensor([0, *lengths]).cumsum(0)
    out, _ = causal_conv1d(x, weight, added, activation="silu", cu_seqlens=ends)
    alone = [
        torch.nn.functional.conv1d(part.T[None], weight[:, None], added, padding=WINDOW - 1, groups=5)[
            0, :, : len(part)
        ].T
        for part in x[0].split(lengths)
    ]
    torch.testing.assert_close(out[0], torch.nn.functional.silu(torch.cat(alone)))


PROGRAM = """
import sys
import torch
from rljob_trainer.megatron.plain_torch.gated_delta_net import causal_conv1d
from rljob_trainer.rank.main import prepare
prepare()
assert "fla" not in sys.modules, "a process from which ranks are forked has imported it"
from megatron.core.ssm.gated_delta_net import gdn
assert gdn.HAVE_FLA
x, weight = torch.randn(1, 5, 3), torch.randn(3, 4)
torch.testing.assert_close(gdn.causal_conv1d(x=x, weight=weight), causal_conv1d(x, weight))
"""


@pytest.mark.extra
def test_flash_linear_attention_in_the_image_does_not_keep_ranks_from_being_forked(tmp_path: Path) -> None:
    """It asks the driver for the GPU when it is imported, after which no fork of this process can use one."""
    (tmp_path / "fla").mkdir()
    (tmp_path / "fla" / "__init__.py").write_text("raise RuntimeError('asks the driver')")
    path = os.pathsep.join([str(tmp_path), *(p for p in sys.path if p)])
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, env=dict(os.environ) | {"PYTHONPATH": path})
