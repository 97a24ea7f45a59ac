"""What context-parallel ranks share, and that nothing is lost or seen twice."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from rljob_trainer.wire.trajectory import Trajectory
from trainer.ranks import run_ranks

pytestmark = pytest.mark.slow

LENGTHS, HEADS, GROUPS, WIDTH = (16, 8, 40, 16, 8), 4, 2, 8
CONFIG = {"kv_channels": WIDTH, "window_attn_skip_freq": None, "softmax_type": "vanilla"}


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """query, key, value of the whole pack, and weights of the output."""
    generator = torch.Generator().manual_seed(3)
    shapes = ((HEADS, WIDTH), (GROUPS, WIDTH), (GROUPS, WIDTH), (HEADS * WIDTH,))
    return tuple(torch.randn(sum(LENGTHS), *shape, generator=generator) for shape in shapes)


def oracle(window: int | None) -> tuple[torch.Tensor, ...]:
    """One sequence after the other with an explicit softmax: output, and gradients of query, key and value. A query sees itself and `window` keys
    before it."""
    query, key, value, weights = (x.requires_grad_() for x in inputs())
    parts = []
    for q, k, v in zip(*(x.split(LENGTHS) for x in (query, key, value)), strict=True):
        k, v = (x.repeat_interleave(HEADS // GROUPS, dim=1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / WIDTH**0.5
        unseen = torch.full(scores.shape[1:], float("-inf"))
        scores = scores + unseen.triu(1) + (0 if window is None else unseen.tril(-window - 1))
        parts.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1))
    out = torch.cat(parts)
    (out * weights).sum().backward()
    return out.detach(), query.grad, key.grad, value.grad


@pytest.mark.parametrize("window", [None, 12])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_shared_attention_is_the_attention_of_each_sequence_alone(
    megatron: None, ranks: int, window: int | None
) -> None:
    def on_a_rank() -> list[torch.Tensor]:
        from rljob_trainer.megatron import context_parallel
        from rljob_trainer.megatron.plain_torch.attention import TEDotProductAttention

        group = torch.distributed.group.WORLD
        starts = tuple(torch.tensor((0, *LENGTHS)).cumsum(0).tolist())
        rows = context_parallel.rows(starts, ranks, group.rank())
        query, key, value, weights = (x[rows] for x in inputs())
        config = SimpleNamespace(**CONFIG, window_size=None if window is None else (window, 0))
        layer = TEDotProductAttention(config, 1, pg_collection=SimpleNamespace(cp=group))
        leaves = [x.clone().requires_grad_() for x in (query, key, value)]
        packed = SimpleNamespace(cu_seqlens_q=torch.tensor(starts, dtype=torch.int32))
        out = layer(*leaves, packed_seq_params=packed)
        (out * weights).sum().backward()
        found = torch.zeros(4, sum(LENGTHS), HEADS * WIDTH)
        for place, part in zip(found, (out.detach(), *(x.grad for x in leaves)), strict=True):
            place[rows, : part.flatten(1).shape[1]] = part.flatten(1)
        return [*found]

    whole = [torch.stack(parts).sum(0) for parts in zip(*run_ranks(ranks, on_a_rank), strict=True)]
    for found, expected in zip(whole, oracle(window), strict=True):
        assert (found[:, : expected.flatten(1).shape[1]] - expected.flatten(1)).abs().max() < 1e-5


def test_on_a_gpu_flash_attention_takes_queries_in_groups(megatron: None) -> None:
    """Its own checks of what it is given, on tensors without numbers."""
    from rljob_trainer.megatron.plain_torch.attention import TEDotProductAttention

    one = SimpleNamespace(size=lambda: 1, rank=lambda: 0)
    layer = TEDotProductAttention(SimpleNamespace(**CONFIG, window_size=None), 1, pg_collection=SimpleNamespace(cp=one))
    with FakeTensorMode():
        query, key = (torch.empty(88, n, WIDTH, dtype=torch.bfloat16, device="cuda") for n in (HEADS, GROUPS))
        starts = torch.empty(6, dtype=torch.int32, device="cuda")
        packed = SimpleNamespace(cu_seqlens_q=starts, max_seqlen_q=40)
        assert layer(query, key, key, packed_seq_params=packed).shape == (88, HEADS * WIDTH)


def sample(number: int, prompt: int, response: int) -> Trajectory:
    tokens = tuple(100 * number + i for i in range(prompt + response))
    log_probs = tuple(-0.1 * i for i in range(response))
    return Trajectory.of_response(
        tokens[:prompt],
        tokens[prompt:],
        log_probs,
        policy_step=0,
        prompt_index=number,
        group=number,
        sample=0,
        finish_reason="stop",
        reward=1.0,
        data_source="test",
    )


def place(ranks: int, rank: int, tensor: int = 1) -> Any:
    from rljob_api.sizing.layout import Layout

    layout = Layout(ranks * tensor, tensor=tensor, context=ranks)
    return SimpleNamespace(
        layout=layout, data_rank=0, context_rank=rank, device=torch.device("cpu"), over_context=lambda x: x
    )


@pytest.mark.parametrize(("ranks", "tensor"), [(1, 1), (2, 1), (2, 2), (4, 1)])
def test_labels_are_shifted_before_the_sequences_are_shared(megatron: None, ranks: int, tensor: int) -> None:
    """Of every rank's tokens the target is the sample's next token, and all ranks together have every response token once."""
    from rljob_trainer.megatron.packing import micro_batch

    samples = [sample(1, 3, 6), sample(2, 5, 1), sample(3, 2, 11)]
    seen: list[int] = []
    for rank in range(ranks):
        micro = micro_batch(samples, [0, 1, 2], place(ranks, rank, tensor))
        assert micro.tokens.shape[1] % tensor == 0
        real = micro.sequences.index < 3
        assert torch.equal(micro.targets[real], micro.tokens[0][real] + 1)
        assert torch.equal(micro.positions[0][real], micro.tokens[0][real] % 100)
        assert not micro.columns["mask"][~real].any()
        seen += micro.targets[micro.columns["mask"] > 0].tolist()
        assert micro.learnt.tolist() == micro.columns["mask"].nonzero()[:, 0].tolist()
    assert sorted(seen) == sorted(t for s in samples for t in s.response_tokens)


def test_a_micro_batch_without_a_token_in_the_loss_keeps_one_for_the_output_layer(megatron: None) -> None:
    from rljob_trainer.megatron.packing import micro_batch

    left_out = micro_batch([sample(1, 3, 6)], [0], place(1, 0))
    left_out.put("mask", [torch.zeros(6)])
    padding = micro_batch([], [], place(2, 1))
    for micro in (left_out, padding):
        assert micro.learnt.tolist() == [0] and not micro.columns["mask"].any()


def test_a_trajectory_of_one_token_is_packed_like_any_other(megatron: None) -> None:
    """It has no token after it, and none after that."""
    from rljob_trainer.megatron.packing import micro_batch

    for samples in ([sample(1, 1, 0), sample(2, 2, 3)], [sample(2, 2, 3), sample(1, 1, 0)]):
        micro = micro_batch(samples, [0, 1], place(1, 0), with_last_token=True)
        only = micro.sequences.index == samples.index(min(samples, key=len))
        assert micro.after_next[only].tolist() == [-1]
        whole = micro.sequences.index == samples.index(max(samples, key=len))
        tokens = micro.tokens[0][whole].tolist()
        assert micro.after_next[whole].tolist() == [*tokens[2:], -1, -1]


def test_columns_go_out_to_the_ranks_and_come_back_whole(megatron: None) -> None:
    from rljob_trainer.megatron.packing import micro_batch

    samples = [sample(1, 3, 6), sample(2, 5, 1), sample(3, 2, 11)]
    values = [torch.tensor(s.response_log_probs) for s in samples]
    back = []
    for rank in range(2):
        micro = micro_batch(samples, [0, 1, 2], place(2, rank))
        micro.put("rollout_log_probs", values)
        back.append(micro.row.collect(micro.columns["rollout_log_probs"]))
    for parts, expected in zip(zip(*back, strict=True), values, strict=True):
        assert torch.equal(parts[0] + parts[1], expected)
