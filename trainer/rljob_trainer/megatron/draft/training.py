"""Training of an EAGLE-3 draft on what the policy computes while it is trained (arXiv 2503.01840, online).

The draft reads hidden states and logits of the policy's own pass without their gradients, and has an optimizer of its own. So the policy is trained
exactly as without it. All ranks have the whole draft, each with gradients of its own samples, which are added up over all.
"""

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rljob_api.spec import RLJobSpec
from rljob_api.spec.train import Optimizer
from rljob_trainer.algorithm.objective import LOSS, MetricAccumulator
from rljob_trainer.megatron.draft import files
from rljob_trainer.megatron.draft.hidden import HiddenStates, chosen_logits, embedded
from rljob_trainer.megatron.draft.model import Draft
from rljob_trainer.megatron.packing import MASK, MicroBatch
from rljob_trainer.megatron.parallel_state import ParallelState
from rljob_trainer.wire.weights.drafts import CONTAINED, DRAFT

LATER = 0.8
"""Weight of the loss of a guess, relative to that of the one before it, as in the paper's code."""
RIGHT = "right"
LEARNING_RATE = "spec.rollout.speculation.learningRate"


def draft_of(spec: RLJobSpec, module: Any, parallel: ParallelState) -> "DraftTraining | None":
    """The draft that a job trains with its policy; None: it trains none. `module`: the policy. Raises ConfigurationError."""
    speculation, config = spec.rollout.speculation, module.config
    if not speculation or not speculation.draft or speculation.learning_rate is None:
        return None
    given = files.read(speculation.draft, config.hidden_size, config.vocab_size, config.num_layers)
    optimizer = spec.train.optimizer.model_copy(update={"learning_rate": speculation.learning_rate})
    return DraftTraining(given, module, optimizer, speculation.tokens, parallel)


