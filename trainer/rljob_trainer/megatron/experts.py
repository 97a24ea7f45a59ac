"""The matrices of a rank's experts in plain torch, under Transformer Engine's names: weight0, weight1, ..., one per expert."""

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.dist_checkpointing.utils import replace_prefix_for_sharding
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch.nn import Parameter


class _GroupedLinear(MegatronModule):
    """One matrix [out, in] per expert, each applied to the rows of its expert. The dispatcher does all communication."""

    cut: int
    """The dimension that expert-tensor-parallel ranks share."""

    def __init__(
        self,
        num_gemms: int,
        input_size: int,
        output_size: int,
        *,
        config: TransformerConfig,
        bias: bool,
        pg_collection: ProcessGroupCollection,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        if bias:
            raise NotImplementedError("experts with biases need Transformer Engine")
        self.groups, self.count = pg_collection, num_gemms
        shape = [output_size, input_size]
        shape[self.cut] //= pg_collection.expt_tp.size()
        for i in range(num_gemms):
            weight = Parameter(torch.empty(shape, dtype=config.params_dtype, device=torch.cuda.current_device()))
            set_tensor_model_parallel_attributes(weight, True, self.cut, 1)
            setattr(self, f"weight{i}", weight)

    def forward(self, x: torch.Tensor, m_splits: list[int]) -> tuple[torch.Tensor, None]:
        """x [t, in], sorted by expert, `m_splits` rows each -> [t, out]"""
        parts = x.split(m_splits)
        return torch.cat([F.linear(part, getattr(self, f"weight{i}")) for i, part in enumerate(parts)]), None

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """All experts of a layer are one tensor [experts, out, in] in a checkpoint (as core/extensions/transformer_engine.py, TEGroupedLinear)."""
        metadata = metadata or {}
        first, total = self.groups.ep.rank() * self.count, self.groups.ep.size() * self.count
        alone, found = metadata.get("singleton_local_shards", False), {}
        for i in range(self.count):
            offsets = sharded_offsets if alone else (*sharded_offsets, (len(sharded_offsets), first + i, total))
            part = make_sharded_tensors_for_checkpoint(
                {f"{i}.weight": getattr(self, f"weight{i}")},
                "",
                {f"{i}.weight": self.cut},
                offsets,
                tp_group=self.groups.expt_tp,
                dp_cp_group=metadata["dp_cp_group"],
            )
            replace_prefix_for_sharding(part, f"{i}.", f"{first + i}.{prefix}" if alone else prefix)
            tensor = part[f"{i}.weight"]
            tensor.replica_id = (*tensor.replica_id[:2], self.groups.expt_dp.rank())
            found[f"{prefix}weight{i}"] = tensor
        return found


class TEColumnParallelGroupedLinear(_GroupedLinear):
    """Cut along the outputs."""

    cut = 0


class TERowParallelGroupedLinear(_GroupedLinear):
    """Cut along the inputs."""

    cut = 1


def keep_apart(module: torch.nn.Module) -> None:
    """Give experts buffers of their own also where no ranks share them. Their optimizer state then looks the same for every number of
    expert-parallel ranks and can be resharded (core/optimizer/distrib_optimizer.py:962)."""
    for name, parameter in module.named_parameters():
        if ".experts." in name:
            parameter.allreduce = False  # type: ignore[attr-defined]
