"""Work of a service's clients, and what plain torch makes of it: every pass merges W + scale B A, so autograd does the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.func import functional_call

from api.specs import make_spec
from rljob_api.spec import RLJobSpec
from rljob_api.spec.service import ALPHA
from rljob_trainer.wire.service import Datum, ForwardBackward, OptimStep
from trainer.megatron.models import load_model

VOCABULARY = 160
Tensors = dict[str, torch.Tensor]


def service(model: Path, dtype: str = "float32", max_rank: int = 8, **layout: int) -> RLJobSpec:
    """A service of `layout`: `data`, and the sizes of spec.trainer.parallelism."""
    data = layout.pop("data", 1)
    nodes = data * prod(size for name, size in layout.items() if name != "expert")
    return make_spec(
        task="service",
        model={"path": str(model), "dtype": dtype},
        train={"tokensPerMicroBatch": 64},
        trainer={"device": "cpu", "nodes": nodes, "parallelism": layout},
        service={"maxTokens": 32, "maxRank": max_rank, "maxModels": 3 if max_rank else 1},
    )


def datum(draw: np.random.Generator, loss: str, targets: int | None = None) -> Datum:
    """Random tokens, and targets that are not the next ones; `targets`: several at each position."""
    length = int(draw.integers(3, 20))
    shape = (length,) if targets is None else (length, targets)
    tokens = draw.integers(0, VOCABULARY, length).astype(np.int32)
    numbers = lambda: draw.normal(size=shape).astype(np.float32)  # noqa: E731
    columns = (
        {"weights": numbers()} if loss == "cross_entropy" else {"logprobs": numbers() - 5, "advantages": numbers()}
    )
    if loss == "gspo":
        columns["sequence_ratio_mask"] = (np.arange(length) > 0).astype(np.float32)
    return Datum(tokens, draw.integers(0, VOCABULARY, shape), columns)


def call(
    seed: int, loss: str, count: int = 5, several: bool = False, model: str = "a", **changes: Any
) -> ForwardBackward:
    """A call with `count` data; `several`: of up to three targets at each position."""
    draw = np.random.default_rng(seed)
    data = tuple(datum(draw, loss, i % 3 + 1 if several else None) for i in range(count))
    return ForwardBackward(model=model, seq=seed, data=data, loss=loss, **changes)


@dataclass
class Oracle:
    """A client's model in plain torch; without adapters, all of its parameters."""

    model: Path
    adapters: Tensors
    """`....q_proj.lora_A.weight` [rank, in] and `....lora_B.weight` [out, rank]."""
    rank: int
    base: Any = None
    adam: torch.optim.AdamW = field(init=False)
    trained: list[torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.base = load_model(self.model).requires_grad_(not self.adapters)
        self.adapters = {name: t.detach().clone().float().requires_grad_() for name, t in self.adapters.items()}
        self.trained = list(self.adapters.values()) or list(self.base.parameters())
        self.adam = torch.optim.AdamW(self.trained)

    def run(self, work: ForwardBackward) -> tuple[list[torch.Tensor], float]:
        found, loss = [], 0.0
        for one in work.data:
            log_probs = self._log_probs(one)
            part = loss_of(work.loss, work.config, log_probs, {n: torch.tensor(c) for n, c in one.columns.items()})
            if not work.forward_only:
                part.backward()
            found.append(log_probs.detach())
            loss += part.item()
        return found, loss

    def step(self, work: OptimStep) -> float:
        for tensor in self.trained:
            tensor.grad = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        most = work.grad_clip_norm or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self.trained, most)
        self.adam.param_groups[0].update(
            lr=work.learning_rate, betas=(work.beta1, work.beta2), eps=work.eps, weight_decay=work.weight_decay
        )
        self.adam.step()
        self.adam.zero_grad()
        return float(norm)

    def _log_probs(self, one: Datum) -> torch.Tensor:
        logits = functional_call(self.base, self._merged(), (torch.tensor(one.tokens)[None],)).logits[0].float()
        targets = torch.tensor(one.targets)
        wide = targets if targets.ndim == 2 else targets[:, None]
        return logits.log_softmax(-1).gather(-1, wide).reshape(targets.shape)

    def _merged(self) -> Tensors:
        changed = dict(self.base.named_parameters())
        for name, a in self.adapters.items():
            if name.endswith(".lora_A.weight"):
                stem = name.removesuffix(".lora_A.weight")
                b = self.adapters[f"{stem}.lora_B.weight"]
                changed[f"{stem}.weight"] = changed[f"{stem}.weight"] + ALPHA / self.rank * b @ a
        return changed


def loss_of(loss: str, config: Mapping[str, float], lp: torch.Tensor, columns: Tensors) -> torch.Tensor:
    if loss == "cross_entropy":
        return -(lp * columns["weights"]).sum()
    if loss == "square":
        return (lp**2).sum()
    ratio, adv = (lp - columns["logprobs"]).exp(), columns["advantages"]
    low, high = config.get("clip_low_threshold", 0.8), config.get("clip_high_threshold", 1.2)
    losses = {
        "importance_sampling": lambda: -ratio * adv,
        "ppo": lambda: -torch.minimum(ratio * adv, ratio.clamp(low, high) * adv),
        "cispo": lambda: -ratio.clamp(low, high).detach() * lp * adv,
        "dro": lambda: -(lp * adv - 0.5 * config.get("beta", 0.05) * (lp - columns["logprobs"]) ** 2),
        "gspo": lambda: _gspo(lp, columns, low, high),
    }
    return losses[loss]().sum()


def _gspo(lp: torch.Tensor, columns: Tensors, low: float, high: float) -> torch.Tensor:
    mean = (lp.detach() - columns["logprobs"])[columns["sequence_ratio_mask"] != 0].mean()
    ratio = (mean + lp - lp.detach()).exp()
    return -torch.minimum(ratio * columns["advantages"], ratio.clamp(low, high) * columns["advantages"])


def distance(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Largest difference, relative to the largest number."""
    largest = max(float(e.abs().max()) for e in expected)
    return max(float((f - e).abs().max()) for f, e in zip(found, expected, strict=True)) / largest
