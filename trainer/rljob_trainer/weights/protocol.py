"""What trainer and rollout server agree on: routes, headers, time limits, transports, policy versions, attempts, who may ask. No torch here."""

import hmac
from dataclasses import dataclass

from rljob_api.spec import RLJobSpec

ATTEMPT_HEADER = "X-RLJob-Attempt"
"""On every request of an attempt. A server that has seen a higher one answers 409."""
STEP_HEADER = "X-RLJob-Policy-Step"
"""On an answer of a generate route: the step of the policy that generated it. Missing when another has come since the request did."""

STATE = "/rljob/state"
HEALTH = "/rljob/health"
"""Answers whether the engine does: {"silence": seconds, "updating": whether it takes part in an update of its weights}; 500 when it failed."""
GENERATE = "/rljob/generate"
OPEN = "/rljob/weights/open"
RECEIVE = "/rljob/weights/receive"
COMMIT = "/rljob/weights/commit"
ABORT = "/rljob/weights/abort"
SLEEP = "/rljob/sleep"
INTERRUPT = "/rljob/interrupt"
COMPLETIONS = "/v1/completions"
"""vLLM's own."""
SERVED_MODEL = "policy"
"""Name of the model in requests to vLLM's routes."""

ADAPTERS = 1
"""vLLM's number of the policy's adapters, on servers that get them without the model (`model.lora.sync: adapters`)."""

CONNECT_SECONDS = 10.0
"""Longest wait for a server to take a request."""
TRANSFER_SECONDS = 45.0
"""Longest wait for one bucket to be sent and the one before to be verified, or the last one. A replica that takes longer is out."""
RECEIVE_SECONDS = 10.0
"""How long a server is asked to receive at once."""
NEXT_SECONDS = 70.0
"""Longest wait of a server for the trainer's next bucket, which is being exported, or waits until another replica is out."""
SILENT_SECONDS = RECEIVE_SECONDS + TRANSFER_SECONDS + NEXT_SECONDS + TRANSFER_SECONDS
"""Longest that an engine works on one request to receive, and answers nothing else: after RECEIVE_SECONDS one more bucket may be on its way, it waits
for what comes next, and verifies that bucket. health.py's BUSY_SECONDS are more."""
OPEN_SECONDS = 190.0
"""Longest wait for an update to begin. A server whose trainer's machine was lost without a packet may wait for a bucket beyond NEXT_SECONDS, because
torch's store then waits for an answer without a limit; what ends it is health.py, which kills such a server after BUSY_SECONDS."""
PROBE_SECONDS = 60.0
"""Longest wait for the log-probabilities of a few tokens."""
ABORT_SECONDS = 10.0
"""Longest wait for an update to be abandoned. What is not abandoned by then is when the next one begins."""
COMMIT_SECONDS = 120.0
"""Longest wait for verification, application and the reset of the caches."""


GLOO = "gloo"
NCCL = "rljob-nccl"
"""vLLM has an engine of its own named nccl, which overwrites the model as the weights come."""
IPC = "rljob-ipc"
"""Between processes of one host whose GPUs are the same, which NCCL cannot connect."""

APPLYING_FAILED = "applying an update failed; the server ends, because its model cannot be trusted"
"""What a server writes to its log before the traceback of what ended it."""


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """The policy after `step` steps, as trained by `attempt`."""

    attempt: int
    step: int
    digest: str
    """Of all tensors (bucket.digest): equal weights have equal digests, in any layout and order."""


def backend(spec: RLJobSpec) -> str:
    """The transport of a job, which is also the backend of vLLM's `--weight-transfer-config`. Each has a trainer's end (transport.py) and an
    engine in vLLM's worker (registered in engine.py)."""
    if spec.trainer.device == "cpu":
        return GLOO
    return IPC if spec.rollout.placement == "colocated" else NCCL


class AttemptSuperseded(RuntimeError):
    """A server has seen a higher attempt: this one is over and must stop."""

    def __init__(self, attempt: int, highest: int) -> None:
        super().__init__(f"attempt {attempt} is over: attempt {highest} holds the rollout servers")
        self.attempt, self.highest = attempt, highest


class AttemptFence:
    """Remembers the highest attempt and lets no lower one in."""

    def __init__(self, highest: int = 0) -> None:
        self.highest = highest

    def admit(self, attempt: int) -> None:
        """Raises AttemptSuperseded for a lower attempt; a higher one becomes the highest."""
        if attempt < self.highest:
            raise AttemptSuperseded(attempt, self.highest)
        self.highest = attempt


class Gate:
    """The job's token, the highest attempt seen, and the policy that is served."""

    def __init__(self, token: str, attempt: int = 0) -> None:
        """`attempt`: the one that is current when the server starts; 0 when none is."""
        self._bearer = f"Bearer {token}".encode()
        self.fence = AttemptFence(attempt)
        self.serving: PolicyVersion | None = None
        self.updating = False

    def knows(self, authorization: str) -> bool:
        """Whether an Authorization header carries the token; in constant time."""
        return hmac.compare_digest(authorization.encode(), self._bearer)

    def served(self) -> PolicyVersion | None:
        """The policy that may generate now: none while weights change, and none of an attempt that a higher one has replaced."""
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
