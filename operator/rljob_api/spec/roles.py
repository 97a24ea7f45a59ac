"""spec.trainer, spec.critic, spec.reference, spec.rollout, spec.pools: who computes what, on which processes."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from rljob_api import names
from rljob_api.base import Model
from rljob_api.family import DeviceType
from rljob_api.spec.agent import AgentSpec
from rljob_api.spec.common import (
    MOST_PODS,
    AbsolutePath,
    Nodes,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    ProcessCount,
    Quantity,
    Sampling,
    Template,
    Verbatim,
)
from rljob_api.spec.processes import GangSpec, Parallelism, Recompute, Servers
from rljob_api.spec.train import Optimizer


class Overlap(Model):
    """Communication of the distributed optimizer during computation."""

    grad_reduce: bool = False
    """Reduce a bucket of gradients as soon as it is complete."""
    param_gather: bool = False
    """Gather parameters when the forward pass of a step's next optimizer step reaches them; needs `gradReduce`."""


class Offload(Model):
    """What is kept in host memory while another model uses the GPU. Policy, critic, reference and reward models share their ranks."""

    parameters: bool = False
    """Parameters, while the model neither computes nor is sent to the rollouts."""
    gradients: bool = False
    """Gradient buffers: their memory is given back outside training."""
    optimizer: bool = False
    """Optimizer states, while no optimizer step runs."""
    update: bool = False
    """In place of `optimizer`: optimizer steps are taken on the host's CPUs, so that optimizer states are never on the GPU. Gradients go to the host
    and weights come back piece by piece."""


class TrainerSpec(Model):
    """The gang of torchrun pods that holds the policy."""

    nodes: Nodes = 1
    """Number of trainer pods. With `processesPerNode` it gives the number of ranks."""
    processes_per_node: ProcessCount = 1
    """Ranks in each trainer pod; each has a GPU of its own."""
    device: DeviceType = "gpu"
    """`gpu`, or `cpu` for laptops, tests and the demo: the same code, on gloo."""
    resource_name: Annotated[str, StringConstraints(max_length=253)] = "nvidia.com/gpu"
    """The extended resource that a GPU is requested by. Empty: the GPUs of all pods come from `template.resourceClaims`."""
    parallelism: Parallelism = Parallelism()
    """How the model is cut over the ranks."""
    overlap: Overlap = Overlap()
    """What the distributed optimizer communicates while the ranks compute."""
    recompute: Recompute = Recompute()
    """Which activations are computed again in the backward pass: less memory for more time."""
    offload: Offload = Offload()
    """What of the policy is kept in host memory while it is not used."""
    transformer_config: Verbatim = {}
    """Fields of megatron-core's TransformerConfig, verbatim. Those that this spec names elsewhere are refused here."""
    shm_size: Quantity = "1Gi"
    """Size of /dev/shm in trainer pods, in memory."""
    template: Template = Template()
    """Pod settings of the trainers."""


class CriticOptimizer(Optimizer):
    """AdamW on megatron's distributed optimizer, faster than the policy's."""

    learning_rate: PositiveFloat = 1e-5
    """The highest rate, reached at the end of the warm-up."""


class CriticSpec(GangSpec):
    """The value model of `gae`. On a gang of its own it learns while the policy does."""

    path: AbsolutePath | None = None
    """Hugging Face directory with the policy's vocabulary: a sequence classifier with one label, whose head is taken, or a causal model, whose
    head is replaced by a new one at zero; unset: the policy's own."""
    megatron_checkpoint: AbsolutePath | None = None
    """A torch_dist directory of megatron-core whose value model is taken in place of the safetensors, for example `global_step_100` of another job:
    the critic in it, or else the model that `task: rewardModel` trained."""
    optimizer: CriticOptimizer = CriticOptimizer()
    """The critic's optimizer."""
    clip: NonNegativeFloat = 0.5
    """Values are clipped to within this distance of the old ones (the clipped value loss of OpenAI's PPO); 0: not clipped."""
    warmup_steps: NonNegativeInt = 0
    """Steps in which only the critic learns."""
    offload: Offload = Offload()
    """What of the critic is kept in host memory while it is not used."""
    recompute: Recompute = Recompute()
    """Which activations the critic's own gang computes again in the backward pass, as in `trainer.recompute`."""


class ReferenceSpec(GangSpec):
    """The frozen policy of the KL penalty, of `task: dpo`, and the teacher of `algorithm.distillation.reference`."""

    path: AbsolutePath | None = None
    """Hugging Face directory of a model with the policy's vocabulary, and with its architecture where it takes the policy's place in memory
    (`offload`, without a gang of its own); unset: the policy's starting point."""
    megatron_checkpoint: AbsolutePath | None = None
    """A torch_dist directory of megatron-core whose weights are taken in place of the safetensors, for example `global_step_100` of another job. What
    else makes the model, such as its base of rotation, comes from the config.json in `path`, or else from the policy's."""
    offload: bool = True
    """Keep the reference in host memory and exchange it with the policy when it is needed. False: a second copy stays on the GPU. A gang of its own
    has nothing to exchange it with, and keeps it on the GPU."""


