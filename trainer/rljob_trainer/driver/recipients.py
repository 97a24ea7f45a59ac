"""The servers that get a policy, and what the driver reports of it."""

from collections.abc import Mapping

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.driver.pool import RolloutPool
from rljob_trainer.driver.reporter import Reporter


class Recipients:
    """The driver's part of publishing: rank 0 asks for servers, sends them the policy, and says which of them have it."""

    def __init__(self, rollouts: RolloutPool, reporter: Reporter):
        self._rollouts, self._reporter = rollouts, reporter
        self._targets: list[RolloutEndpoint] = []
        self._step: int | None = None
        """Step of the last policy that was exported."""

    def begin(self) -> list[RolloutEndpoint]:
        """The servers that answer and need the policy. `finish` is about these."""
        self._targets = self._rollouts.to_publish()
        return self._targets

    def skip(self) -> None:
        """No server gets the policy."""
        self._targets = []

    @property
    def is_first(self) -> bool:
        """No server of this attempt had a policy before those of `begin`."""
        return bool(self._targets) and self._step is None

    async def finish(self, step: int, digest: str, failed: Mapping[str, str], seconds: float) -> None:
        """The policy of `step` was sent, in `seconds`. `failed`: pod -> why it does not have it. `digest`: empty if nothing was exported.
        Raises PolicyRejectedError."""
        targets, self._targets = self._targets, []
        self._reporter.published(step, digest)
        await self._rollouts.published(step, targets, failed)
        sync = {"time/sync": seconds} if digest and self._step != step else {}  # not a newcomer's
        self._step = step if digest else self._step
        self._reporter.record(step, sync | {"rollout/replicas": float(self._rollouts.count)})
