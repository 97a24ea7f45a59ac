"""The protocol between trainer and rollout servers: routes, headers, time limits, transports, policy versions, attempts, authorization. No torch
here."""

import hmac
from dataclasses import dataclass
from typing import NamedTuple

ATTEMPT_HEADER = "X-RLJob-Attempt"
"""Number of the attempt, in every request. A server that has seen a higher one answers 409."""
STEP_HEADER = "X-RLJob-Policy-Step"
"""Step of the policy that was served when a request came. Answers of GENERATE say which tokens are of a later one (wire/rollout_server.py); of other
routes' it is missing when the policy changed meanwhile."""

STATE = "/rljob/state"
HEALTH = "/rljob/health"
"""Health of the engine: {"silence": seconds since it answered, "updating": whether it takes part in a weight update}; 500 when it failed."""
GENERATE = "/rljob/generate"
SAMPLE = "/rljob/sample"
"""Samples for clients of a service (wire/rollout_server.py): of the base model, or of a snapshot on the volume."""
PARSE = "/rljob/parse"
"""What a response says (wire/rollout_server.py). It needs no policy."""
OPEN = "/rljob/weights/open"
COMMIT = "/rljob/weights/commit"
ABORT = "/rljob/weights/abort"
SLEEP = "/rljob/sleep"
INTERRUPT = "/rljob/interrupt"
COMPLETIONS = "/v1/completions"
"""vLLM's own."""
SERVED_MODEL = "policy"
"""Name of the model in requests to vLLM's routes."""

ADAPTERS = 1
"""vLLM's id of the policy's adapters, on servers that get only the adapters (`model.lora.sync: adapters`)."""

CONNECT_SECONDS = 10.0
"""Time limit for connecting to a server and sending a request."""
OPEN_SECONDS = 15.0
"""Time limit for opening an update: the engine answers between two of its steps, and joins the senders later. A server that takes longer gets the
policy with a later publication."""
SILENT_SECONDS = 15.0
"""A worker that shows no sign of life for this long is left out, with its server. So a server that hangs in the middle of an update costs the others
no more. Also the time limit of making one group."""
SLOWEST_BYTES_PER_SECOND = 64e6
"""Half of what a network of 1 Gb/s carries."""
ALIVE_SECONDS = 1.0
"""Interval at which a worker shows all senders that it lives."""
NEXT_SECONDS = 70.0
"""Longest wait of a server for the next bucket of a sender, while that one exports it, or waits for another server that will be given up."""
PROBE_SECONDS = 60.0
"""Time limit for the log-probabilities of a probe."""
ABORT_SECONDS = 10.0
"""Time limit for abandoning an update. If it fails, the next update abandons it."""
COMMIT_SECONDS = 120.0
"""Time limit for verifying and applying an update, and resetting the caches."""


def transfer_seconds(size: int) -> float:
    """Time limit of one transfer of so many bytes. A tensor larger than a bucket is one transfer."""
    return SILENT_SECONDS + size / SLOWEST_BYTES_PER_SECOND


CHAIN = "rljob-chain"
"""Over TCP, in host memory."""
NCCL = "rljob-nccl"
"""vLLM's own engine `nccl` overwrites the model while weights arrive."""
IPC = "rljob-ipc"
"""Between processes on the same GPU, which NCCL cannot connect."""

APPLYING_FAILED = "applying an update failed; the server ends, because its model cannot be trusted"
PAUSING_FAILED = "pausing failed; the server ends, because some of its copies may generate while others wait for them"
FOLLOWS = "the workers of this pod are up, and follow their server's head"
FOLLOWER_FAILED = "the workers of this pod failed to start"
"""Logged by a server before the traceback of the failure that ends it."""


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """The policy after `step` steps, as trained by `attempt`."""

    attempt: int
    step: int
    digest: str
    """Digest of all tensors (bucket.digest). Equal weights have equal digests, in any layout and order."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Where workers find the messages of one sender (rendezvous.py)."""

    address: str
    port: int


class ServerWorker(NamedTuple):
    """A worker of a server, as senders and other workers reach it."""

    server: str
    """Pod uid."""
    worker: int
    """Its place in the server."""
    host: str
    port: int
    """Of its door (door.py)."""

    @property
    def name(self) -> str:
        return f"{self.server}/{self.worker}"


def backend(device: str, placement: str) -> str:
    """The transport of a job, by its name as a backend in vLLM's `--weight-transfer-config`. Each has a trainer's end (transport.py) and an engine in
    vLLM's workers (engine.py). `device`, `placement`: of spec.trainer and spec.rollout."""
    if device == "cpu":
        return CHAIN
    return IPC if placement == "colocated" else NCCL


class AttemptSuperseded(RuntimeError):
    """A server has seen a higher attempt, so this one is over and must stop."""

    def __init__(self, attempt: int, highest: int) -> None:
        super().__init__(f"attempt {attempt} is over: attempt {highest} holds the rollout servers")
        self.attempt, self.highest = attempt, highest


class AttemptFence:
    """Remembers the highest attempt, and admits no lower one."""

    def __init__(self, highest: int = 0) -> None:
        self.highest = highest

    def admit(self, attempt: int) -> None:
        """Raises AttemptSuperseded for a lower attempt; a higher one becomes the highest."""
        if attempt < self.highest:
            raise AttemptSuperseded(attempt, self.highest)
        self.highest = attempt


class Gate:
    """A server's state for admission: the job's token, the highest attempt seen, and the policy that is served."""

    def __init__(self, token: str, attempt: int = 0) -> None:
        """`attempt`: the current one when the server starts; 0: none."""
        self._bearer = f"Bearer {token}".encode()
        self.fence = AttemptFence(attempt)
        self.serving: PolicyVersion | None = None
        self.updating = False

    def knows(self, authorization: str) -> bool:
        """Whether an Authorization header carries the token; in constant time."""
        return hmac.compare_digest(authorization.encode(), self._bearer)

    def served(self) -> PolicyVersion | None:
        """The policy that may generate now. None during a weight update, and when the policy is of an attempt that was superseded."""
        current = self.serving is not None and self.serving.attempt == self.fence.highest
        return self.serving if current and not self.updating else None

    def state(self) -> dict[str, object]:
        """The body of `GET /rljob/state`."""
        served = self.served()
        return {
            "attempt": self.fence.highest,
            "policy_step": served.step if served else None,
            "digest": served.digest if served else "",
        }
