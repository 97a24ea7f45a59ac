"""Arithmetic of parallel layouts and batches: the one place that divides ranks and samples.

What has to divide what: `rules/layout.py`, `rules/model.py`."""

from dataclasses import dataclass

from rljob_api import names
from rljob_api.sizing.split import named
from rljob_api.spec import RLJobSpec
from rljob_api.spec.processes import Servers
from rljob_api.spec.roles import Offload, Overlap


@dataclass(frozen=True, slots=True)
class Layout:
    """How the ranks that hold a model are divided."""

    world: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    virtual_pipeline: int = 1
    cut: str = ""
    """How layers are cut into unequal stages, in a word (`split.named`); empty: equally."""

    @staticmethod
    def of(spec: RLJobSpec, role: str) -> "Layout":
        """The layout of a model, by its role: its own gang's, or the trainer's. Raises ValueError for roles whose model Megatron does not compute."""
        if not names.is_model_role(role):
            raise ValueError(f"unknown role {role!r}: must be trainer, critic, reference, or reward and a number")
        ranks = spec.ranks_of(role)
        p = ranks.parallelism
        return Layout(
            ranks.world,
            p.tensor,
            p.pipeline,
            p.context,
            p.expert,
            p.expert_tensor or p.tensor,
            p.virtual_pipeline,
            named(ranks.transformer_config) if p.pipeline > 1 else "",
        )

    @property
    def model(self) -> int:
        """Ranks that work on one micro-batch."""
        return self.tensor * self.pipeline * self.context

    @property
    def data(self) -> int:
        """Copies of the model, each with micro-batches of its own. The layout must divide (see `rules/layout.py`)."""
        return self.world // self.model

    @property
    def expert_model(self) -> int:
        """Ranks that hold one copy of all experts: expert ranks are taken out of the tensor, context and data parallel ones of a stage."""
        return self.expert_tensor * self.expert * self.pipeline

    @property
    def expert_copies(self) -> int:
        """Copies of all experts, which share their optimizer's states."""
        return max(1, self.world // self.expert_model)

    @property
    def sequence_alignment(self) -> int:
        """A sequence is filled up to a multiple of this many tokens: context-parallel ranks take two of its 2 x context chunks each."""
        return 2 * self.context if self.context > 1 else 1

    @property
    def alignment(self) -> int:
        """A micro-batch is filled up to a multiple of this many tokens: sequence parallelism cuts each rank's share into equal parts."""
        return self.sequence_alignment * self.tensor

    @property
    def micro_batch_multiple(self) -> int:
        """The interleaved schedule takes micro-batches in groups of the pipeline's size (core/pipeline_parallel/schedules.py:1134)."""
        return self.pipeline if self.virtual_pipeline > 1 else 1

    def __str__(self) -> str:
        """Sizes of 1 are left out beyond the first three: `tp2-pp1-dp1`, `tp2-pp1-dp1-cp2`. Two layouts hold the same parts of a model if they differ
        in dp at most."""
        further = {"cp": self.context, "ep": self.expert, "vpp": self.virtual_pipeline}
        if self.expert > 1 and self.expert_tensor != self.tensor:
            further["etp"] = self.expert_tensor
        parts = [f"tp{self.tensor}", f"pp{self.pipeline}", *([self.cut] if self.cut else []), f"dp{self.data}"]
        return "-".join(parts + [f"{k}{v}" for k, v in further.items() if v > 1 or k == "etp"])


def servers_per_pod(spec: RLJobSpec) -> int:
    """Colocated servers of one trainer pod; 0 where rollouts are in pods of their own, or there are none."""
    colocated = spec.rollout.placement == "colocated" and not spec.supervised
    return spec.trainer.processes_per_node // spec.rollout.gpus * spec.rollout.servers_per_gpu if colocated else 0


def spec_of_gang(spec: RLJobSpec, role: str) -> RLJobSpec:
    """The spec as the ranks of a role's gang read it: `trainer` has the gang's settings, `train.optimizer` is that of the gang's model, and there are
    neither adapters nor what guesses tokens, which only the policy has. For the trainer, and for models on its ranks, the spec itself."""
    gang = spec.gangs.get(role)
    if gang is None:
        return spec
    ranks = spec.ranks_of(role)
    trainer = spec.trainer.model_copy(
        update={
            "nodes": ranks.nodes,
            "processes_per_node": ranks.processes_per_node,
            "parallelism": ranks.parallelism,
            "recompute": ranks.recompute,
            "transformer_config": ranks.transformer_config,
            "overlap": Overlap(),
            "offload": Offload(),
            "shm_size": gang.shm_size,
            "template": gang.template,
        }
    )
    optimizer = spec.critic.optimizer if spec.critic and role == names.ROLE_CRITIC else spec.train.optimizer
    own = {"tokens_per_micro_batch": ranks.tokens_per_micro_batch, "optimizer": optimizer}
    train = spec.train.model_copy(update=own)
    rollout = spec.rollout.model_copy(update={"placement": "separate", "speculation": None})
    model = spec.model.model_copy(update={"lora": None, "multi_token_prediction": False})
    return spec.model_copy(update={"model": model, "trainer": trainer, "train": train, "rollout": rollout})


def rollout_pods(spec: RLJobSpec) -> int:
    """Pods of servers that have pods of their own."""
    return 0 if spec.supervised else spec.rollout.pods


def required_rollout_pods(spec: RLJobSpec) -> int:
    """Pods of the servers without which generation waits."""
    return 0 if spec.supervised else spec.rollout.required * spec.rollout.nodes


def wanted_servers(spec: RLJobSpec) -> int:
    """Servers that generate once all of the job's pods run."""
    return spec.trainer.nodes * servers_per_pod(spec) or rollout_pods(spec) // spec.rollout.nodes


def required_servers(spec: RLJobSpec) -> int:
    """Servers without which generation waits."""
    return spec.trainer.nodes * servers_per_pod(spec) or required_rollout_pods(spec) // spec.rollout.nodes


def placed_pods(spec: RLJobSpec) -> dict[str, int]:
    """Those whose nodes the `builtin` backend chooses."""
    return {role: count for role, count in spec.pod_counts.items() if names.is_placed(role)}


def grouped_pods(spec: RLJobSpec) -> dict[str, int]:
    """Those that come and go together, and so are one group for Kueue."""
    return {role: count for role, count in spec.pod_counts.items() if not names.stays(role)}


def server_nodes(spec: RLJobSpec, role: str) -> int:
    """Pods of one server of the role; 1 for gangs, whose pods are counted one by one."""
    settings = spec.pods[role]
    return settings.nodes if isinstance(settings, Servers) else 1


def required_pods(spec: RLJobSpec) -> dict[str, int]:
    """Pods that are placed together or not at all, by role: all but spares, the rollouts beyond `minReplicas`, and what is not placed."""
    required = {names.ROLE_TRAINER: spec.trainer.nodes, names.ROLE_ROLLOUT: required_rollout_pods(spec)}
    return {role: required.get(role, count) if names.is_placed(role) else 0 for role, count in spec.pod_counts.items()}


@dataclass(frozen=True, slots=True)
class Amounts:
    """How many samples move, counted globally. A sample is a sequence: a response with its prompt, a conversation, one answer of a pair."""

    longest: int
    """Tokens of the longest sample."""
    groups_per_step: int
    """Groups per step: prompts, each with several samples; conversations; or pairs of samples."""
    group: int
    """Samples in a group."""
    samples_per_step: int
    groups_per_mini_batch: int
    samples_per_mini_batch: int
    updates: int
    """Optimizer steps per step."""
    optimizer_steps: int | None
    """Optimizer steps of the whole job; None: with `train.epochs`, only the trainer knows, since it counts the data."""

    @staticmethod
    def of(spec: RLJobSpec) -> "Amounts":
        t = spec.train
        groups = t.samples_per_step if spec.supervised else t.prompts_per_step
        group = (2 if spec.paired else 1) if spec.supervised else t.samples_per_prompt
        updates = t.mini_batches * t.epochs_per_step
        longest = spec.data.max_tokens if spec.supervised else spec.data.max_prompt_tokens + spec.longest_response
        return Amounts(
            longest=spec.service.max_tokens if spec.task == "service" else longest,
            groups_per_step=groups,
            group=group,
            samples_per_step=groups * group,
            groups_per_mini_batch=groups // t.mini_batches,
            samples_per_mini_batch=groups // t.mini_batches * group,
            updates=updates,
            optimizer_steps=None if t.steps is None else t.steps * updates,
        )


def divisors(number: int, most: int = 2**31) -> list[int]:
    """Small ones first."""
    return [size for size in range(1, min(number, most) + 1) if number % size == 0]
