import pytest
import torch
import torch.distributed as dist

from rljob_trainer.megatron import logprob
from trainer.ranks import run_ranks

ROWS, VOCABULARY, PADDED, TEMPERATURE = 7, 10, 12, 0.7


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(ROWS, PADDED, generator=generator) * 5
    return logits, torch.randint(0, VOCABULARY, (ROWS,), generator=generator), torch.randn(2, ROWS, generator=generator)


def dense() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The oracle: torch on the whole vocabulary."""
    logits, targets, weights = inputs()
    logits.requires_grad_()
    log_p = (logits[:, :VOCABULARY] / TEMPERATURE).log_softmax(-1)
    log_probs, entropy = log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)
    (weights[0] * log_probs + weights[1] * entropy).sum().backward()
    return log_probs.detach(), entropy.detach(), logits.grad


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_a_cut_vocabulary_gives_the_log_probs_entropy_and_gradients_of_the_whole(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With six ranks the last holds nothing but padding. Rows go in pieces of 3."""
    monkeypatch.setattr(logprob, "CHUNK", 3)

    def on_a_rank() -> list[list[float]]:
        logits, targets, weights = inputs()
        mine = logits.chunk(ranks, 1)[dist.get_rank()].clone().requires_grad_()
        log_probs, entropy = logprob.log_probs_and_entropy(mine, targets, TEMPERATURE, VOCABULARY, dist.group.WORLD)
        (weights[0] * log_probs + weights[1] * entropy).sum().backward()
        return [log_probs.tolist(), entropy.tolist(), mine.grad.tolist()]

    results = run_ranks(ranks, on_a_rank)
    log_probs, entropy, gradient = dense()
    for result in results:
        assert torch.tensor(result[0]).sub(log_probs).abs().max() < 1e-5
        assert torch.tensor(result[1]).sub(entropy).abs().max() < 1e-5
    assert torch.cat([torch.tensor(r[2]) for r in results], 1).sub(gradient).abs().max() < 1e-5


def test_bfloat16_logits_give_float32_results_and_bfloat16_gradients() -> None:
    def on_a_rank() -> list[str]:
        logits, targets, _ = inputs()
        logits = logits.bfloat16().requires_grad_()
        log_probs, entropy = logprob.log_probs_and_entropy(logits, targets, 1.0, VOCABULARY, dist.group.WORLD)
        (log_probs + entropy).sum().backward()
        return [str(x.dtype) for x in (log_probs, entropy, logits.grad)]

    assert run_ranks(1, on_a_rank) == [["torch.float32", "torch.float32", "torch.bfloat16"]]
