"""The members of the rollout pool: which replicas there are, which need the policy, which serve it; the driver's connection to one that has the
current policy, and what all of them have answered, in numbers. Membership has no I/O.

    listed --answers--> needs weights --published--> current
      ^                       |                         |
      +---- lost (waits before it is asked again) ------+        trained: every current one needs weights again
"""

import asyncio
import math
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from rljob_api.protocol import RolloutEndpoint, RolloutState
from rljob_trainer.driver.slots import LoadedServer
from rljob_trainer.wire.rollout_client import Generation, ReplicaLost, RolloutClient
from rljob_trainer.wire.weights.protocol import AttemptSuperseded

LONGEST_WAIT_SECONDS = 10.0
MOST_DOUBLINGS = 30
"""Doublings of a wait. More would change nothing, and 2.0 ** 1024 is no float: a replica that stays lost would end the driver."""
LONGEST_REASON = 500
REFUSALS = 3
"""Until the operator is notified: by then its list no longer has the address of a pod that is gone."""
QUARANTINE_REJECTIONS = 2
"""Failed publications in a row to a server that answers, after which it is no target for a while: all servers would wait for it each time."""
FIRST_QUARANTINE_SECONDS, LONGEST_QUARANTINE_SECONDS = 60.0, 1800.0
"""The quarantine doubles with each further failure."""
REJECTIONS = 5
"""Failed publications in a row to a server that answers. More of them would fail in the same way."""
WATCH_SECONDS = 5.0
"""Interval of probes of a server that has requests."""
MISSES = 3
"""Probes in a row that a server may leave unanswered before its requests are sent elsewhere."""


class PolicyRejectedError(RuntimeError):
    """All rollouts are there, and none takes the policy."""


class ReplicaState(Enum):
    LISTED = "listed"
    NEEDS_WEIGHTS = "needs weights"
    CURRENT = "current"


@dataclass(slots=True)
class Replica:
    """One rollout server, by its pod's UID: a new pod of an old name is another replica."""

    endpoint: RolloutEndpoint
    state: ReplicaState = ReplicaState.LISTED
    policy_step: int | None = None
    failures: int = 0
    refusals: int = 0
    """Answers with 401 since it last was healthy."""
    rejections: int = 0
    """Publications that failed since it last had a policy, though it had answered before each."""
    not_before: float = 0.0
    """Clock time of the next question."""
    quarantined_until: float = 0.0
    """Clock time until which it gets no policy, if there are enough others."""
    rejection: str = ""
    """Why the last publication to it failed; empty: it did not."""
    problem: str = ""
    """Why it was lost last."""


