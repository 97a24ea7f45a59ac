"""The spec of an RLJob: one object owns everything a run needs."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rljob_api import names
from rljob_api.base import Model
from rljob_api.spec.algorithm import AlgorithmSpec, DpoSpec, RolloutCorrection, SftSpec
from rljob_api.spec.common import (
    MOST_SPARES,
    AbsolutePath,
    Environment,
    EnvironmentSources,
    Image,
    NonNegativeInt,
    PodSecurity,
    PositiveInt,
    PullSecrets,
    Source,
    Template,
    UploadUrl,
    Volumes,
)
from rljob_api.spec.gang import Gang, Recompute
from rljob_api.spec.model import DataSpec, ModelSpec, RewardSpec
from rljob_api.spec.roles import CriticSpec, Offload, Overlap, PoolSpec, ReferenceSpec, RolloutSpec, TrainerSpec
from rljob_api.spec.train import VALIDATION, EvaluationSet, EvaluationSpec, TrainSpec

Task = Literal["rl", "sft", "dpo", "rewardModel", "pretrain"]
Pods = TrainerSpec | RolloutSpec | PoolSpec | Gang
"""Sections of the spec that describe the pods of a role."""
PAIRED: tuple[Task, ...] = ("dpo", "rewardModel")
"""Tasks whose samples are pairs of a better and a worse answer."""

LabelKey = Annotated[
    str,
    StringConstraints(
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", max_length=317
    ),
]
RuntimeClass = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", max_length=253)
]

MODEL_FILES = [
    "*.safetensors",
    "*.json",
    "*.jinja",
    "*.txt",
    "*.model",
    "*.tiktoken",
    "*.py",
    "!original/*",
    "!consolidated*",
]
"""Files of a model directory that are read. Repositories of models also hold the weights in other formats."""

MOST_CHECKPOINTS = 64
"""Checkpoints that are kept, and that a report holds, at most: with more of them, no launcher could read its own progress."""


class CheckpointSpec(Model):
    """Where the run's state lives, and how often it is written."""

    path: AbsolutePath
    """Directory on a volume that all trainer pods share. One job at a time writes to it."""
    every_steps: NonNegativeInt = 50
    """Steps between checkpoints; 0: only when draining and at the end."""
    keep_last: Annotated[int, Field(ge=1, le=MOST_CHECKPOINTS)] = 3
    """How many complete checkpoints are kept. Older ones are deleted after a newer one is complete."""
    resume: Literal["auto", "required", "never"] = "auto"
    """Where an attempt starts. `auto`: from the newest complete checkpoint in `path`, else from the model; `required`: fail without one;
    `never`: refuse a directory that holds one at the job's first start."""
    resume_from: AbsolutePath | None = None
    """A `global_step_N` directory, of this job or another of the same model, at which the job's first attempt starts, with optimizer and data order.
    From then on checkpoints in `path` count."""
    asynchronous: bool = True
    """Write periodic checkpoints in the background, in a fast format that fits the same `trainer.parallelism` only (any number of data-parallel
    ranks). Checkpoints of a drain and of the end are written synchronously, and fit every layout."""
    upload: UploadUrl | None = None
    """Directory of an object store, as `s3://BUCKET/RUN` or `gs://BUCKET/RUN`, that every complete checkpoint and every export is copied to, while
    training continues; nothing in it is deleted. Credentials are environment variables, as for `model.source`. Unset: nothing is copied."""
    export_every_steps: NonNegativeInt = 0
    """Steps between exports of the policy as Hugging Face directories `exports/step_N` below `path`, while training waits; 0: only that of
    `exportHuggingFace`, at the end."""
    keep_exports: PositiveInt = 3
    """How many exports of `exportEverySteps` are kept in `exports/`. Older ones are deleted after a newer one is complete."""
    export_hugging_face: bool = True
    """Write the final policy as a Hugging Face directory next to the last checkpoint; with `model.lora` its merged weights, and the adapters as a
    directory of the peft library."""


