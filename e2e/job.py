"""An RLJob on a cluster, as tests and the demo see it: what a user applies, and what the status says."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from e2e.kube import Kube, Object, wait_for
from e2e.stack import OPERATOR_NAMESPACE
from rljob_api import names
from rljob_api.status import JobStatus

EXAMPLES = Path(__file__).parents[1] / "examples"


@dataclass(frozen=True)
class Job:
    """One RLJob by name."""

    kube: Kube
    name: str

    def object(self) -> Object:
        return self.kube.get("rljob", self.name)

    def status(self) -> JobStatus:
        return JobStatus.model_validate(self.object().get("status", {}))

    def wait(self, what: str, probe: Callable[[JobStatus], Any], timeout: float) -> JobStatus:
        """Until `probe` is true of the status. A job that fails meanwhile ends the wait, unless failure is what is waited for."""

        def look() -> JobStatus | None:
            status = self.status()
            if probe(status):
                return status
            if status.state == "Failed":
                raise AssertionError(f"{self.name} failed while waiting for {what}: {status.message}")
            return None

        return wait_for(f"{self.name}: {what}", look, timeout, describe=self.describe)

    def wait_for_step(self, step: int, timeout: float = 300) -> JobStatus:
        return self.wait(f"step {step}", lambda s: s.progress.step >= step, timeout)

    def wait_for_attempt(self, number: int, timeout: float, steps: int = 1) -> JobStatus:
        """Until this attempt has trained for so many steps behind the checkpoint from which it began."""

        def trains(status: JobStatus) -> bool:
            done = status.progress
            return done.attempt == number and done.step >= (done.started_from or 0) + steps

        return self.wait(f"{steps} steps of attempt {number}", trains, timeout)

    def wait_for_state(self, state: str, timeout: float = 300) -> JobStatus:
        return self.wait(f"state {state}", lambda s: s.state == state, timeout)

    def pod(self, role: str, ordinal: int) -> Object:
        return self.kube.get("pod", names.pod(self.name, role, ordinal))

    def uid(self, role: str, ordinal: int) -> str:
        """Of a pod; empty while there is none."""
        return self.kube.kubectl(
            "get", "pod", names.pod(self.name, role, ordinal), "--ignore-not-found", "-o", "jsonpath={.metadata.uid}"
        )

    def pods(self, role: str | None = None) -> list[Object]:
        return self.kube.list("pod", names.selector(self.name, role))

    def describe(self) -> str:
        """What a person would look at first. A part that cannot be had says why, and hides no other."""
        operator = replace(self.kube, namespace=OPERATOR_NAMESPACE)
        parts: dict[str, Callable[[], str]] = {
            "pods and sets": lambda: self.kube.kubectl("get", "pods,statefulsets", "-o", "wide"),
            "status": lambda: yaml.safe_dump(self.object().get("status", {})),
            "events": self._events,
            "operator": lambda: operator.kubectl("logs", "-l", "app.kubernetes.io/name=rljob-operator", "--tail=20"),
            "logs": lambda: self.kube.kubectl(
                "logs", "-l", names.selector(self.name), "--prefix", "--ignore-errors", "--tail=40"
            ),
        }
        return "\n".join(f"--- {title}\n{_or_error(part)}" for title, part in parts.items())

    def _events(self) -> str:
        """Of the job, its sets and its pods; the newest last."""
        lines = self.kube.kubectl("get", "events", "--sort-by=.metadata.creationTimestamp").splitlines()
        return "\n".join([line for line in lines if f"/{self.name}" in line][-30:])

    def delete(self) -> None:
        self.kube.kubectl("delete", "rljob", self.name, "--ignore-not-found", "--timeout=120s", timeout=150)


def _or_error(part: Callable[[], str]) -> str:
    try:
        return part()
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return str(error)


def attempts(status: JobStatus) -> tuple[int, int]:
    """The number of the job's attempt, 0 before the first, and its restarts in all."""
    return (status.attempt.number if status.attempt else 0, status.restarts.total)


def example(name: str = "arithmetic", image: str | None = None, of: str = "arithmetic", **changes: Any) -> Object:
    """The manifest of the example `of` under another name, with what a test changes merged into its spec."""
    manifest = yaml.safe_load((EXAMPLES / of / "rljob.yaml").read_text())
    manifest["metadata"]["name"] = name
    manifest["spec"] = merge(manifest["spec"], changes | ({"image": image} if image else {}))
    return manifest


def merge(base: Any, changes: Any) -> Any:
    """Objects are merged, everything else is replaced."""
    if isinstance(base, dict) and isinstance(changes, dict):
        return base | {k: merge(base.get(k), v) for k, v in changes.items()}
    return changes


def series(text: str, name: str) -> dict[int, float]:
    """One metric of a metrics.jsonl by step, in order; lines of an evaluation alone do not have the others."""
    lines = [json.loads(line) for line in text.splitlines()]
    return {int(line["step"]): line[name] for line in lines if name in line}
