"""Who makes the trajectories of a job: what all kinds of agents have."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rljob_api.spec.agent import AgentSpec
from rljob_trainer.agents.claims import Sandboxes
from rljob_trainer.agents.nemo_gym import NemoGymServer
from rljob_trainer.agents.open_env import OpenEnvServer
from rljob_trainer.agents.python_file import AgentPods, WorkerAgent
from rljob_trainer.agents.recording import Rollout
from rljob_trainer.agents.service import HttpEnvironment, ServiceAgent
from rljob_trainer.agents.session import Session


class Agent(Protocol):
    """`start` comes before the first trajectory and `stop` after the last."""

    spec: AgentSpec

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """JSON schemas of what the policy may call, once it has started."""
        ...

    @property
    def ready(self) -> bool:
        """Whether a trajectory would begin at once."""
        ...

    async def start(self) -> None:
        """Raises ConfigurationError."""
        ...

    async def rollout(self, session: Session) -> Rollout:
        """One trajectory. Raises AgentFailed, and what the rollouts raise."""
        ...

    async def stop(self) -> None: ...


def agent_of(
    spec: AgentSpec, pods: AgentPods | None = None, address: str = "", sandboxes: Sandboxes | None = None
) -> Agent:
    """As the spec says. `pods`: where it runs, and `address`: at which these reach the driver. `sandboxes`: that it may claim."""
    if spec.environment:
        return ServiceAgent(spec, HttpEnvironment(spec.environment, spec.timeout_seconds))
    if spec.open_env:
        return ServiceAgent(spec, OpenEnvServer(spec.open_env))
    if spec.nemo_gym:
        return ServiceAgent(spec, NemoGymServer(spec.nemo_gym))
    return WorkerAgent(spec, pods, address, sandboxes)
