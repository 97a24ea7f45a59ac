"""An RLJob as the plugin sees it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from kubectl_rljob.errors import UserError
from rljob_api import names
from rljob_api.protocol import Request
from rljob_api.spec import RLJobSpec
from rljob_api.status import JobStatus
from rljob_api.type_errors import first_problem

RESOURCE = f"rljob.{names.GROUP}"
ENDED = ("Succeeded", "Failed")
"""States in which nothing more happens, unless a user resumes the job."""


@dataclass(frozen=True)
class Job:
    """One object of the cluster: the raw dict, and its parts parsed on demand."""

    raw: dict[str, Any]

    @property
    def metadata(self) -> dict[str, Any]:
        return self.raw["metadata"]

    @property
    def name(self) -> str:
        return self.metadata["name"]

    @property
    def namespace(self) -> str:
        return self.metadata["namespace"]

    @property
    def uid(self) -> str:
        """Empty: the job is not created yet."""
        return self.metadata.get("uid", "")

    @property
    def title(self) -> str:
        """For messages."""
        return f"rljob {self.name} in namespace {self.namespace}"

    @property
    def other_controller(self) -> str:
        """Who runs the job in place of the operator (spec.managedBy); empty: the operator."""
        named: str = self.raw["spec"].get("managedBy", names.CONTROLLER)
        return "" if named == names.CONTROLLER else named

    def command(self, verb: str, rest: str = "") -> str:
        """A command line about this job."""
        return f"kubectl rljob {verb} {self.name} -n {self.namespace} {rest}".rstrip()

    @cached_property
    def status(self) -> JobStatus:
        """Raises UserError for one that an operator of another release has written and this one cannot read."""
        try:
            return JobStatus.model_validate(self.raw.get("status") or {})
        except ValidationError as error:
            raise UserError(
                f"{self.title}: status.{first_problem(error)}: install the plugin of the operator's release",
                f"kubectl get rljob {self.name} -n {self.namespace} -o yaml",
            ) from error

    @property
    def unreadable(self) -> UserError | None:
        """Why `status` cannot be read."""
        try:
            _ = self.status
        except UserError as error:
            return error
        return None

    @cached_property
    def spec(self) -> RLJobSpec | None:
        """None when this version does not understand it; what is wrong with it, the operator says in status.message."""
        try:
            return RLJobSpec.model_validate(self.raw["spec"], extra="ignore")
        except ValidationError:
            return None

    def readable_spec(self) -> RLJobSpec:
        """Raises UserError when this version does not understand it."""
        if self.spec is None:
            raise UserError(f"{self.title}: this release of the plugin cannot read its spec", self.command("status"))
        return self.spec

    @property
    def pending_request(self) -> Request | None:
        """A request that the operator has not consumed yet."""
        text = (self.metadata.get("annotations") or {}).get(names.ANNOTATION_REQUEST)
        try:
            request = Request.model_validate_json(text) if text else None
        except ValidationError:
            return None
        if request is None or request.job_uid != self.uid or request.nonce == self.status.request:
            return None
        return request

    @property
    def wants_suspend(self) -> bool:
        """What the newest word about suspension says: a request not yet consumed, else the override, else the spec."""
        in_spec = bool(self.raw["spec"].get("suspend", False))
        if request := self.pending_request:
            return request.action == "suspend"
        return self.status.wants_suspend(in_spec)