class Replicas:
    """All replicas that the control message lists."""

    def __init__(self, enough: int = 1) -> None:
        """`enough`: how many have to answer for a replica to stay in quarantine."""
        self._enough = enough
        self._by_uid: dict[str, Replica] = {}

    def follow(self, endpoints: Iterable[RolloutEndpoint]) -> None:
        """Take in new pods, forget those that are gone. A pod that moved to another URL is new as well."""
        listed = {e.pod_uid: e for e in endpoints}
        kept = {uid: r for uid, r in self._by_uid.items() if listed.get(uid) == r.endpoint}
        self._by_uid = {uid: kept.get(uid) or Replica(endpoint) for uid, endpoint in listed.items()}

    def listed(self) -> list[RolloutEndpoint]:
        return [r.endpoint for r in self._by_uid.values()]

    def find(self, endpoint: RolloutEndpoint) -> Replica | None:
        replica = self._by_uid.get(endpoint.pod_uid)
        return replica if replica and replica.endpoint == endpoint else None

    def to_probe(self, now: float) -> list[RolloutEndpoint]:
        """Which to ask whether they answer. Those in quarantine only when too few others answer."""
        answering = sum(r.state is not ReplicaState.LISTED for r in self._by_uid.values())
        spared = now if answering >= self._enough else math.inf
        listed = self._all(ReplicaState.LISTED)
        return [r.endpoint for r in listed if r.not_before <= now and r.quarantined_until <= spared]

    def healthy(self, endpoint: RolloutEndpoint) -> None:
        """It answers."""
        replica = self.find(endpoint)
        if replica and replica.state is ReplicaState.LISTED:
            replica.state, replica.problem, replica.refusals = ReplicaState.NEEDS_WEIGHTS, "", 0

    def to_publish(self) -> list[RolloutEndpoint]:
        """Which need the policy and can take it."""
        return [r.endpoint for r in self._all(ReplicaState.NEEDS_WEIGHTS)]

    def published(self, endpoint: RolloutEndpoint, step: int) -> bool:
        """It serves the policy of `step`. False when it is not listed any more."""
        replica = self.find(endpoint)
        if replica:
            replica.state, replica.policy_step = ReplicaState.CURRENT, step
            replica.failures = replica.rejections = 0
            replica.quarantined_until, replica.rejection = 0.0, ""
        return replica is not None

    def lost(self, endpoint: RolloutEndpoint, now: float, problem: str = "") -> None:
        """It failed to answer, or to take the policy: out until it answers again, after a wait that doubles."""
        replica = self.find(endpoint)
        if replica:
            replica.failures += 1
            replica.state, replica.policy_step, replica.problem = ReplicaState.LISTED, None, problem
            replica.not_before = now + min(2.0 ** min(replica.failures - 1, MOST_DOUBLINGS), LONGEST_WAIT_SECONDS)

    def rejected(self, endpoint: RolloutEndpoint, now: float, reason: str) -> None:
        """It was lost by an update; when that repeats, it goes into quarantine. Raises PolicyRejectedError when every replica was, REJECTIONS times
        in a row."""
        replica = self.find(endpoint)
        if replica is None:
            return
        replica.rejections, replica.rejection = replica.rejections + 1, reason
        repeated = replica.rejections - QUARANTINE_REJECTIONS
        if repeated >= 0:
            seconds = FIRST_QUARANTINE_SECONDS * 2.0 ** min(repeated, MOST_DOUBLINGS)
            replica.quarantined_until = now + min(seconds, LONGEST_QUARANTINE_SECONDS)
        if all(r.rejections >= REJECTIONS for r in self._by_uid.values()):
            raise PolicyRejectedError(
                f"no rollout takes the policy, after {REJECTIONS} updates of each; {endpoint.pod}: {reason}"
            )

    def refused(self, endpoint: RolloutEndpoint, now: float, problem: str) -> None:
        """It answered with 401: lost, and named so when it does that REFUSALS times in a row."""
        self.lost(endpoint, now, problem)
        replica = self.find(endpoint)
        if replica:
            replica.refusals += 1

    def trained(self) -> None:
        """There is a newer policy."""
        for replica in self._all(ReplicaState.CURRENT):
            replica.state = ReplicaState.NEEDS_WEIGHTS

    def current(self) -> list[RolloutEndpoint]:
        return [r.endpoint for r in self._all(ReplicaState.CURRENT)]

    def report(self) -> list[RolloutState]:
        return [
            RolloutState(
                pod=r.endpoint.pod,
                policy_step=r.policy_step,
                unauthorized=r.refusals >= REFUSALS,
                quarantine=r.rejection[:LONGEST_REASON] if r.rejections >= QUARANTINE_REJECTIONS else "",
            )
            for r in self._by_uid.values()
        ]

    def _all(self, state: ReplicaState) -> list[Replica]:
        return [r for r in self._by_uid.values() if r.state is state]


@dataclass(eq=False, kw_only=True)
class Serving(LoadedServer):
    """One connection, from when the server comes into the pool until it is taken out."""

    client: RolloutClient
    gone: asyncio.Future[str]
    """Set to the reason when the server is taken out of the pool."""
    misses: int = 0
    """Probes in a row that it has left unanswered."""
    watcher: asyncio.Task[None] | None = None

    @property
    def endpoint(self) -> RolloutEndpoint:
        return self.client.endpoint

    async def unless_gone[T](self, answer: Coroutine[Any, Any, T]) -> T:
        """The answer. Raises ReplicaLost when the server is taken out of the pool first."""
        call: asyncio.Future[Any] = asyncio.ensure_future(answer)
        try:
            await asyncio.wait({call, self.gone}, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                return call.result()
            raise ReplicaLost(self.gone.result())
        finally:
            call.cancel()

    async def silent(self) -> str:
        """Probe the server until it leaves probes unanswered, and return what to say then: a frozen pod otherwise looks like a slow one. (A frozen
        server in a working pod is restarted there, by health.py.) Empty: the attempt is superseded, which the next request raises to its caller."""
        while self.misses < MISSES:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                await self.client.state()
                self.misses = 0
            except AttemptSuperseded:
                return ""
            except ReplicaLost:
                self.misses += 1
        return f"left {MISSES} questions unanswered"


@dataclass(frozen=True, slots=True)
class Served:
    """Sums over all responses so far."""

    tokens: int = 0
    passes: int = 0
    """Those that read guessed tokens."""
    right: int = 0
    """Guesses that the policy took."""

    def with_more(self, answers: Iterable[Generation]) -> "Served":
        generations = list(answers)
        return Served(
            self.tokens + sum(len(g.tokens) for g in generations),
            self.passes + sum(g.guesses[0] for g in generations),
            self.right + sum(g.guesses[1] for g in generations),
        )

    def metrics(self, before: "Served", seconds: float) -> dict[str, float]:
        """Of what came since `before`, in so many seconds."""
        rate = {"rollout/tokens_per_s": (self.tokens - before.tokens) / seconds} if seconds else {}
        passes, right = self.passes - before.passes, self.right - before.right
        return rate | ({"rollout/acceptance_length": 1 + right / passes} if passes else {})
