"""Groups of processes that sections of the spec describe: the ranks that a model is cut over, and the gang of them that one besides the policy may
have; one vLLM server, in the rollout pool and in every other one; and pods of their own for a user's code that the driver calls
(`rollout.agent.workers`, and `workers` of an entry of spec.rewards)."""

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.base import Model
from rljob_api.spec.common import MOST_PODS, Nodes, PositiveInt, ProcessCount, Quantity, Template, Verbatim


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


class GangSpec(Model):
    """Where a model besides the policy is computed: on the trainer's ranks, in their layout, or, with `processesPerNode`, on a gang of its own. The
    other fields are settings of such a gang."""

    processes_per_node: ProcessCount | None = None
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


class Servers(Model):
    """The pods of one vLLM server, and how its model is cut over their GPUs."""

    nodes: ProcessCount = 1
    """Number of pods that one vLLM server consists of. They are placed, started and ended together, and each has tensorParallel x
    pipelineParallel x dataParallel / nodes GPUs."""
    tensor_parallel: ProcessCount = 1
    """Number of GPUs that share every matrix of one vLLM server. A group of them may be larger than a pod, which only pays on fast networks."""
    pipeline_parallel: ProcessCount = 1
    """Number of pipeline stages of one vLLM server: groups of consecutive layers, on GPUs of their own."""
    data_parallel: ProcessCount = 1
    """Number of copies of the model in one vLLM server, each on tensorParallel GPUs, with requests and a key-value cache of its own. They share
    the experts of a mixture: with `expertParallel` every GPU holds whole ones, otherwise a part of each."""
    expert_parallel: bool = False
    """Whether each GPU of a vLLM server holds whole experts, `tensorParallel` x `dataParallel` GPUs all of a layer's, instead of a part of every
    expert."""

    @property
    def gpus(self) -> int:
        """Processes of one server, each with a GPU."""
        return self.gpus_of_a_copy * self.data_parallel

    @property
    def gpus_of_a_copy(self) -> int:
        """Of these, those that hold one copy of what `data_parallel` copies."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def gpus_sharing_experts(self) -> int:
        """GPUs that together hold the experts of a layer once."""
        return self.tensor_parallel * self.data_parallel

    @property
    def processes_per_pod(self) -> int:
        """Of these, how many each of its pods has."""
        return self.gpus // self.nodes


class Autoscaling(Model):
    """Pods of workers come with their calls, and go when these are fewer."""

    min_replicas: Annotated[int, Field(ge=1, le=MOST_PODS)] = 1
    """Number of pods that there always are."""
    calls_per_replica: Annotated[int, Field(ge=1, le=16384)] = 64
    """Calls that a pod runs at a time, if its processes have room for them. While more run and wait together, there is another pod for them."""
    down_seconds: Annotated[int, Field(ge=1, le=86400)] = 300
    """For how long fewer pods must have been enough before others go, longer than the part of a step in which nothing is generated."""


class Workers(Model):
    """Pods of their own, without GPUs, in which a function of yours runs. They are no part of the gang: one that is lost is replaced alone, and what
    ran there begins anew in others; trajectories of an agent whose function has a parameter `history` continue behind their last turn."""

    replicas: Annotated[int, Field(ge=1, le=MOST_PODS)] = 1
    """Number of pods; with `autoscaling` the largest. A change takes effect at once, as that of `rollout.replicas`."""
    autoscaling: Autoscaling | None = None
    """As many pods as the calls need, trajectories or those of the reward function; unset: always `replicas`."""
    processes: ProcessCount | None = None
    """Processes of each pod, of which each imports the function; unset: one for each CPU of the pod, at most 8. A process runs up to 256 trajectories
    of an agent at a time, or a reward's function once, up to 64 times if it is async."""
    shm_size: Quantity = "1Gi"
    """Size of /dev/shm in worker pods, in memory."""
    template: Template = Template()
    """Pod settings of the workers, with an image that has what the function needs: Python, and the package rljob_trainer."""

    @property
    def fewest(self) -> int:
        """Pods that there always are."""
        return self.bounded(0)

    def bounded(self, pods: int) -> int:
        """The number of pods that is next to this one and allowed."""
        least = self.autoscaling.min_replicas if self.autoscaling else self.replicas
        return min(self.replicas, max(least, pods))
