"""spec.trainer and spec.rollout: the two kinds of pods."""

from typing import Annotated

from pydantic import Field

from rljob_api.base import Model
from rljob_api.spec.common import Device, NonNegativeInt, PositiveInt, Quantity, Sampling, Template, Verbatim


class Parallelism(Model):
    """How the model is cut. Data parallel size is what remains: nodes x processesPerNode / (tensor x pipeline)."""

    tensor: PositiveInt = 1
    """Ranks that share every matrix. Must fit into one pod or, on CPU, may cross pods."""
    pipeline: PositiveInt = 1
    """Stages of consecutive layers."""
    sequence: bool = True
    """Cut activations between tensor-parallel ranks along the sequence as well; without effect when tensor is 1."""


class TrainerSpec(Model):
    """The gang of torchrun pods that holds the policy."""

    nodes: PositiveInt = 1
    """Trainer pods."""
    processes_per_node: PositiveInt = 1
    """Ranks in each pod; on GPU each has one of its own."""
    device: Device = "gpu"
    """`cpu` runs the same code on gloo: laptops, tests, the demo."""
    resource_name: str = "nvidia.com/gpu"
    """The extended resource that a GPU is requested by."""
    parallelism: Parallelism = Parallelism()
    """The layout."""
    transformer_config: Verbatim = {}
    """Fields of megatron-core's TransformerConfig, verbatim. Those that this spec names elsewhere are refused here."""
    shm_size: Quantity = "1Gi"
    """Size of /dev/shm, in memory."""
    template: Template = Template()
    """Pod settings of the trainers."""


class RolloutSpec(Model):
    """The pool of vLLM servers that generate."""

    replicas: Annotated[int, Field(ge=0, le=4096)] = 1
    """Servers. 0 only when batches are replayed."""
    min_replicas: NonNegativeInt = 1
    """Generation waits while fewer have the current policy."""
    tensor_parallel: PositiveInt = 1
    """GPUs of one server."""
    sampling: Sampling = Sampling()
    """How training responses are drawn."""
    vllm_args: Verbatim = {}
    """Arguments of `vllm serve` by their long names without dashes in front, verbatim. Those that rljob sets are refused here."""
    shm_size: Quantity = "1Gi"
    """Size of /dev/shm, in memory."""
    template: Template = Template()
    """Pod settings of the rollouts."""
