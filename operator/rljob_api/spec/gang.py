"""How a model is cut over ranks, and the gang of ranks that one besides the policy may have."""

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.base import Model
from rljob_api.spec.common import Nodes, PositiveInt, Processes, Quantity, Template, Verbatim


class Parallelism(Model):
    """How the model is cut. Data parallel size is what remains: nodes x processesPerNode / (tensor x pipeline x context)."""

    tensor: PositiveInt = 1
    """Ranks that share every matrix. On GPUs all of them are in one pod."""
    pipeline: PositiveInt = 1
    """Number of pipeline stages: groups of consecutive layers on ranks of their own."""
    virtual_pipeline: PositiveInt = 1
    """Pieces of each stage, run interleaved: a smaller pipeline bubble for more messages."""
    context: PositiveInt = 1
    """Ranks that share every sequence."""
    expert: PositiveInt = 1
    """Ranks that share the experts of a mixture-of-experts layer; taken out of the data parallel ones."""
    expert_tensor: PositiveInt | None = None
    """Ranks that share every matrix of an expert; unset: as many as `tensor`."""
    sequence: bool = True
    """Cut activations between tensor-parallel ranks along the sequence as well; without effect when tensor is 1."""


class Recompute(Model):
    """Compute activations again in the backward pass instead of keeping them."""

    granularity: Literal["none", "selective", "full"] = "none"
    """What is computed again. `none`: nothing; `selective`: `modules` only; `full`: whole layers."""
    modules: Annotated[
        list[Literal["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"]],
        Field(max_length=16),
    ] = ["core_attn"]
    """What `granularity: selective` recomputes, by megatron-core's names."""
    method: Literal["uniform", "block"] = "uniform"
    """With `granularity: full`, `uniform`: every `layers` layers are one piece; `block`: the first `layers` layers of a stage, one by one."""
    layers: PositiveInt = 1
    """Layers of one piece (`method: uniform`) or of a stage (`method: block`)."""


class Gang(Model):
    """Where a model besides the policy is computed: on the trainer's ranks, in their layout, or, with `processesPerNode`, on a gang of its own. The
    other fields are settings of such a gang."""

    processes_per_node: Processes | None = None
    """Ranks in each pod of a gang of the model's own; each has a GPU of its own. Unset: the trainer's ranks hold the model."""
    nodes: Nodes = 1
    """Number of pods in the gang of this model."""
    parallelism: Parallelism = Parallelism()
    """How the model is cut over the gang's ranks."""
    tokens_per_micro_batch: PositiveInt | None = None
    """Tokens of one forward pass on the gang; unset: `train.tokensPerMicroBatch`."""
    transformer_config: Verbatim = {}
    """Fields of megatron-core's TransformerConfig for the gang, verbatim, as in `trainer.transformerConfig`."""
    shm_size: Quantity = "1Gi"
    """Size of /dev/shm in the gang's pods, in memory."""
    template: Template = Template()
    """Pod settings of the gang."""
