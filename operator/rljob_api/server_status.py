"""The part of a job's status about its vLLM servers: the rollouts, and those of pools."""

from rljob_api.base import Wire
from rljob_api.protocol import Failure
from rljob_api.server_group import ServerPart


class ServerStatus(Wire):
    """One server of several pods: which ones, and its current generation, in which all of them started together."""

    role: str
    """`rollout`, or the name of a pool."""
    index: int
    """Number of the server in its role, the end of its name."""
    ordinals: list[int]
    """Ordinals of its pods, by node rank. The first is the head."""
    generation: int = 0
    """Number of the current or last generation; 0: none yet."""
    parts: list[ServerPart] = []
    """The pods of the generation that runs, by node rank; empty: none runs, and the next starts when all pods are there."""
    started_at: str = ""
    """When the generation that runs was started."""
    ended_boot: str = ""
    """Boot of the pod whose container ended the last generation. Until it has started again, its report is still of that boot."""
    failures: int = 0
    """Failures in a row. A generation that ran for 20 minutes resets them."""
    not_before: str = ""
    """When the next generation may start at the earliest, after a failure."""
    stranded_since: str = ""
    """Since when some of its pods hold nodes although others have none, held against `lifecycle.strandedSeconds`; empty: that is not so."""
    released_until: str = ""
    """Until when its pods, which were released for that reason, wait. Only with schedulers that do not start them together."""


class RolloutFailure(Wire):
    """The last failure of a rollout server, or of a pool's. Its pod has restarted the server, and the attempt continues."""

    pod: str
    """Name of the pod whose server failed."""
    failure: Failure
    """Failure that the pod reported."""
