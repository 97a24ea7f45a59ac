"""Who may ask a rollout server for what. Pure state; the front asks it about every request."""

import hmac

from rljob_trainer.weights.protocol import AttemptFence, PolicyVersion


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