class SchedulingSpec(Model):
    """Placement of the pods on nodes."""

    backend: Literal["builtin", "none", "kueue", "volcano"] = "builtin"
    """Who chooses nodes. `builtin`: rljob places the whole gang at once, near each other by `topologyLevels`; `none`: the
    cluster's own scheduler, pod by pod; `kueue` and `volcano`: those schedulers, where they are installed, with the whole gang as one group."""
    topology_levels: Annotated[list[LabelKey], Field(max_length=8)] = []
    """Labels of nodes, from the widest domain to the narrowest, for example block, rack and NVLink domain; the node itself is always the last. For
    `builtin` and `kueue`."""
    queue: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = None
    """Queue of `backend: kueue` (a LocalQueue) or `volcano`; both need one."""
    priority: Annotated[int, Field(ge=-(10**9), le=10**9)] = 0
    """Priority among jobs of the `builtin` backend: higher ones are placed first, then older ones. Nothing that runs is evicted."""
    exclude_after_failures: Annotated[int, Field(ge=0, le=10)] = 2
    """Failures within an hour that point at one node (a pod that its kubelet refused, an error of its GPUs, a killed process, the loss of the node)
    after which the job avoids the node for an hour, if other nodes have capacity for the whole gang; 0: never."""
    spare_nodes: Annotated[int, Field(ge=0, le=MOST_SPARES)] = 0
    """Pods of the trainer beyond `trainer.nodes` that wait on nodes of their own, as far as there is capacity, with image and imports loaded. When a
    pod of the gang is lost, the next attempt starts with one of them in its place. They hold their GPUs without using them."""

    @property
    def assigns_nodes(self) -> bool:
        """Whether the operator chooses the nodes: pods are gated until status.placement has their assignments."""
        return self.backend == "builtin"


class LifecycleSpec(Model):
    """Failures and time limits."""

    max_restarts: NonNegativeInt = 3
    """Failures in a row that are followed by a restart; one more fails the job. Exceptions, killed processes and stalls count; lost nodes, evictions
    and drains do not. An attempt that has done three steps and saved a checkpoint starts the count anew. A wrong configuration fails the job at
    once."""
    backoff_seconds: NonNegativeInt = 5
    """Seconds before the first counted restart. The delay doubles with each further one, up to ten minutes."""
    stall_timeout_seconds: PositiveInt = 1800
    """Seconds without progress after which an attempt fails. Every sample, micro-batch, transfer and file counts as progress."""
    drain_timeout_seconds: PositiveInt = 600
    """Seconds that a drain waits for the end of the step and its checkpoint, before it stops the attempt."""
    rank_grace_seconds: Annotated[int, Field(ge=1, le=600)] = 10
    """Seconds between SIGTERM and SIGKILL when the ranks of an attempt on GPUs are ended and do not end at once. A process that is killed while its
    GPU computes can look like broken hardware (Xid 45). Ranks on CPUs get 2 seconds."""
    node_loss_seconds: PositiveInt = 120
    """Seconds that a node may be unreachable before its pods count as lost, and that a deleted pod may outlive its grace period before it counts as
    stuck. Other pods stand in for both."""
    stranded_seconds: PositiveInt = 600
    """Seconds that pods of the job may hold their nodes although others have none, so that no attempt can run. Then all pods are released, and the
    job starts again when there is capacity for the whole gang."""
    pending_deadline_seconds: PositiveInt | None = None
    """Seconds after the job was created or resumed in which all trainer pods have to start; otherwise the job fails. Unset: it waits."""
    active_deadline_seconds: PositiveInt | None = None
    """Seconds that the job's attempts may run in total. Then the job drains to a checkpoint and fails. Unset: no limit."""
    ttl_seconds_after_finished: NonNegativeInt | None = None
    """Seconds after which the children of a finished job are deleted; the RLJob itself stays, so that GitOps does not run it again. Unset: the pods
    are deleted at once, and the other children stay."""