class DraftTraining:
    """A draft with its optimizer. Every rank calls every method at the same time."""

    def __init__(
        self, given: files.DraftFiles, module: Any, optimizer: Optimizer, guesses: int, parallel: ParallelState
    ) -> None:
        """`module`: the policy, a GPTModel with all layers; `optimizer`: of the policy, but with the draft's constant learning rate; `guesses`: that
        follow each other, in a pass of a server."""
        self._module, self._parallel, self._guesses = module, parallel, guesses
        self._draft = Draft(given.config, len(given.seen)).to(parallel.device)
        trained = {name: given.tensors[name].float() for name, _ in self._draft.named_parameters()}
        self._draft.load_state_dict(trained)
        kept = {name: t.new_empty(0) if name in trained else t for name, t in given.tensors.items()}
        self._files = given._replace(tensors=kept)
        """Of what is trained the types alone."""
        self._hidden = HiddenStates(module, given.seen)
        self._tokens = given.tokens.to(parallel.device)
        self._optimizer, self._most = adam(self._draft, optimizer), optimizer.clip_grad
        self._count = torch.zeros((), device=parallel.device)
        """First guesses whose loss the gradient is of."""
        self._nothing = MetricAccumulator.zero((RIGHT,), parallel.device)
        self._sums = self._nothing

    def listening(self) -> AbstractContextManager[None]:
        """A context for the passes of an optimizer step, after each of which `learn` is called. Gradients of an earlier one are forgotten."""
        self._optimizer.zero_grad()
        self._count.zero_()
        return self._hidden.listening()

    def learn(self, micro: MicroBatch, logits: Tensor) -> None:
        """Accumulate the gradient of a micro-batch whose forward pass has just ended. `logits`: [u, local vocabulary], of the policy at
        `micro.learnt`, which are only read."""
        bf16 = self._module.config.bf16
        with torch.no_grad():
            seen, following = self._hidden.taken(), embedded(self._module, micro.targets, self._parallel)
            own, largest = chosen_logits(logits.detach(), self._tokens, self._module.config.vocab_size, self._parallel)
        with torch.autocast(logits.device.type, torch.bfloat16, enabled=bf16):
            loss = self._loss(micro, seen.float(), following.float(), own.softmax(-1), own.amax(-1) >= largest)
        loss.backward()

    def _loss(self, micro: MicroBatch, seen: Tensor, following: Tensor, wanted: Tensor, within: Tensor) -> Tensor:
        """The sum over the tokens in the loss of the cross entropy of guesses with the policy's distribution, over the tokens that the draft has.

        `wanted`: [u, draft's vocabulary], probabilities; `within`: [u], whether the policy's likeliest token is among them. As in the paper's code
        others teach nothing.
        """
        positions, learnt = micro.positions[0], micro.learnt
        mask = micro.columns[MASK][learnt]
        bounds = _bounds(micro)
        states = self._draft.unrolled(seen, following, positions, bounds, self._guesses)
        total = following.new_zeros((), dtype=torch.float32)
        for guess, hidden in enumerate(states):
            counts = mask * (
                positions[learnt] > guess
            )  # the row that guesses it is `guess + 1` before it, in the same sample
            guessing = (learnt - 1 - guess).clamp(min=0)
            losses, likeliest = checkpoint(self._of_guess, hidden[guessing], wanted, use_reentrant=False)
            part = (losses * counts * within).sum()
            total = total + LATER**guess * part
            if guess == 0:
                right = (self._tokens[likeliest] == micro.targets[learnt]) * counts
                self._note(part, counts, right)
        return total

    def _of_guess(self, hidden: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """[u], cross entropies, and the numbers of the likeliest tokens."""
        logits = self._draft.lm_head(hidden).float()
        return -(wanted * logits.log_softmax(-1)).sum(-1), logits.detach().argmax(-1)

    def _note(self, loss: Tensor, counts: Tensor, right: Tensor) -> None:
        self._count += counts.sum()
        self._sums += MetricAccumulator.of(loss.detach(), counts, {RIGHT: right})

    @torch.no_grad()
    def clip(self) -> Tensor:
        """Make the mean gradient over all ranks of those that were accumulated, and clip it. Returns its norm before."""
        parameters = list(self._draft.parameters())
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([*(g.flatten() for g in gradients), self._count[None]])
        dist.all_reduce(flat)  # tensor-parallel ranks have the same, so that the mean is that of one
        mean = flat[:-1] / flat[-1].clamp(min=1)
        norm = mean.norm()
        if self._most > 0:
            mean *= (self._most / (norm + 1e-6)).clamp(max=1)
        for parameter, part in zip(parameters, mean.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)
        return norm

    def step(self) -> None:
        """Take an optimizer step by the clipped gradient."""
        self._optimizer.step()

    def metrics(self) -> dict[str, float]:
        """Since the last call, over all ranks."""
        sums = self._sums.over_world(self._parallel.reports_metrics).on_host()
        self._sums = self._nothing
        return {"train/draft_loss": sums.mean(LOSS), "train/draft_accuracy": sums.mean(RIGHT)}

    def state(self) -> dict[str, Tensor]:
        """Weights and moments, by name, as they are: what is copied into them is loaded."""
        weights = dict(self._draft.named_parameters())
        moments = {n: self._optimizer.state[p] for n, p in weights.items()}
        named = {f"{name}.{key}": tensor for name, kept in moments.items() for key, tensor in kept.items()}
        return {name: p.detach() for name, p in weights.items()} | named

    def sent(self, dtype: torch.dtype) -> list[tuple[str, Tensor]]:
        """What servers get of it, by names in an update."""
        named = ((name, tensor) for name, tensor in self.in_files() if name != CONTAINED)
        return [(DRAFT + name, t.to(dtype) if t.is_floating_point() else t) for name, t in named]

    def in_files(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors of its files, in their types there."""
        weights = dict(self._draft.named_parameters())
        for name, given in self._files.tensors.items():
            tensor = weights[name].detach() if name in weights else given
            yield name, tensor.to(self._parallel.device, given.dtype)

    @property
    def identity(self) -> str:
        """What its weights are for: a digest of its tokens' numbers and of the layers that it reads."""
        tokens = self._tokens.cpu().numpy().tobytes()
        return hashlib.sha256(tokens + repr(self._files.seen).encode()).hexdigest()

    @property
    def directory(self) -> Path:
        """From which it was read."""
        return self._files.directory


def _bounds(micro: MicroBatch) -> list[tuple[int, int]]:
    """Of the samples. Padding behind a sample counts as its end, which no other row sees."""
    return list(pairwise([*(micro.row.starts or (0,)), micro.row.length]))


def adam(draft: Draft, o: Optimizer) -> torch.optim.AdamW:
    """With moments of zeros, which torch would make in the first step, too late to load into them. Norms do not decay."""
    groups = [
        {"params": [p for p in draft.parameters() if p.dim() > 1], "weight_decay": o.weight_decay},
        {"params": [p for p in draft.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    made = torch.optim.AdamW(groups, o.learning_rate, (o.beta1, o.beta2), o.epsilon)
    for p in draft.parameters():
        made.state[p] = {"step": torch.zeros(()), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
    return made
