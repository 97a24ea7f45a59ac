"""The gateway of `task: service` on one machine: how it is started, and what a user does with it."""

from dataclasses import dataclass

from rljob_api.manifest import ManifestError
from rljob_api.text import http_url
from rljob_trainer.local.manifest import Job
from rljob_trainer.machine import free_port, is_free

KEY = "tml-anything"
"""A key as the SDK wants it to look, where the service asks for none."""


@dataclass(frozen=True)
class Gateway:
    """Where a job's gateway is."""

    address: str
    port: int
    """For clients."""
    work_port: int
    """For the driver."""
    needs_key: bool

    @staticmethod
    def of(job: Job, address: str, port: int) -> "Gateway | None":
        """`port`: for clients; 0: any. None: the job is no service. Raises ManifestError when the port is taken."""
        if job.spec.task != "service":
            return None
        if port and not is_free(port):
            raise ManifestError(f"port {port} is taken: choose another one with --port, or 0 for any")
        return Gateway(address, port or free_port(), free_port(), job.spec.service.keys is not None)

    @property
    def command(self) -> tuple[str, ...]:
        return "gateway", "--port", str(self.port), "--work-port", str(self.work_port)

    @property
    def work_url(self) -> str:
        return http_url(self.address, self.work_port)

    @property
    def invitation(self) -> str:
        """How a script finds the service."""
        key = "one of the keys in spec.service.keys" if self.needs_key else KEY
        return (
            f"clients find it at {http_url(self.address, self.port)} as soon as its model is loaded; start your script with\n"
            f"    TINKER_BASE_URL={http_url(self.address, self.port)} TINKER_API_KEY={key}"
        )
