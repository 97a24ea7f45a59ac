"""Low-rank adapters on frozen matrices (Hu et al. 2021, arXiv 2106.09685): W x + (alpha / rank) B A x, in megatron-bridge's layers.

Ours are the values that they begin with, the same in every layout, and the one matrix that a merged export has of W, A and B.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from megatron.bridge.peft.lora import LoRA
from megatron.bridge.peft.lora_layers import LoRALinear
from megatron.core.transformer.module import MegatronModule

from rljob_api.spec.model import LoraSpec
from rljob_trainer.megatron.layers import TELayerNormColumnParallelLinear
from rljob_trainer.megatron.lora_parts import LoRAOfParts, PartsLinear
from rljob_trainer.megatron.lora_start import GivenAdapters

ROWS = 1024
"""Of a matrix that are merged at a time: they take 8 bytes a number."""


class Adapters:
    """Of one policy, on one rank. They are all that is trained."""

    def __init__(
        self,
        lora: LoraSpec,
        config: dict[str, Any],
        seed: int,
        modules: Sequence[MegatronModule],
        tasks: Sequence[Any],
    ) -> None:
        """`lora`: with its targets. `config`: the model's config.json.

        Freezes `modules` and puts adapters into them. `tasks`: the bridge's, of the modules as they are before.

        Raises ConfigurationError when the adapters to begin with are not of this model, or of other settings.
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
        for layer in (w.to_wrap for w in self._wrapped):
            if isinstance(layer, TELayerNormColumnParallelLinear):  # megatron-bridge asks Transformer Engine's for it
                layer.return_layernorm_output = True
        for task in tasks:
            if wrapped := self._by_matrix.get(id(task.param_weight)):
                if given:
                    given.load(wrapped, task)
                else:
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
        if isinstance(wrapped, PartsLinear):
            return replace(task, param_weight=wrapped.changed(task.param_weight, self._merged))
        return replace(task, param_weight=self._merged(task.param_weight, wrapped.adapter))

    def _merged(self, weight: torch.Tensor, adapter: Any) -> torch.Tensor:
        a, b, group = adapter.linear_in.weight, adapter.linear_out.weight, adapter.tp_group
        a, b = (a, _whole(b, group)) if adapter.input_is_parallel else (_whole(a, group), b)
        return merge(weight, a, b, self.settings.alpha / self.settings.rank)


def _put_norm_last(wrapped: Any) -> None:
    """A matrix that ends with a norm of what it gives (Gemma 3, GLM-4; megatron-bridge's TERowParallelLinearLayerNorm): of W x and B A x together."""
    layer = wrapped.to_wrap
    layer.forward = super(type(layer), layer).forward
    wrapped.register_forward_hook(lambda _, __, output: (layer.post_layernorm(output[0]), output[1]))


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


def _begin(wrapped: LoRALinear | PartsLinear, seed: str) -> None:
    """As the peft library begins, B at zero; the adapters of a matrix's parts each with an A of its own."""
    if isinstance(wrapped, PartsLinear):
        for name, adapter in wrapped.adapter.items():
            _draw(adapter, f"{seed} {name}")
    else:
        _draw(wrapped.adapter, seed)


def _draw(adapter: Any, seed: str) -> None:
    """A uniform in +- 1 / sqrt(in). All of it is drawn, and this rank's part kept."""
    linear, group = adapter.linear_in, adapter.tp_group
    generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8]) >> 1)
    bound = linear.input_size**-0.5
    whole = torch.empty(adapter.dim, linear.input_size).uniform_(-bound, bound, generator=generator)
    linear.weight.data.copy_(whole.chunk(group.size(), dim=linear.weight.partition_dim)[group.rank()])


def _learn_from_the_first_layer(module: MegatronModule) -> None:
    """What is computed again in the backward pass gets no gradients unless some input wants one (torch.utils.checkpoint), and behind a frozen
    embedding none does."""
    if module.config.recompute_granularity and hasattr(module, "embedding"):
        module.embedding.register_forward_hook(lambda _, __, output: output.requires_grad_(torch.is_grad_enabled()))
