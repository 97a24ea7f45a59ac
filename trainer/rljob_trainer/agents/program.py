"""What the processes of an agent run, as their command line says it. Imports nothing large: pods of their own start these processes, too."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_api.spec.agent import AgentSpec
from rljob_trainer.agents.environments import MODULES, PACKAGES
from rljob_trainer.failure import ConfigurationError

MODULE = "rljob_trainer.agents.worker"


@dataclass(frozen=True, slots=True)
class Program:
    """What the processes run."""

    kind: str
    """The field below spec.rollout.agent."""
    target: str
    """A file, or an environment of a library."""
    details: list[str] | dict[str, Any]
    """Functions in the file, or arguments of the environment."""

    @classmethod
    def of(cls, spec: AgentSpec) -> "Program":
        if spec.tools:
            return cls("tools", spec.tools.path, spec.tools.functions)
        if spec.python:
            return cls("python", spec.python.path, [spec.python.function])
        libraries = {"verifiers": spec.verifiers, "skyrlGym": spec.skyrl_gym, "reasoningGym": spec.reasoning_gym}
        kind, library = next(
            (k, settings) for k, settings in libraries.items() if settings
        )  # the spec was checked: one is set
        return cls(kind, library.environment, library.arguments)

    @property
    def is_library(self) -> bool:
        return self.kind in MODULES

    @property
    def field(self) -> str:
        return f"spec.rollout.agent.{self.kind}.{'environment' if self.is_library else 'path'}"

    @property
    def command(self) -> tuple[str, str, str]:
        """Arguments of worker.py."""
        return self.kind, self.target, json.dumps(self.details)

    def fix(self, in_pods: bool) -> str:
        if self.is_library:
            image = "the image of spec.rollout.agent.workers" if in_pods else "the trainer's image"
            where = f"in {image}, or in a directory that spec.rollout.agent.env names in PYTHONPATH"
            return f"correct name and arguments, and see that {PACKAGES[self.kind]} is installed {where}"
        return "correct the file; it is imported as a file of its own, with the image's packages"

    def require_file(self) -> None:
        """Raises ConfigurationError."""
        if not self.is_library and not Path(self.target).is_file():
            fix = "correct the path, or mount the ConfigMap or volume that holds the file in spec.volumes"
            raise self.error("there is no such file in the trainer pod", fix)

    def error(self, rule: str, fix: str) -> ConfigurationError:
        return ConfigurationError(self.field, self.target, rule, fix)
