"""Who makes the trajectories of a job: what all kinds of agents have."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rljob_api.spec.roles import AgentSpec
from rljob_trainer.agents.environment import EnvironmentAgent
from rljob_trainer.agents.python_file import WorkerAgent
from rljob_trainer.agents.recording import Rollout
from rljob_trainer.agents.session import Session


class Agent(Protocol):
    """`start` comes before the first trajectory and `stop` after the last."""

    spec: AgentSpec

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """JSON schemas of what the policy may call, once it has started."""
        ...

    async def start(self) -> None:
        """Raises ConfigurationError."""
        ...

    async def rollout(self, session: Session) -> Rollout:
        """One trajectory. Raises AgentFailed, and what the rollouts raise."""
        ...

    async def stop(self) -> None: ...


def agent_of(spec: AgentSpec) -> Agent:
    """As the spec says."""
    return EnvironmentAgent(spec, spec.environment) if spec.environment else WorkerAgent(spec)
