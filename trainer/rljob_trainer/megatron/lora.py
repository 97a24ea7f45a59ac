"""Low-rank adapters on frozen matrices (Hu et al. 2021, arXiv 2106.09685): W x + (alpha / rank) B A x, in megatron-bridge's layers.

This module adds initial values that are the same in every layout, the merging of W, A and B into one matrix for exports, and the identity of the base
model, which checkpoints of adapters record.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from megatron.bridge.peft.lora import LoRA
from megatron.bridge.peft.lora_layers import LoRALinear
from megatron.core.transformer.module import MegatronModule

from rljob_api.callbacks import always
from rljob_api.spec.model import LoraSpec
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.megatron.lora_parts import GivenAdapters, LoRAOfParts, PartsLinear
from rljob_trainer.megatron.plain_torch.layers import TELayerNormColumnParallelLinear
from rljob_trainer.wire.weights.bucket import digest, pack

BUCKET_BYTES = 2**28
"""Size of the copies from which the digest is computed."""
ELSEWHERE = "or use another spec.checkpoint.path"
ROWS = 1024
"""Rows of a matrix that are merged at a time, in float64."""


@dataclass(frozen=True, slots=True)
class Base:
    """A base model and the settings of its adapters."""

    path: str
    """Its Hugging Face directory, for messages; only the digest is compared."""
    digest: str
    """Digest of its tensors (wire.weights.bucket.digest)."""
    lora: dict[str, Any]

    @staticmethod
    def of(path: str, lora: LoraSpec, tensors: Iterable[tuple[str, torch.Tensor]]) -> "Base":
        """`tensors`: all tensors of the base model, by their Hugging Face names."""
        device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
        entries = [entry for bucket in pack(tensors, BUCKET_BYTES, device) for entry in bucket.entries]
        return Base(path, digest(entries), lora.model_copy(update={"path": None}).dump())

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def require_same(held: dict[str, Any] | None, here: Base | None) -> None:
    """Raise ConfigurationError unless a checkpoint's adapters belong to this base model.

    `held`: the base recorded in the checkpoint; None: it has a whole model. `here`: the base of this job; None: it trains all parameters.
    """
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


class Adapters:
    """The adapters of a policy on one rank, the only parameters that are trained."""

    def __init__(
        self,
        lora: LoraSpec,
        config: dict[str, Any],
        seed: int,
        modules: Sequence[MegatronModule],
        tasks: Sequence[Any],
    ) -> None:
        """Freeze `modules` and insert adapters.

        Args:
            lora: with its targets
            config: the model's config.json
            tasks: the bridge's conversion tasks of the modules before adapters are inserted

        Raises ConfigurationError when the adapters to start from do not belong to this model, or have other settings.
        """
        self.settings = lora
        given = GivenAdapters(lora, config, tasks) if lora.path else None
        kind = LoRAOfParts if lora.of_parts else LoRA
        kind(target_modules=list(lora.targets or ()), dim=lora.rank, alpha=lora.alpha)(list(modules), training=True)
        self._wrapped = [m for module in modules for m in module.modules() if isinstance(m, LoRALinear | PartsLinear)]
        for wrapped in self._wrapped:
            if hasattr(wrapped.to_wrap, "post_layernorm"):
                _put_norm_last(wrapped)
        self._by_matrix = {id(w.to_wrap.weight): w for w in self._wrapped}
        wrapped_of = ((t.global_param_name, self._by_matrix.get(id(t.param_weight))) for t in tasks)
        self._names = {name: wrapped for name, wrapped in wrapped_of if wrapped}
        """Of the matrices with adapters, by megatron's name of each in the whole model."""
        for layer in (w.to_wrap for w in self._wrapped):
            if isinstance(layer, TELayerNormColumnParallelLinear):  # as megatron-bridge sets it on Transformer Engine's
                layer.return_layernorm_output = True
        if given:
            for task in tasks:
                wrapped = self._by_matrix.get(id(task.param_weight))
                if wrapped:
                    given.load(wrapped, task)
        else:
            self.begin(seed, lora.rank)
        for module in modules:
            _require_input_gradients(module)

    def begin(self, seed: int, rank: int, chosen: Callable[[str], bool] = always) -> None:
        """Initialize as the peft library does, with B = 0: the first `rank` rows of A, the others with 0. Adapters of matrices that are not
        `chosen`, by their names, have A = B = 0. Where a row of A and the column of B are 0, so are their gradients."""
        for name, wrapped in self._names.items():
            # the adapters of a fused matrix's parts each get an A of their own
            for part, adapter in _adapters(wrapped):
                _sample(adapter, f"{seed} {name}{part}", rank if chosen(name) else 0)

    def scale(self, factor: float) -> None:
        """Scale what the adapters add to their matrices: W x + factor B A x, in place of alpha / rank."""
        for wrapped in self._wrapped:
            for _, adapter in _adapters(wrapped):
                adapter.alpha = factor * adapter.dim

    @contextmanager
    def off(self) -> Iterator[None]:
        """A context in which the adapters are disabled."""
        for wrapped in self._wrapped:
            wrapped.disable_adapter_layers()
        try:
            yield
        finally:
            for wrapped in self._wrapped:
                wrapped.enable_adapter_layers()

    def merged(self, task: Any) -> Any:
        """The conversion task with W + (alpha / rank) B A in place of W. Collective over the ranks over which the matrix is sharded."""
        wrapped = self._by_matrix.get(id(task.param_weight))
        if wrapped is None:
            return task
        if isinstance(wrapped, PartsLinear):
            return replace(task, param_weight=wrapped.changed(task.param_weight, self._merged))
        return replace(task, param_weight=self._merged(task.param_weight, wrapped.adapter))

    def _merged(self, weight: torch.Tensor, adapter: Any) -> torch.Tensor:
        a, b, group = adapter.linear_in.weight, adapter.linear_out.weight, adapter.tp_group
        a, b = (a, _gathered(b, group)) if adapter.input_is_parallel else (_gathered(a, group), b)
        return merge(weight, a, b, self.settings.alpha / self.settings.rank)


