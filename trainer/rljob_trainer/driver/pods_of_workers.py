"""The job's worker pods, as the driver lets them in: those of its agent, and those of its reward functions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from rljob_api import names
from rljob_api.spec import RLJobSpec
from rljob_trainer.agents.process import AgentProcess
from rljob_trainer.agents.python_file import AgentPods
from rljob_trainer.driver.pod_listener import PodListener
from rljob_trainer.rewards.python_file import RewardPods, RewardProcess


@dataclass(frozen=True, slots=True)
class PodsOfWorkers:
    """Where what has pods of its own runs. All else runs next to the driver."""

    of_agent: AgentPods | None
    of_rewards: Mapping[int, RewardPods]
    """By their index in spec.rewards."""

    @classmethod
    def of(cls, spec: RLJobSpec, listener: PodListener) -> Self:
        """Must be called inside the event loop."""
        agent, own = spec.rollout.agent, None
        if agent and agent.workers:
            own = AgentPods(AgentProcess, agent.timeout_seconds, agent.workers.replicas)
            listener.admit(names.ROLE_WORKER, own)
        rewards = {
            i: RewardPods(RewardProcess, reward.timeout_seconds, reward.workers.replicas)
            for i, reward in enumerate(spec.rewards)
            if reward.workers
        }
        for i, pods in rewards.items():
            listener.admit(names.scorer_role(i), pods)
        return cls(own, rewards)

    def follow(self, changed: Callable[[], None]) -> None:
        """`changed` is called when there is a first process anywhere, or none any more."""
        if self.of_agent:
            self.of_agent.changed = changed
        for pods in self.of_rewards.values():
            pods.changed = changed