class Speculation(Model):
    """Something cheap guesses the next tokens of a response, and the policy reads all guesses in one pass (arXiv 2211.17192). Tokens have the
    policy's own distribution, whatever is guessed."""

    method: Literal["mtp", "eagle3", "ngram"]
    """What guesses. `mtp`: the layer that `model.multiTokenPrediction` trains; `eagle3`: the model in `draft` (arXiv 2503.01840); `ngram`: prompt and
    response, where the last tokens stand in them already."""
    tokens: Annotated[int, Field(ge=1, le=16)] = 2
    """Guesses for each response in a pass."""
    draft: AbsolutePath | None = None
    """For `method: eagle3`: Hugging Face directory of a model made for the policy's, that servers and ranks can read."""
    learning_rate: PositiveFloat | None = None
    """Rate at which `draft` is trained with the policy; unset: it is not."""

    @property
    def learns(self) -> bool:
        """Whether every policy brings its draft."""
        return self.learning_rate is not None


class RolloutSpec(Servers):
    """The pool of vLLM servers that generate."""

    placement: Literal["separate", "colocated"] = "separate"
    """`separate`: servers in pods of their own, on GPUs of their own. `colocated`: in the trainer's pods and on their GPUs, one for every
    `tensorParallel` x `dataParallel` of them. Colocated servers sleep while the policy is trained, and `replicas` and `minReplicas` are not
    read. While they generate, vllmArgs' `gpu-memory-utilization` is their share of the memory, 0.5 unless set."""
    servers_per_gpu: Annotated[int, Field(ge=1, le=4)] = 1
    """Colocated servers that share each GPU, or with `device: cpu` belong to the same rank. For small models, of which one server's own Python thread
    generates fewer tokens than the GPU could: several share that work. Each costs a copy of the weights, a cache of vllmArgs'
    `kv-cache-memory-bytes`, which has to be set, and the host memory and CPU of a server; each update is copied to each of them."""
    replicas: Annotated[int, Field(ge=0, le=MOST_PODS)] = 1
    """Number of servers, each in `nodes` pods of its own. 0 only when batches are replayed; not read when servers are colocated. A change takes
    effect at once, also by `kubectl scale`, but not below the `minReplicas` that a running attempt started with."""
    min_replicas: Annotated[int, Field(ge=0, le=MOST_PODS)] = 1
    """Smallest number of servers with the current policy: generation waits while there are fewer."""
    interrupt: Literal["wait", "continue", "keep"] = "wait"
    """What a new policy does to responses that are being generated ahead (`train.staleness` of at least 1). `wait`: it is published once the batches
    that the policy before may begin are complete. `continue`: at once; responses continue behind the tokens that they have, which keep their policy
    and log-probabilities, and the first groups to complete make the next step. `keep`: as `continue`, but servers receive the policy while they
    generate, and responses keep their keys and values, on which later tokens then depend."""
    sampling: Sampling = Sampling()
    """How training responses are sampled."""
    agent: AgentSpec | None = None
    """Samples of several turns. Unset: a sample is one response to its prompt."""
    exact: bool = False
    """Compute the policy with the same kernels in servers and ranks: log-probabilities of both are equal to the last bit. For `llama`, `qwen2` and
    `qwen3`, whole on one rank and in one server process, with `device: cpu`."""
    speculation: Speculation | None = None
    """Have servers guess tokens, for more per second where few responses are under way. Unset: each token takes a pass."""
    vllm_args: Verbatim = {}
    """Arguments of `vllm serve` by their long names without dashes in front, verbatim. Those that rljob sets are refused here."""
    shm_size: Quantity = "1Gi"
    """Size of /dev/shm in rollout pods, in memory."""
    template: Template = Template()
    """Pod settings of the rollouts."""

    @property
    def required(self) -> int:
        """Servers in pods of their own without which generation waits."""
        return min(self.min_replicas, self.servers)

    @property
    def quantized(self) -> bool:
        """Whether servers round the policy's weights to fewer bits than are trained."""
        return self.vllm_args.get("quantization") is not None

    @property
    def servers(self) -> int:
        """Servers in pods of their own."""
        return 0 if self.placement == "colocated" else self.replicas

    @property
    def pods(self) -> int:
        """Pods of all servers."""
        return self.servers * self.nodes


class PoolSpec(Servers):
    """vLLM servers of the job with a model that is not trained: for rewards, or the teacher of `algorithm.distillation`. They start, are suspended
    and end with the job."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+$", max_length=names.MAX_POOL_NAME)]
    """Name by which `rewards[].vllm.pool` refers to the pool. It also names the pool's pods, `<job>-<name>-<n>`, and has no `-`, so that these
    cannot be the pods of another job."""
    model: AbsolutePath
    """Hugging Face directory that the pool's pods can read."""
    replicas: Annotated[int, Field(ge=1, le=256)] = 1
    """Number of servers, each in `nodes` pods of its own. They are placed together with the trainers or not at all. A change takes effect with the
    next attempt."""
    vllm_args: Verbatim = {}
    """Arguments of `vllm serve` by their long names without dashes in front, verbatim, for example `runner: pooling` for a reward model. Those that
    rljob sets are refused here."""
    shm_size: Quantity = "1Gi"
    """Size of /dev/shm in the pool's pods, in memory."""
    template: Template = Template()
    """Pod settings of the pool."""

    @property
    def pods(self) -> int:
        """Pods of all servers."""
        return self.replicas * self.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSettings:
    """How the ranks that hold a model are set up: the trainer's, or those of a gang of the model's own."""

    nodes: int
    processes_per_node: int
    parallelism: Parallelism
    recompute: Recompute
    transformer_config: dict[str, Any]
    tokens_per_micro_batch: int

    @property
    def world(self) -> int:
        """Ranks of the gang."""
        return self.nodes * self.processes_per_node
