"""From samples to the tensors of packed micro-batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from megatron.core.packed_seq_params import PackedSeqParams

from rljob_api.spec import RLJobSpec
from rljob_trainer.batch import Sample
from rljob_trainer.megatron import packing
from rljob_trainer.megatron.parallel import Place


@dataclass(slots=True)
class MicroBatch:
    """Sequences behind each other in one row of t tokens; per-token tensors are [t], at the position that predicts the token."""

    tokens: torch.Tensor
    """[1, t]. A sample's last token is left out: it predicts nothing."""
    positions: torch.Tensor
    """[1, t]. From 0 in every sequence."""
    packed: PackedSeqParams
    targets: torch.Tensor
    mask: torch.Tensor
    """1.0 where the target is a response token, else 0.0."""
    advantages: torch.Tensor
    rollout_log_probs: torch.Tensor
    old_log_probs: torch.Tensor | None = None
    """Of the policy before the step's first update; None: the training pass's own. Last stage only, as the next."""
    reference_log_probs: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """This rank's share of one optimizer step."""

    micro_batches: list[MicroBatch]
    response_tokens: int
    """Of the whole mini-batch over all ranks: the denominator of every mean, fixed before anything is cut."""


def mini_batches(
    samples: Sequence[Sample], advantages: Sequence[float], spec: RLJobSpec, place: Place
) -> list[MiniBatch]:
    """Cut a step's samples, in (group, sample) order, into optimizer steps; a group is never cut, and no mini-batch is empty."""
    groups = sorted({s.group for s in samples})
    count = min(spec.train.mini_batches, len(groups))
    share = {g: i * count // len(groups) for i, g in enumerate(groups)}
    pairs = list(zip(samples, advantages, strict=True))
    return [
        _mini_batch([p for p in pairs if share[p[0].group] == m], spec.train.tokens_per_micro_batch, place)
        for m in range(count)
    ]


def _mini_batch(pairs: list[tuple[Sample, float]], budget: int, place: Place) -> MiniBatch:
    alignment = place.layout.tensor  # sequence parallelism cuts a micro-batch into equal parts
    plan = packing.plan([_fed(s) for s, _ in pairs], budget, alignment, place.layout.data)
    micro_batches = [
        micro_batch([pairs[i] for i in chosen], alignment, place.device) for chosen in plan[place.data_rank]
    ]
    return MiniBatch(micro_batches, sum(len(s.response_tokens) for s, _ in pairs))


def _fed(sample: Sample) -> int:
    """Tokens of a sample that the model reads."""
    return len(sample.prompt_tokens) + len(sample.response_tokens) - 1


def micro_batch(pairs: Sequence[tuple[Sample, float]], alignment: int, device: torch.device) -> MicroBatch:
    """Pack samples with their advantages; filling up to the alignment is one more sequence, of zeros and without weight."""
    tokens: list[int] = []
    targets: list[int] = []
    mask: list[float] = []
    advantages: list[float] = []
    log_probs: list[float] = []
    for sample, advantage in pairs:
        whole, before = sample.prompt_tokens + sample.response_tokens, len(sample.prompt_tokens) - 1
        tokens += whole[:-1]
        targets += whole[1:]
        mask += [0.0] * before + [1.0] * len(sample.response_tokens)
        advantages += [advantage] * (len(whole) - 1)
        log_probs += [0.0] * before + list(sample.log_probs)
    lengths = [_fed(s) for s, _ in pairs]
    filling = -len(tokens) % alignment or (0 if tokens else alignment)
    if filling:
        lengths.append(filling)
    positions = [p for n in lengths for p in range(n)]
    longs = [torch.tensor(x + [0] * (len(positions) - len(x)), device=device) for x in (tokens, targets, positions)]
    floats = [
        torch.tensor(x + [0.0] * filling, dtype=torch.float32, device=device) for x in (mask, advantages, log_probs)
    ]
    return MicroBatch(longs[0][None], longs[2][None], _packed(lengths, device), longs[1], *floats)


def _packed(lengths: list[int], device: torch.device) -> PackedSeqParams:
    starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    longest = max(lengths)
    return PackedSeqParams(
        qkv_format="thd", cu_seqlens_q=starts, cu_seqlens_kv=starts, max_seqlen_q=longest, max_seqlen_kv=longest
    )
