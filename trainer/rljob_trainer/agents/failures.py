"""Why there is no trajectory of a sample."""

from typing import Literal

from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards.request import SampleFailed, ServiceDown

Kind = Literal["raised", "timeout", "value", "none", "service"]
"""raised: the function raised or ended its process; timeout: it took too long; value: it returned something else than a trajectory that the policy
wrote; none: it returned None; service: an environment did not answer, or with an error status."""
KINDS: tuple[Kind, ...] = ("raised", "timeout", "value", "none", "service")
FIXES: dict[Kind, str] = {
    "raised": "correct the function (try it on a row of the data)",
    "timeout": "raise spec.rollout.agent.timeoutSeconds, or answer sooner",
    "value": "return a Trajectory whose tokens are those that policy.generate was given and returned",
    "none": "return a Trajectory; None leaves a sample out",
    "service": "see that the service is up and answers the trainer pod at this address",
}


class AgentFailed(SampleFailed):
    """One trajectory failed."""

    what = "trajectories"

    def __init__(self, kind: Kind, field: str, target: str, reason: str):
        """`target` is the file at `field` of the spec."""
        super().__init__(kind, field, target, reason)

    def as_error(self) -> Exception:
        rule = f"every trajectory of a step failed; the first said: {self.reason}"
        if self.kind == "service":  # it may be back after a restart
            return ServiceDown(f"{self.field} = {self.target}: {rule}; {FIXES['service']}")
        return ConfigurationError(self.field, self.target, rule, FIXES[self.kind])  # type: ignore[index]