def _put_norm_last(wrapped: Any) -> None:
    """For a matrix with a norm of its output (Gemma 3, GLM-4; megatron-bridge's TERowParallelLinearLayerNorm): apply the norm to W x + B A x."""
    layer = wrapped.to_wrap
    layer.forward = super(type(layer), layer).forward
    wrapped.register_forward_hook(lambda _, __, output: (layer.post_layernorm(output[0]), output[1]))


def is_adapter(name: str) -> bool:
    """Whether a parameter, or an entry of a checkpoint, belongs to an adapter, by its name."""
    return ".adapter." in name


@torch.no_grad()
def merge(weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
    """W + scale B A, for W [out, in], A [rank, in], B [out, rank], in the type of W. Computed in float64 and rounded once, so that the digest of the
    policy does not depend on the layout."""
    merged, wide = torch.empty_like(weight), a.double()
    for part, rows, of_b in zip(merged.split(ROWS), weight.split(ROWS), b.split(ROWS), strict=True):
        part.copy_(torch.addmm(rows.double(), of_b.double(), wide, alpha=scale))
    return merged


def _gathered(part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """The shards of all ranks, concatenated along the rows."""
    parts = [torch.empty_like(part) for _ in range(group.size())]
    dist.all_gather(parts, part.detach(), group=group)
    return torch.cat(parts)


def _adapters(wrapped: LoRALinear | PartsLinear) -> list[tuple[str, Any]]:
    """The adapters of a matrix, or of its parts, with what is appended to the matrix's name."""
    if isinstance(wrapped, PartsLinear):
        return [(f" {name}", adapter) for name, adapter in wrapped.adapter.items()]
    return [("", wrapped.adapter)]


def _sample(adapter: Any, seed: str, rank: int) -> None:
    """A uniform in +- 1 / sqrt(in) in `rank` rows, B = 0. The whole matrix is sampled and this rank's shard kept, so that A is the same in every
    layout."""
    linear, group = adapter.linear_in, adapter.tp_group
    generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8]) >> 1)
    bound = linear.input_size**-0.5
    whole = torch.zeros(adapter.dim, linear.input_size)
    whole[:rank].uniform_(-bound, bound, generator=generator)
    linear.weight.data.copy_(whole.chunk(group.size(), dim=linear.weight.partition_dim)[group.rank()])
    adapter.linear_out.weight.data.zero_()


def _require_input_gradients(module: MegatronModule) -> None:
    """Make the output of the frozen embedding require gradients. torch.utils.checkpoint computes none for recomputed layers when no input requires
    one."""
    if module.config.recompute_granularity and hasattr(module, "embedding"):
        module.embedding.register_forward_hook(lambda _, __, output: output.requires_grad_(torch.is_grad_enabled()))
