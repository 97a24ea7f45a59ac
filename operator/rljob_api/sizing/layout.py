"""Arithmetic of parallel layouts and batches: the one place that divides ranks and samples.

What has to divide what: `validation/layout.py`, `validation/model.py`."""

from dataclasses import dataclass

from rljob_api import names
from rljob_api.spec import RLJobSpec


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

    @staticmethod
    def of(spec: RLJobSpec, role: str) -> "Layout":
        """Of a model's role. Critic, reference and reward models share the trainer's ranks. Raises ValueError for an unknown role."""
        if role not in names.MODEL_ROLES:
            raise ValueError(f"unknown role {role!r}: must be one of {', '.join(names.MODEL_ROLES)}")
        t, p = spec.trainer, spec.trainer.parallelism
        return Layout(
            t.nodes * t.processes_per_node,
            p.tensor,
            p.pipeline,
            p.context,
            p.expert,
            p.expert_tensor or p.tensor,
            p.virtual_pipeline,
        )

    @property
    def model(self) -> int:
        """Ranks that work on one micro-batch."""
        return self.tensor * self.pipeline * self.context

    @property
    def data(self) -> int:
        """Copies of the model, each with micro-batches of its own. The layout must divide (see `validation/layout.py`)."""
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
        """So is a whole micro-batch: sequence parallelism cuts each rank's share into equal parts."""
        return self.sequence_alignment * self.tensor

    @property
    def micro_batch_multiple(self) -> int:
        """The interleaved schedule takes micro-batches in groups of the pipeline's size (core/pipeline_parallel/schedules.py:1134)."""
        return self.pipeline if self.virtual_pipeline > 1 else 1

    def __str__(self) -> str:
        """Sizes of 1 are left out beyond the first three: `tp2-pp1-dp1`, `tp2-pp1-dp1-cp2`."""
        further = {"cp": self.context, "ep": self.expert, "vpp": self.virtual_pipeline}
        if self.expert > 1 and self.expert_tensor != self.tensor:
            further["etp"] = self.expert_tensor
        parts = [f"tp{self.tensor}", f"pp{self.pipeline}", f"dp{self.data}"]
        return "-".join(parts + [f"{k}{v}" for k, v in further.items() if v > 1 or k == "etp"])


def servers_per_pod(spec: RLJobSpec) -> int:
    """Colocated servers of one trainer pod; 0 where rollouts are in pods of their own."""
    colocated = spec.rollout.placement == "colocated"
    return spec.trainer.processes_per_node // spec.rollout.tensor_parallel if colocated else 0


def required_servers(spec: RLJobSpec) -> int:
    """Servers without which generation waits."""
    return spec.trainer.nodes * servers_per_pod(spec) or spec.rollout.required


@dataclass(frozen=True, slots=True)
class Amounts:
    """How many samples move, counted globally."""

    longest: int
    """Tokens of the longest sample."""
    samples_per_step: int
    prompts_per_mini_batch: int
    samples_per_mini_batch: int
    updates: int
    """Optimizer steps per step."""
    optimizer_steps: int
    """Of the whole job."""

    @staticmethod
    def of(spec: RLJobSpec) -> "Amounts":
        t = spec.train
        prompts = t.prompts_per_step // t.mini_batches
        updates = t.mini_batches * t.epochs_per_step
        return Amounts(
            longest=spec.data.max_prompt_tokens + spec.rollout.sampling.max_tokens,
            samples_per_step=t.prompts_per_step * t.samples_per_prompt,
            prompts_per_mini_batch=prompts,
            samples_per_mini_batch=prompts * t.samples_per_prompt,
            updates=updates,
            optimizer_steps=t.steps * updates,
        )