class RLJobSpec(Model):
    """A training run of a language model: Megatron trains and, for reinforcement learning, vLLM generates."""

    task: Task = "rl"
    """What is learnt. `rl`: what rewards favour, from responses that the policy generates; `sft`: conversations; `dpo`: preferences between
    answers, without a reward model; `rewardModel`: a model that scores answers, for `rewards[].model` of another job; `pretrain`: documents. All
    but `rl` learn from `data` alone: they have no rewards and no rollouts."""
    model: ModelSpec
    """The policy's starting point."""
    data: DataSpec
    """Training and held-out data."""
    rewards: Annotated[list[RewardSpec], Field(max_length=64)] = []
    """Reward functions, by data source: at least one for `task: rl`, none for the others."""
    algorithm: AlgorithmSpec = AlgorithmSpec()
    """How rewards become gradients. For `task: rl`."""
    sft: SftSpec = SftSpec()
    """The loss of `task: sft` and `pretrain`."""
    dpo: DpoSpec = DpoSpec()
    """The loss of `task: dpo`."""
    train: TrainSpec
    """Amounts per step, and the optimizer."""
    evaluation: EvaluationSpec = EvaluationSpec()
    """Measurements on held-out data."""
    trainer: TrainerSpec = TrainerSpec()
    """The gang of torchrun pods that trains the policy."""
    critic: CriticSpec | None = None
    """The value model. Required by `algorithm.advantage: gae`, refused otherwise."""
    reference: ReferenceSpec = ReferenceSpec()
    """The frozen policy that the trained one is compared with: by `algorithm.kl` if its coefficient is above 0, by
    `algorithm.distillation.reference`, and by `task: dpo` with a loss that needs it."""
    rollout: RolloutSpec = RolloutSpec()
    """The vLLM servers that generate. For `task: rl`."""
    pools: Annotated[list[PoolSpec], Field(max_length=8)] = []
    """Further vLLM servers of the job, each pool with a frozen model: judges and reward models that `rewards[].vllm.pool` names, and
    teachers of `algorithm.distillation`. For `task: rl`."""
    checkpoint: CheckpointSpec
    """Where the run's state lives."""
    scheduling: SchedulingSpec = SchedulingSpec()
    """Placement of the pods on nodes."""
    lifecycle: LifecycleSpec = LifecycleSpec()
    """Failures and time limits."""
    suspend: bool = False
    """Finish the step, save and delete the pods. `kubectl rljob resume` overrides it without editing the spec."""
    image: Image | None = None
    """Image of trainer and rollout pods. Required, unless the administrator has set a default (`jobs.defaults.image` of the chart)."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When the image is pulled, as in a Kubernetes container."""
    image_pull_secrets: PullSecrets = []
    """Secrets with which the image is pulled, as Kubernetes references: `{name: NAME}`."""
    env: Environment = []
    """Environment variables of all containers."""
    env_from: EnvironmentSources = []
    """Kubernetes `envFrom` sources of all containers."""
    volumes: Volumes = []
    """Volumes of all pods; model, data and checkpoints live on them."""
    pod_security: PodSecurity = PodSecurity()
    """User and groups of all pods."""
    runtime_class_name: RuntimeClass | None = None
    """Kubernetes RuntimeClass of all pods, for example `nvidia` where that is not the nodes' default; the administrator's default
    (`jobs.runtimeClassName` of the chart) when unset."""

    @property
    def sources(self) -> dict[str, Source]:
        """What is copied to the volumes before the job begins, by the field that names it."""
        named = {f"spec.data.sources[{i}]": source for i, source in enumerate(self.data.sources)}
        if self.model.source is None:
            return named
        model = Source(source=self.model.source, path=self.model.path, files=MODEL_FILES)
        return {"spec.model": model} | named

    @property
    def supervised(self) -> bool:
        """Whether the task learns from given data alone, without rollouts and rewards."""
        return self.task != "rl"

    @property
    def paired(self) -> bool:
        """Whether a sample is a pair of answers."""
        return self.task in PAIRED

    @property
    def has_reference(self) -> bool:
        """Whether a frozen reference policy is needed."""
        return self.dpo.has_reference if self.task == "dpo" else self.algorithm.has_reference

    @property
    def generates_on(self) -> bool:
        """Whether responses that are being generated when a new policy comes continue under it."""
        return self.train.staleness > 0 and self.rollout.interrupt == "continue"

    @property
    def keeps_groups(self) -> bool:
        """Whether groups that a step leaves over are kept for the next one."""
        return self.generates_on or self.train.partial_rollouts is not None

    @property
    def max_age(self) -> int:
        """Largest number of policy versions between the one under which a trajectory began and the one that it trains."""
        partial = self.train.partial_rollouts
        return max(self.train.staleness, partial.max_age if partial else 0)

    @property
    def longest_response(self) -> int:
        """Most tokens after the prompt of a training sample: of one response, or of an agent's whole trajectory."""
        agent = self.rollout.agent
        return agent.max_tokens if agent else self.rollout.sampling.max_tokens

    @property
    def longest_response_field(self) -> str:
        """Path of the field that sets `longest_response`."""
        return "spec.rollout.agent.maxTokens" if self.rollout.agent else "spec.rollout.sampling.maxTokens"

    @property
    def rollout_correction(self) -> RolloutCorrection:
        """spec.algorithm.rolloutCorrection with its unset fields filled in: by default, quantized rollouts are corrected for."""
        given = self.algorithm.rollout_correction
        usual = "token" if self.rollout.quantized and not given.bypass else "none"
        return given.model_copy(update={"importance_sampling": given.importance_sampling or usual})

    @property
    def last_step(self) -> int:
        """The last step that is trained; 0 with evaluation.only."""
        return 0 if self.evaluation.only else self.train.total_steps

    def saves_in_background(self, after: int) -> bool:
        """Whether a checkpoint of a step after `after` is written while training continues."""
        every = self.checkpoint.every_steps
        return self.checkpoint.asynchronous and every > 0 and (after // every + 1) * every < self.last_step

    @property
    def evaluation_sets(self) -> list[EvaluationSet]:
        """Held-out sets of `task: rl`: first that of data.validation, if there is one. Their unset fields are filled in from spec.evaluation."""
        e, files = self.evaluation, self.data.validation
        own = [EvaluationSet(name=VALIDATION, files=files)] if files else []
        return [
            s.model_copy(
                update={
                    "samples_per_prompt": s.samples_per_prompt or e.samples_per_prompt,
                    "sampling": s.sampling or e.sampling,
                }
            )
            for s in (*own, *e.sets)
        ]

    @property
    def models(self) -> dict[str, Gang]:
        """Models besides the policy that Megatron computes, by role, on the trainer's ranks or on gangs of their own."""
        critic: dict[str, Gang] = {names.ROLE_CRITIC: self.critic} if self.critic else {}
        reference = {names.ROLE_REFERENCE: self.reference} if self.has_reference else {}
        rewards = {names.reward_role(i): reward.model for i, reward in enumerate(self.rewards) if reward.model}
        return critic | reference | rewards

    @property
    def gangs(self) -> dict[str, Gang]:
        """Models besides the policy that have a gang of their own, by role."""
        return {role: model for role, model in self.models.items() if model.processes_per_node}

    def of_gang(self, role: str) -> "RLJobSpec":
        """The spec as the ranks of a role's gang read it: `trainer` has the gang's settings, and there are no adapters, which only the policy has.
        For the trainer, and for models on its ranks, the spec itself."""
        gang = self.gangs.get(role)
        if gang is None:
            return self
        own = {
            name: getattr(gang, name) for name in ("nodes", "processes_per_node", "parallelism", "transformer_config")
        }
        trainer = self.trainer.model_copy(
            update=own
            | {"recompute": gang.recompute if isinstance(gang, CriticSpec) else Recompute()}
            | {"overlap": Overlap(), "offload": Offload()}
            | {"shm_size": gang.shm_size, "template": gang.template}
        )
        tokens = gang.tokens_per_micro_batch or self.train.tokens_per_micro_batch
        train = self.train.model_copy(update={"tokens_per_micro_batch": tokens})
        rollout = self.rollout.model_copy(update={"placement": "separate"})
        model = self.model.model_copy(update={"lora": None})
        return self.model_copy(update={"model": model, "trainer": trainer, "train": train, "rollout": rollout})

    @property
    def has_token(self) -> bool:
        """Whether the job has a token, with which its pods authenticate to each other over HTTP."""
        return not self.supervised or bool(self.gangs)

    @property
    def pods(self) -> dict[str, Pods]:
        """Settings of pods, by role: those of the trainer, of further gangs, of the rollouts, and of each pool by its name."""
        gangs: dict[str, Pods] = {names.ROLE_TRAINER: self.trainer, **self.gangs}
        pools: dict[str, Pods] = {pool.name: pool for pool in self.pools}
        return gangs | {names.ROLE_ROLLOUT: self.rollout} | pools

    def field_of(self, role: str) -> str:
        """Path of the section that describes a role's pods, such as `spec.pools[0]`."""
        pools = {pool.name: f"spec.pools[{i}]" for i, pool in enumerate(self.pools)}
        rewards = {names.reward_role(i): f"spec.rewards[{i}].model" for i in range(len(self.rewards))}
        return (pools | rewards).get(role, f"spec.{role}")

    def template(self, role: str) -> Template:
        """Pod settings of a role."""
        return self.pods[role].template

    def processes_of(self, role: str) -> int:
        """Processes in each pod of the role. With `trainer.device: gpu`, each has a GPU of its own."""
        settings = self.pods[role]
        if isinstance(settings, RolloutSpec | PoolSpec):
            return settings.tensor_parallel
        return settings.processes_per_node or 0

    def container_resources(self, role: str) -> dict[str, dict[str, str]]:
        """Requests and limits of the role's container: the template's, and one device per process."""
        devices = {self.trainer.resource_name: str(self.processes_of(role))} if self.trainer.device == "gpu" else {}
        given = self.template(role).resources
        found = {"requests": dict(given.requests), "limits": given.limits | devices}
        return {k: v for k, v in found.items() if v}
