"""What trainer and rollout server say to each other over HTTP: routes, headers, time limits, refusals. No torch here."""

ATTEMPT_HEADER = "X-RLJob-Attempt"
"""On every request of an attempt. A server that has seen a higher one answers 409."""
STEP_HEADER = "X-RLJob-Policy-Step"
"""On an answer of a generate route: the step of the policy that generated it. Missing when another has come since the request did."""

STATE = "/rljob/state"
GENERATE = "/rljob/generate"
OPEN = "/rljob/weights/open"
BUCKET = "/rljob/weights/bucket"
COMMIT = "/rljob/weights/commit"
ABORT = "/rljob/weights/abort"
SLEEP = "/rljob/sleep"
COMPLETIONS = "/v1/completions"
"""vLLM's own."""
INTERRUPT = "/rljob/interrupt"

TRANSFER_SECONDS = 60.0
"""Longest wait for one bucket, on both ends. A replica that takes longer is out."""
OPEN_SECONDS = 90.0
"""Longest wait for an update to begin: it may have to wait until a dead trainer's last bucket timed out."""
PROBE_SECONDS = 60.0
"""Longest wait for the log-probabilities of a few tokens."""
ABORT_SECONDS = 10.0
"""Longest wait for an update to be abandoned. What is not abandoned by then is when the next one begins."""
COMMIT_SECONDS = 120.0
"""Longest wait for verification, application and the reset of the caches."""


class FencedOut(RuntimeError):
    """A server has seen a higher attempt: this one is over and must not go on."""

    def __init__(self, attempt: int, highest: int) -> None:
        super().__init__(f"attempt {attempt} is over: attempt {highest} holds the rollout servers")
        self.attempt, self.highest = attempt, highest
