"""The spec of an RLJob: one object owns everything a run needs."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field

from rljob_api import names
from rljob_api.base import Model
from rljob_api.spec.agent import EnvironmentPool
from rljob_api.spec.algorithm import AlgorithmSpec, DpoSpec, RolloutCorrection, SftSpec
from rljob_api.spec.common import (
    ControllerName,
    DnsName,
    EnvironmentSources,
    EnvVars,
    ImageName,
    PodSecurity,
    PullSecrets,
    Source,
    Template,
    VolumeList,
)
from rljob_api.spec.model import MODEL_FILES, DataSpec, LoraSpec, ModelSpec, RewardSpec
from rljob_api.spec.processes import GangSpec, Recompute, Servers, Workers
from rljob_api.spec.roles import (
    CriticSpec,
    PoolSpec,
    RankSettings,
    ReferenceSpec,
    RolloutSpec,
    TrainerSpec,
)
from rljob_api.spec.run import CheckpointSpec, LifecycleSpec, SchedulingSpec
from rljob_api.spec.service import ALPHA, ServiceSpec
from rljob_api.spec.train import EvaluationSet, EvaluationSpec, TrainSpec

Task = Literal["rl", "sft", "dpo", "rewardModel", "pretrain", "service"]
PodSection = TrainerSpec | RolloutSpec | PoolSpec | Workers | EnvironmentPool | ServiceSpec | GangSpec
"""Sections of the spec that describe the pods of a role."""
PAIRED: tuple[Task, ...] = ("dpo", "rewardModel")
"""Tasks whose samples are pairs of a better and a worse answer."""


class RLJobSpec(Model):
    """A training run of a language model: Megatron trains and, for reinforcement learning, vLLM generates."""

    task: Task = "rl"
    """What is learnt. `rl`: what rewards favour, from responses that the policy generates; `sft`: conversations; `dpo`: preferences between
    answers, without a reward model; `rewardModel`: a model that scores answers, for `rewards[].model` of another job; `pretrain`: documents.
    These four have no rewards and no rollouts. `service`: what clients with loops of their own ask for, over the
    network."""
    model: ModelSpec
    """The policy's starting point."""
    data: DataSpec = DataSpec()
    """Training and held-out data."""
    rewards: Annotated[list[RewardSpec], Field(max_length=64)] = []
    """Reward functions, by data source: at least one for `task: rl`, none for the others."""
    algorithm: AlgorithmSpec = AlgorithmSpec()
    """How rewards become gradients. For `task: rl`."""
    sft: SftSpec = SftSpec()
    """The loss of `task: sft` and `pretrain`."""
    dpo: DpoSpec = DpoSpec()
    """The loss of `task: dpo`."""
    service: ServiceSpec = ServiceSpec()
    """What `task: service` offers to its clients."""
    train: TrainSpec = TrainSpec()
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
    environments: Annotated[list[EnvironmentPool], Field(max_length=8)] = []
    """Pods in which agents run programs that nobody trusts, each list entry an environment with an image of its own. For
    `rollout.agent.python`."""
    checkpoint: CheckpointSpec
    """Where the run's state lives."""
    scheduling: SchedulingSpec = SchedulingSpec()
    """Placement of the pods on nodes."""
    lifecycle: LifecycleSpec = LifecycleSpec()
    """Failures and time limits."""
    suspend: bool = False
    """Finish the step, save and delete the pods. `kubectl rljob resume` overrides it without editing the spec."""
    managed_by: ControllerName | None = None
    """Who runs the job, as in a Kubernetes Job. Unset or `rljob.dev/operator`: the operator; it leaves all others alone, for example
    `kueue.x-k8s.io/multikueue`."""
    image: ImageName | None = None
    """Image of trainer and rollout pods. Required, unless the administrator has set a default (`jobs.defaults.image` of the chart)."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When the image is pulled, as in a Kubernetes container."""
    image_pull_secrets: PullSecrets = []
    """Secrets with which the image is pulled, as Kubernetes references: `{name: NAME}`."""
    env: EnvVars = []
    """Environment variables of all containers."""
    env_from: EnvironmentSources = []
    """Kubernetes `envFrom` sources of all containers."""
    volumes: VolumeList = []
    """Volumes of all pods; model, data and checkpoints live on them."""
    pod_security: PodSecurity = PodSecurity()
    """User and groups of all pods."""
    runtime_class_name: DnsName | None = None
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
        return self.task not in ("rl", "service")

    @property
    def paired(self) -> bool:
        """Whether a sample is a pair of answers."""
        return self.task in PAIRED

    @property
    def adapters(self) -> LoraSpec | None:
        """What is trained next to the model's weights: a service's clients have adapters of at most this rank. None: the weights are trained."""
        if self.task != "service":
            return self.model.lora
        return LoraSpec(rank=self.service.max_rank, alpha=ALPHA) if self.service.max_rank else None

    @property
    def has_reference(self) -> bool:
        """Whether a frozen reference policy is needed."""
        return self.dpo.has_reference if self.task == "dpo" else self.algorithm.has_reference

    @property
    def generates_on(self) -> bool:
        """Whether responses that are being generated when a new policy comes continue under it."""
        return self.train.staleness > 0 and self.rollout.interrupt != "wait"

    @property
    def keeps_requests(self) -> bool:
        """Whether they even continue in the same request, with their keys and values."""
        return self.generates_on and self.rollout.interrupt == "keep"

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
        return self.evaluation.all_sets(self.data.validation)

    @property
    def only_answers(self) -> bool:
        """Whether the job answers held-out prompts and trains nothing: then nobody asks models that measure training samples."""
        return self.evaluation.only and not self.supervised

    @cached_property
    def models(self) -> Mapping[str, GangSpec]:
        """Models besides the policy that Megatron computes, by role, on the trainer's ranks or on gangs of their own."""
        return {} if self.only_answers else self._named_models

    @cached_property
    def _named_models(self) -> Mapping[str, GangSpec]:
        """Those of `models` in training. With `task: rl` all of them measure training samples."""
        critic: dict[str, GangSpec] = {names.ROLE_CRITIC: self.critic} if self.critic else {}
        reference = {names.ROLE_REFERENCE: self.reference} if self.has_reference else {}
        rewards = {names.reward_role(i): reward.model for i, reward in enumerate(self.rewards) if reward.model}
        return critic | reference | rewards

    @cached_property
    def gangs(self) -> Mapping[str, GangSpec]:
        """Models besides the policy that have a gang of their own, by role."""
        return {role: model for role, model in self.models.items() if model.processes_per_node}

    @cached_property
    def shared(self) -> Mapping[str, GangSpec]:
        """Models besides the policy that the trainer's ranks compute, by role."""
        return {role: model for role, model in self.models.items() if role not in self.gangs}

    @cached_property
    def asked_pools(self) -> list[PoolSpec]:
        """The pools that are started: not that of a teacher where nothing is trained."""
        scoring = {reward.vllm.pool for reward in self.rewards if reward.vllm}
        return [pool for pool in self.pools if pool.name in scoring or not self.only_answers]

    @cached_property
    def idle(self) -> list[str]:
        """Roles of gangs and pools of the spec that are not started, since only training would ask them."""
        gangs = [role for role, model in self._named_models.items() if model.processes_per_node]
        started = {*self.gangs, *(pool.name for pool in self.asked_pools)}
        return [role for role in (*gangs, *(pool.name for pool in self.pools)) if role not in started]

    @cached_property
    def trainer_ranks(self) -> RankSettings:
        """How the trainer's ranks are set up."""
        return RankSettings(
            nodes=self.trainer.nodes,
            processes_per_node=self.trainer.processes_per_node,
            parallelism=self.trainer.parallelism,
            recompute=self.trainer.recompute,
            transformer_config=self.trainer.transformer_config,
            tokens_per_micro_batch=self.train.tokens_per_micro_batch,
        )

    def ranks_of(self, role: str) -> RankSettings:
        """How the ranks that hold a model are set up, by its role: those of its own gang, or the trainer's."""
        gang = self.gangs.get(role)
        if gang is None or gang.processes_per_node is None:
            return self.trainer_ranks
        return RankSettings(
            nodes=gang.nodes,
            processes_per_node=gang.processes_per_node,
            parallelism=gang.parallelism,
            recompute=gang.recompute if isinstance(gang, CriticSpec) else Recompute(),
            transformer_config=gang.transformer_config,
            tokens_per_micro_batch=gang.tokens_per_micro_batch or self.train.tokens_per_micro_batch,
        )

    @cached_property
    def gang_sizes(self) -> Mapping[str, int]:
        """Pods of the trainer, and of the gangs of other models, by role: all of them are members of an attempt."""
        return {names.ROLE_TRAINER: self.trainer.nodes} | {role: gang.nodes for role, gang in self.gangs.items()}

    @cached_property
    def pod_counts(self) -> Mapping[str, int]:
        """Pods that the job wants, by role, the trainer's with its spares: roles that its task does not have are left out."""
        rollouts = {} if self.supervised else {names.ROLE_ROLLOUT: self.rollout.pods}
        trainers = {names.ROLE_TRAINER: self.trainer.nodes + self.scheduling.spare_nodes}
        workers = {role: pods.replicas for role, pods in self.workers.items()}
        sandboxes = {names.sandbox_role(i): pool.replicas for i, pool in enumerate(self.environments)}
        others = workers | sandboxes | ({names.ROLE_GATEWAY: 1} if self.task == "service" else {})
        pools = {pool.name: pool.pods for pool in self.asked_pools}
        return {**self.gang_sizes, **trainers, **rollouts, **others, **pools}

    @cached_property
    def workers(self) -> Mapping[str, Workers]:
        """Pods in which the agent runs, or a reward function, by role. What has none runs next to the trainer's rank 0."""
        agent = self.rollout.agent
        agents = {names.ROLE_WORKER: agent.workers} if agent and agent.workers else {}
        return agents | {names.scorer_role(i): r.workers for i, r in enumerate(self.rewards) if r.workers}

    @property
    def has_service(self) -> bool:
        """Whether further pods connect to the trainer's rank 0: gangs of other models, and workers."""
        return bool(self.gangs or self.workers)

    @property
    def has_token(self) -> bool:
        """Whether the job has a token, with which its pods authenticate to each other over HTTP."""
        return not self.supervised or bool(self.gangs)

    @cached_property
    def pods(self) -> Mapping[str, PodSection]:
        """Settings of pods, by role: those of the trainer, of further gangs, of the rollouts, of workers, environments, a gateway, and of
        each pool by its name."""
        gangs: dict[str, PodSection] = {names.ROLE_TRAINER: self.trainer, **self.gangs}
        pools: dict[str, PodSection] = {pool.name: pool for pool in self.asked_pools}
        workers: dict[str, PodSection] = {**self.workers}
        environments: dict[str, PodSection] = {names.sandbox_role(i): pool for i, pool in enumerate(self.environments)}
        gateway: dict[str, PodSection] = {names.ROLE_GATEWAY: self.service} if self.task == "service" else {}
        return gangs | {names.ROLE_ROLLOUT: self.rollout} | workers | environments | gateway | pools

    def field_of(self, role: str) -> str:
        """Path of the section that describes a role's pods, such as `spec.pools[0]`."""
        pools = {pool.name: f"spec.pools[{i}]" for i, pool in enumerate(self.pools)}
        rewards = {names.reward_role(i): f"spec.rewards[{i}].model" for i in range(len(self.rewards))}
        scorers = {names.scorer_role(i): f"spec.rewards[{i}].workers" for i in range(len(self.rewards))}
        environments = {names.sandbox_role(i): f"spec.environments[{i}]" for i in range(len(self.environments))}
        others = {names.ROLE_WORKER: "spec.rollout.agent.workers", names.ROLE_GATEWAY: "spec.service"}
        return (pools | rewards | scorers | environments | others).get(role, f"spec.{role}")

    def template(self, role: str) -> Template:
        """Pod settings of a role."""
        return self.pods[role].template

    def processes_of(self, role: str) -> int:
        """Processes in each pod of the role that have GPUs of their own with `trainer.device: gpu`."""
        settings = self.pods[role]
        if isinstance(settings, Workers | EnvironmentPool | ServiceSpec):
            return 0
        if isinstance(settings, Servers):
            return settings.processes_per_pod
        return settings.processes_per_node or 0

    def container_resources(self, role: str) -> dict[str, dict[str, str]]:
        """Requests and limits of the role's container: the template's, and one device per process."""
        count = self.processes_of(role) if self.trainer.device == "gpu" else 0
        name = self.trainer.resource_name
        devices = {name: str(count)} if name and count else {}
        given, settings = self.template(role).resources, self.pods[role]
        if isinstance(settings, EnvironmentPool):
            return settings.resources
        amounts = {"requests": dict(given.requests), "limits": given.limits | devices}
        return {k: v for k, v in amounts.items() if v}
