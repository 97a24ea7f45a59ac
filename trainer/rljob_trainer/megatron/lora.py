"""Low-rank adapters on frozen matrices (Hu et al. 2021, arXiv 2106.09685): W x + (alpha / rank) B A x, in megatron-bridge's layers.

Ours are the values that A begins with, the same in every layout, and the one matrix that a merged export has of W, A and B.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from megatron.bridge.peft.lora import LoRA
from megatron.bridge.peft.lora_layers import LoRALinear
from megatron.core.transformer.module import MegatronModule

from rljob_api.spec.model import LoraSpec
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.megatron.layers import TELayerNormColumnParallelLinear
from rljob_trainer.weights.bucket import digest, pack

ROWS = 1024
"""Of a matrix that are merged at a time: they take 8 bytes a number."""


class Adapters:
    """Of one policy, on one rank. They are all that is trained."""

    def __init__(self, lora: LoraSpec, seed: int, modules: Sequence[MegatronModule], tasks: Sequence[Any]) -> None:
        """Freezes `modules` and puts adapters into them. `tasks`: the bridge's, of the modules as they are before."""
        self.settings = lora
        LoRA(target_modules=list(lora.targets), dim=lora.rank, alpha=lora.alpha)(list(modules), training=True)
        self._wrapped = [m for module in modules for m in module.modules() if isinstance(m, LoRALinear)]
        self._by_matrix = {id(w.to_wrap.weight): w for w in self._wrapped}
        for layer in (w.to_wrap for w in self._wrapped):
            if isinstance(layer, TELayerNormColumnParallelLinear):  # megatron-bridge asks Transformer Engine's for it
                layer.return_layernorm_output = True
        for task in tasks:
            if wrapped := self._by_matrix.get(id(task.param_weight)):
                _begin(wrapped, f"{seed} {task.global_param_name}")
        for module in modules:
            _learn_from_the_first_layer(module)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Inside, the modules compute what they did without adapters."""
        for wrapped in self._wrapped:
            wrapped.disable_adapter_layers()
        try:
            yield
        finally:
            for wrapped in self._wrapped:
                wrapped.enable_adapter_layers()

    def merged(self, task: Any) -> Any:
        """A task of the bridge's that exports W + (alpha / rank) B A in place of W. Collective over the ranks that share the matrix."""
        wrapped = self._by_matrix.get(id(task.param_weight))
        if wrapped is None:
            return task
        a, b, group = wrapped.adapter.linear_in.weight, wrapped.adapter.linear_out.weight, wrapped.adapter.tp_group
        a, b = (a, _whole(b, group)) if wrapped.adapter.input_is_parallel else (_whole(a, group), b)
        return replace(task, param_weight=merge(task.param_weight, a, b, self.settings.alpha / self.settings.rank))


def is_adapter(name: str) -> bool:
    """Of a parameter, or of an entry of a checkpoint, by its name."""
    return ".adapter." in name


@torch.no_grad()
def merge(weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
    """W + scale B A, for W [out, in], A [rank, in], B [out, rank], in the type of W. It is computed in float64 and rounded once, so that the way
    in which a layout cuts the matrices does not show in the digest of the policy."""
    found, wide = torch.empty_like(weight), a.double()
    for part, rows, of_b in zip(found.split(ROWS), weight.split(ROWS), b.split(ROWS), strict=True):
        part.copy_(torch.addmm(rows.double(), of_b.double(), wide, alpha=scale))
    return found


def _whole(part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """The parts of all ranks, one below the other."""
    parts = [torch.empty_like(part) for _ in range(group.size())]
    dist.all_gather(parts, part.detach(), group=group)
    return torch.cat(parts)


def _begin(wrapped: LoRALinear, seed: str) -> None:
    """As the peft library begins: A uniform in +- 1 / sqrt(in), B zero. All of A is drawn, and this rank's part kept."""
    linear, rank, group = wrapped.adapter.linear_in, wrapped.adapter.dim, wrapped.adapter.tp_group
    generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8]) >> 1)
    bound = linear.input_size**-0.5
    whole = torch.empty(rank, linear.input_size).uniform_(-bound, bound, generator=generator)
    linear.weight.data.copy_(whole.chunk(group.size(), dim=linear.weight.partition_dim)[group.rank()])


def _learn_from_the_first_layer(module: MegatronModule) -> None:
    """What is computed again in the backward pass gets no gradients unless some input wants one (torch.utils.checkpoint), and behind a frozen
    embedding none does."""
    if module.config.recompute_granularity and hasattr(module, "embedding"):
        module.embedding.register_forward_hook(lambda _, __, output: output.requires_grad_(torch.is_grad_enabled()))


BUCKET_BYTES = 2**28
"""Of the copies of which the digest is made."""
ELSEWHERE = "or use another spec.checkpoint.path"


@dataclass(frozen=True, slots=True)
class Base:
    """A frozen model and its adapters' settings, as a checkpoint names them."""

    path: str
    """Its Hugging Face directory, for people: the digest decides."""
    digest: str
    """Of its tensors, as rollouts would verify them (weights.bucket.digest)."""
    lora: dict[str, Any]

    @staticmethod
    def of(path: str, lora: LoraSpec, tensors: Iterable[tuple[str, torch.Tensor]]) -> "Base":
        """`tensors`: the whole model by its Hugging Face names."""
        device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
        entries = [entry for bucket in pack(tensors, BUCKET_BYTES, device) for entry in bucket.entries]
        return Base(path, digest(entries), lora.dump())

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def require_same(held: dict[str, Any] | None, here: Base | None) -> None:
    """`held`: what a checkpoint says of its adapters; None: it holds a whole model. Raises ConfigurationError when they do not belong to `here`."""
    if held is None and here is not None:
        rule = "the checkpoint holds a whole model, of a job that trained without adapters"
        raise ConfigurationError("spec.model.lora", "set", rule, f"remove it, {ELSEWHERE}")
    if held is not None and here is None:
        rule = f"the checkpoint holds adapters of {held['path']} only, {_settings(held['lora'])}"
        raise ConfigurationError("spec.model.lora", "unset", rule, f"set them again, {ELSEWHERE}")
    if held is None or here is None:
        return
    if held["lora"] != here.lora:
        rule = f"the adapters of the checkpoint have {_settings(held['lora'])}"
        raise ConfigurationError("spec.model.lora", _settings(here.lora), rule, f"set that again, {ELSEWHERE}")
    if held["digest"] != here.digest:
        theirs = f"{held['path']} ({held['digest'][:12]}), with which the adapters of the checkpoint were trained"
        rule = f"its tensors ({here.digest[:12]}) are not those of {theirs}"
        fix = f"name that model, with the spec.model.dtype of then, {ELSEWHERE}"
        raise ConfigurationError("spec.model.path", here.path, rule, fix)


def _settings(lora: dict[str, Any]) -> str:
    return f"rank {lora['rank']}, alpha {lora['alpha']}, targets {' '.join(lora['targets'])}, sync {lora['sync']}"
