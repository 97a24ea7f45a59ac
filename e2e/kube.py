"""kubectl, as tests and the demo call it: arguments in, objects out."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]


@dataclass(frozen=True)
class Kube:
    """One namespace of one cluster."""

    kubeconfig: Path
    namespace: str = "default"
    path: str = ""
    """Directories to look for kubectl and helm in, before PATH."""

    @property
    def environment(self) -> dict[str, str]:
        ours = str(Path(sys.executable).parent)  # kubectl finds its plugin kubectl-rljob there
        search = os.pathsep.join(filter(None, (self.path, ours, os.environ["PATH"])))
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": search}

    def run(self, *command: str, stdin: str | None = None, timeout: float = 120) -> str:
        """Run a program with this cluster's environment; its standard output. Raises with its standard error."""
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, env=self.environment, timeout=timeout
        )
        if done.returncode:
            raise CommandFailed(
                f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
            )
        return done.stdout

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 120) -> str:
        return self.run("kubectl", "-n", self.namespace, *arguments, stdin=stdin, timeout=timeout)

    def plugin(self, *arguments: str) -> str:
        """`kubectl rljob ...`, as a user types it; kubectl finds kubectl-rljob on PATH."""
        return self.run("kubectl", "rljob", *arguments, "-n", self.namespace)

    def apply(self, *objects: Object) -> None:
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))

    def get(self, kind: str, name: str) -> Object:
        return json.loads(self.kubectl("get", kind, name, "-o", "json"))

    def list(self, kind: str, selector: str = "") -> list[Object]:
        return json.loads(self.kubectl("get", kind, "-l", selector, "-o", "json"))["items"]

    def exists(self, kind: str, name: str) -> bool:
        return bool(self.kubectl("get", kind, name, "--ignore-not-found", "-o", "name").strip())

    def execute(self, pod: str, *command: str, timeout: float = 60) -> str:
        return self.kubectl("exec", pod, "--", *command, timeout=timeout)


class CommandFailed(RuntimeError):
    """A program ended with an error; the message holds what it printed."""


def log_lines(kube: Kube, pod: str, since: datetime) -> list[tuple[datetime, str]]:
    """What a pod has logged after this moment, each line with its time; empty while it has no log."""
    try:
        log = kube.kubectl("logs", pod, "--timestamps", f"--since-time={since:%Y-%m-%dT%H:%M:%SZ}")
    except CommandFailed:
        return []
    lines = [line.partition(" ") for line in log.splitlines()]
    return [(time, text) for stamp, _, text in lines if (time := datetime.fromisoformat(stamp)) > since]


def wait_for[T](
    what: str, probe: Callable[[], T | None], timeout: float, interval: float = 0.5, describe: Callable[[], str] = str
) -> T:
    """Call `probe` until it returns something true. Raises TimeoutError with what `describe` says then."""
    deadline = time.monotonic() + timeout
    while True:
        if found := probe():
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout:.0f} s\n{describe()}")
        time.sleep(interval)
