"""What every verb works with: the cluster that the user chose, the clock and the terminal."""

from dataclasses import dataclass
from datetime import datetime
from shlex import quote

from kubectl_rljob.cluster import Cluster
from kubectl_rljob.errors import UserError
from kubectl_rljob.job import Job
from kubectl_rljob.terminal import Terminal
from rljob_api.policy import DEFAULT_POLICY, JobPolicy


@dataclass
class Session:
    """One run of the plugin. kubectl's own flags are filled in as they are read."""

    now: datetime
    """Ages are counted to it."""
    terminal: Terminal
    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    user: str | None = None
    """Whom to act as."""

    def cluster(self) -> Cluster:
        """Raises UserError."""
        return Cluster.connect(self.kubeconfig, self.context, self.namespace, self.user)

    def job(self, name: str) -> Job:
        """Raises UserError."""
        return self.cluster().job(name)

    def job_policy(self, operator_namespace: str) -> tuple[JobPolicy, str]:
        """The cluster's, or the one without defaults and limits and why it is not the cluster's."""
        try:
            return self.cluster().job_policy(operator_namespace), ""
        except UserError as error:
            return DEFAULT_POLICY, f"not read: {error}"

    def here(self, command: str) -> str:
        """The command with the flags that chose this cluster: without them it could act on a job of that name in another one."""
        if not command.startswith("kubectl ") or command.startswith("kubectl config "):
            return command
        chosen = {"--context": self.context, "--kubeconfig": self.kubeconfig, "--as": self.user}
        return " ".join([command, *(f"{flag} {quote(value)}" for flag, value in chosen.items() if value)])
