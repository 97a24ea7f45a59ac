"""The whole loss of a mini-batch: its terms, and that no cut of the batch shows in it."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_trainer.algorithm.losses import LOSSES, of_branches, token_weights
from rljob_trainer.algorithm.terms import Terms, policy_terms
from rljob_trainer.algorithm.tokens import Sequences, TokenColumns
from trainer.algorithm.cases import algorithm, columns, responses, tensor
from trainer.algorithm.strategies import PROPERTY

AGGREGATIONS = ("tokenMean", "sequenceMeanTokenMean", "sequenceMeanTokenSum", "sequenceMeanTokenSumNorm")
EVERYTHING: dict[str, Any] = {
    "entropyCoefficient": 0.2,
    "kl": {"coefficient": 0.3},
    "distillation": {"pool": "teacher", "coefficient": 0.7, "where": "loss"},
    "clip": {"low": 0.3, "high": 0.4},
    "rolloutCorrection": {"importanceSampling": "sequence", "reject": {"level": "sequence", "low": 0.7, "high": 1.5}},
}
LENGTHS = (3, 1, 4, 2)


def random_tokens(count: int, seed: int = 0) -> TokenColumns:
    numbers = torch.Generator().manual_seed(seed)

    def around(centre: float) -> torch.Tensor:
        return centre + 0.4 * torch.randn(count, generator=numbers, dtype=torch.float64)

    return columns(
        log_probs=around(-1).requires_grad_(),
        entropy=around(2).requires_grad_(),
        old_log_probs=around(-1),
        rollout_log_probs=around(-1),
        reference_log_probs=around(-1),
        teacher_log_probs=around(-1),
        advantages=around(0),
    )


def part(tokens: TokenColumns, chosen: Sequence[int]) -> TokenColumns:
    return TokenColumns(*(None if c is None else c[list(chosen)] for c in tokens))


def measure(tokens: TokenColumns, sequences: Sequences, **fields: Any) -> Terms:
    spec = algorithm(**fields)
    return policy_terms(spec, LOSSES[spec.loss], spec.kl.coefficient, tokens, sequences)


@pytest.mark.parametrize("where", ["loss", "reward"])
def test_the_loss_is_the_sum_of_its_weighted_terms(where: str) -> None:
    """With the penalty in the reward the divergence is only measured."""
    fields = {"kl": {"coefficient": 0.5, "where": where, "estimator": "k2"}, "entropyCoefficient": 0.1}
    tokens = columns(entropy=[2.0], reference_log_probs=[-1.5], advantages=[3.0])
    found = measure(tokens, responses(1), **fields)
    assert found.loss.item() == pytest.approx(-3.0 - 0.1 * 2.0 + (0.5 * 0.125 if where == "loss" else 0.0))
    assert found.policy.item() == -3.0
    assert found.entropy.item() == 2.0
    assert found.kl.item() == pytest.approx(0.1065306597)  # k3: exp(-0.5) + 0.5 - 1
    assert measure(tokens._replace(reference_log_probs=None), responses(1), **fields).kl.item() == 0.0


@pytest.mark.parametrize("loss", ["ppo", "gspo", "cispo"])
def test_a_policy_that_has_not_moved_has_ratio_one(loss: str) -> None:
    """What a learning rate of 0 must show in every step."""
    tokens = random_tokens(10)
    still = tokens._replace(old_log_probs=tokens.log_probs.detach(), reference_log_probs=tokens.log_probs.detach())
    found = measure(still, responses(*LENGTHS), loss=loss, kl={"coefficient": 0.1})
    assert found.ratio.tolist() == [1.0] * 10
    assert not any(column.any() for column in (found.approx_kl, found.kl, found.clipped))


def test_what_the_mask_leaves_out_has_neither_loss_nor_metrics() -> None:
    tokens = random_tokens(6)._replace(mask=tensor([0.0, 1, 1, 0, 0, 0]))
    found = measure(tokens, responses(3, 2, padding=1), **EVERYTHING)
    assert not any(column[[0, 3, 4, 5]].any() for column in found)
    assert all(column.isfinite().all() for column in measure(tokens._replace(mask=torch.zeros(6)), responses(3, 3)))


def test_only_the_loss_has_gradients() -> None:
    terms = measure(random_tokens(10), responses(*LENGTHS), **EVERYTHING)
    assert [name for name, column in terms._asdict().items() if column.requires_grad] == ["loss"]


def loss_and_gradient(cuts: Sequence[Sequence[int]], aggregation: str, loss: str) -> list[float]:
    """Of one mini-batch of four responses in micro-batches of the responses in `cuts`."""
    tokens, starts = random_tokens(sum(LENGTHS)), [0, 3, 4, 8, 10]
    weights, total = token_weights(LENGTHS, aggregation, longest=6), torch.zeros((), dtype=torch.float64)
    for cut in cuts:
        chosen = [t for i in cut for t in range(starts[i], starts[i + 1])]
        weight = tensor([weights[i] for i in cut for _ in range(LENGTHS[i])])
        terms = measure(part(tokens, chosen), responses(*(LENGTHS[i] for i in cut)), loss=loss, **EVERYTHING)
        total = total + (weight * terms.loss).sum()
    return [total.item(), *torch.autograd.grad(total, tokens.log_probs)[0].tolist()]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("loss", ["ppo", "gspo", "cispo"])
def test_no_cut_into_micro_batches_shows_in_loss_or_gradient(aggregation: str, loss: str) -> None:
    whole = loss_and_gradient([[0, 1, 2, 3]], aggregation, loss)
    for cuts in ([[0], [1], [2], [3]], [[3, 0], [2, 1]], [[2], [], [0, 1, 3]]):
        assert loss_and_gradient(cuts, aggregation, loss) == pytest.approx(whole, rel=1e-12, abs=1e-15)


def together(halves: Sequence[Callable[[Callable[[torch.Tensor], torch.Tensor]], Terms]]) -> list[Terms]:
    """Run one thread per context-parallel rank; each gets a sum over both."""
    meeting, shared, results = threading.Barrier(2, timeout=120), {}, {}

    def run(rank: int) -> None:
        def over_ranks(mine: torch.Tensor) -> torch.Tensor:
            shared[rank] = mine
            meeting.wait()
            total = shared[0] + shared[1]
            meeting.wait()
            return total

        results[rank] = halves[rank](over_ranks)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[rank] for rank in (0, 1)]


@pytest.mark.parametrize("loss", ["ppo", "gspo"])
def test_a_response_that_lies_on_two_ranks_has_one_ratio_and_one_weight(loss: str) -> None:
    """Context parallelism: every second token of every response is on the other rank."""
    tokens, sequences = random_tokens(10), responses(*LENGTHS)
    whole = measure(tokens, sequences, loss=loss, **EVERYTHING)
    owned = [list(range(rank, 10, 2)) for rank in (0, 1)]

    def half(chosen: list[int]) -> Callable[[Callable[[torch.Tensor], torch.Tensor]], Terms]:
        place = replace(sequences, index=sequences.index[chosen])
        return lambda sums: measure(part(tokens, chosen), replace(place, over_ranks=sums), loss=loss, **EVERYTHING)

    for found, chosen in zip(together([half(c) for c in owned]), owned, strict=True):
        for name, column in found._asdict().items():
            torch.testing.assert_close(column, getattr(whole, name)[chosen])


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_trajectory_in_three_branches_counts_as_much_as_in_one(aggregation: str) -> None:
    whole = token_weights([6, 4, 2], aggregation, 9)
    lengths, numbers = np.array([6, 1, 0, 3, 2], np.int32), np.array([4, 5, 5, 5, 9])
    found = of_branches(lambda counts: token_weights(counts, aggregation, 9), lengths, numbers)
    assert found == [whole[0], whole[1], whole[1], whole[1], whole[2]]


@PROPERTY
@given(lengths=st.lists(st.integers(0, 9), max_size=6), aggregation=st.sampled_from(AGGREGATIONS))
def test_weights_make_means(lengths: list[int], aggregation: str) -> None:
    """A loss of 1 for every token is a loss of 1; with sequenceMeanTokenSumNorm it is the mean length over maxTokens."""
    total = sum(w * n for w, n in zip(token_weights(lengths, aggregation, 9), lengths, strict=True))
    filled = sum(n > 0 for n in lengths)
    expected = {
        "tokenMean": float(filled > 0),
        "sequenceMeanTokenMean": filled / max(1, len(lengths)),
        "sequenceMeanTokenSum": sum(lengths) / max(1, len(lengths)),
        "sequenceMeanTokenSumNorm": sum(lengths) / 9 / max(1, len(lengths)),
    }[aggregation]
    assert total == pytest.approx(expected)


def test_a_filtered_or_rejected_response_leaves_the_denominator_as_it_was() -> None:
    """The gradient of those that stay is the same as before, not larger."""
    tokens, weights = random_tokens(10), tensor([0.1] * 10)
    full = measure(tokens, responses(*LENGTHS))
    filtered = measure(tokens._replace(mask=tensor([1.0] * 4 + [0.0] * 6)), responses(*LENGTHS))
    ours, theirs = (
        torch.autograd.grad((weights * t.loss).sum(), tokens.log_probs)[0].tolist() for t in (full, filtered)
    )
    assert theirs == [*ours[:4], *[0.0] * 6]
