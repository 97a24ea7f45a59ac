"""Which policy a server serves."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """The policy after `step` steps, as trained by `attempt`."""

    attempt: int
    step: int
    digest: str
    """Of all tensors (bucket.digest): equal weights have equal digests, in any layout and order."""
