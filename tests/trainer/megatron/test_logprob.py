from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from rljob_trainer.megatron import logprob
from trainer.ranks import run_ranks

ROWS, VOCABULARY, PADDED, TEMPERATURE, CANDIDATES = 7, 10, 12, 0.7, 3


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits, targets, and what each prediction weighs in the loss: three numbers of a token, then those of CANDIDATES further ones."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(ROWS, PADDED, generator=generator) * 5
    targets = torch.randint(0, VOCABULARY, (ROWS,), generator=generator)
    targets[0] = logits[0, :VOCABULARY].argmax()
    return logits, targets, torch.randn(3 + CANDIDATES, ROWS, generator=generator)


def further_tokens() -> torch.Tensor:
    """[t, CANDIDATES]: at some places the target is among them, as are tokens of every share."""
    return torch.stack([(torch.arange(ROWS) * 3 + k * 4) % VOCABULARY for k in range(CANDIDATES)], -1)


def dense() -> tuple[list[torch.Tensor], torch.Tensor]:
    """The oracle: torch on the whole vocabulary. What is predicted, and the gradient of the logits."""
    logits, targets, weights = inputs()
    logits.requires_grad_()
    log_p = (logits[:, :VOCABULARY] / TEMPERATURE).log_softmax(-1)
    log_probs, entropy = log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)
    mean, further = log_p.mean(-1), log_p.gather(1, further_tokens())
    (weights * torch.stack([log_probs, entropy, mean, *further.T])).sum().backward()
    correct = (logits[:, :VOCABULARY].argmax(-1) == targets).float()
    return [x.detach() for x in (log_probs, entropy, mean, correct, further)], logits.grad


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_a_cut_vocabulary_gives_the_predictions_and_gradients_of_the_whole(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With six ranks the last holds nothing but padding. Rows go in pieces of 3."""
    monkeypatch.setattr(logprob, "CHUNK", 3)

    def on_a_rank() -> list[list[float]]:
        logits, targets, weights = inputs()
        mine = logits.chunk(ranks, 1)[dist.get_rank()].clone().requires_grad_()
        found = logprob.predictions(mine, targets, TEMPERATURE, VOCABULARY, dist.group.WORLD, further_tokens())
        assert not found.correct.requires_grad
        (weights * torch.stack([*found[:3], *found.candidates.T])).sum().backward()
        return [*(x.tolist() for x in found), mine.grad.tolist()]

    results = run_ranks(ranks, on_a_rank)
    expected, gradient = dense()
    assert 0 < expected[3].sum() < ROWS and (further_tokens() == inputs()[1][:, None]).any()
    for *found, _ in results:
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.tensor(ours).sub(theirs).abs().max() < 1e-5
    assert torch.cat([torch.tensor(r[-1]) for r in results], 1).sub(gradient).abs().max() < 1e-5


def test_bfloat16_logits_give_float32_results_and_bfloat16_gradients() -> None:
    def on_a_rank() -> list[str]:
        logits, targets, _ = inputs()
        logits = logits.bfloat16().requires_grad_()
        found = logprob.predictions(logits, targets, 1.0, VOCABULARY, dist.group.WORLD)
        (found.log_probs + found.entropy).sum().backward()
        return [str(x.dtype) for x in (*found, logits.grad)]

    assert run_ranks(1, on_a_rank) == [["torch.float32"] * 5 + ["torch.bfloat16"]]


def test_the_gradient_of_the_logits_is_not_copied_on_its_way_to_the_model() -> None:
    """A copy is as large as the logits: 5 GB of a micro-batch of 16,384 tokens."""
    from rljob_trainer.megatron.network import ModelOutput
    from rljob_trainer.megatron.packing import MicroBatch

    def on_a_rank() -> list[str]:
        logits, targets, _ = inputs()
        raw = logits[None].clone().requires_grad_()
        micro = MicroBatch(None, None, None, None, targets, targets, None)  # type: ignore[arg-type]
        group = SimpleNamespace(tensor_group=dist.group.WORLD)
        loss = ModelOutput(micro, raw, None, VOCABULARY, group).predictions(1.0).log_probs.sum()  # type: ignore[arg-type]
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            loss.backward()
        assert raw.grad is not None
        return [event.name for event in profiled.events()]

    (names,) = run_ranks(1, on_a_rank)
    assert "UnsqueezeBackward0" in names or "SqueezeBackward1" in names, "the last step is a view"
    assert not {"SelectBackward0", "aten::select_backward"} & set(names)
