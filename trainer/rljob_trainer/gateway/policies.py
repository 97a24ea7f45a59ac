"""Which policy the rollout servers have, in a service that trains all parameters: a server has one at a time, and samples of another one wait for an
update of its weights.

Samples are served in the order in which they came: those of one policy together, and the next policy comes when they have their answers. A policy is
known by the directory from which the ranks send it: a snapshot's, or the base model's.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.wire.rollout_client import RequestRefusedError
from rljob_trainer.wire.service import ServePolicy

PAUSE_SECONDS = 5.0
"""Before a server that could not be updated gets its next update."""


@dataclass(eq=False)
class _WaitingSample:
    """A sample."""

    policy: str
    turn: asyncio.Future[int]
    """The era in which it is admitted."""

    @property
    def admitted(self) -> bool:
        return self.turn.done() and not self.turn.cancelled() and self.turn.exception() is None


class ServedPolicies:
    """The current policy, and the samples that wait for another."""

    def __init__(self, base: str, changed: Callable[[], None]) -> None:
        """`base`: directory of the base model; `changed`: called when an update is due."""
        self._base, self._changed = base, changed
        self._endpoints: Sequence[RolloutEndpoint] = ()
        self._has = dict[str, str]()
        """By the UID of a pod: the policy that it has."""
        self._not_before = dict[str, float]()
        """By the UID of a pod: when it gets its next update, by the monotonic clock."""
        self._current: str | None = None
        self._next: str | None = None
        """The policy that servers are to have, once nobody samples from the current one."""
        self.sending = ""
        """The policy that the ranks send to servers now, so that its files have to stay; empty: none."""
        self._step, self._running = 0, 0
        self._era = 0
        """Ends when servers lose the current policy: samples of an earlier one, which may hang with a lost server, are waited for no more. An update
        of a server aborts those that it still has."""
        self._waiting = deque[_WaitingSample]()

    @property
    def step(self) -> int:
        """What servers call the current policy."""
        return self._step

    def follow(self, endpoints: Sequence[RolloutEndpoint]) -> None:
        """The servers that there are now."""
        self._endpoints = endpoints
        known = {endpoint.pod_uid for endpoint in endpoints}
        self._has = {uid: policy for uid, policy in self._has.items() if uid in known}
        self._require_servers()
        self._changed()

    def begin(self) -> None:
        """Ranks of another attempt: servers answer it only once it has updated them."""
        self.sending = ""
        self._has.clear()
        self._not_before.clear()
        self._require_servers()

    def serving(self, endpoint: RolloutEndpoint) -> bool:
        """Whether a server has the current policy."""
        return self._current is not None and self._has.get(endpoint.pod_uid) == self._current

    @asynccontextmanager
    async def turn(self, snapshot: str) -> AsyncIterator[None]:
        """Inside, the servers have this snapshot; empty: the base model. Raises RequestRefusedError when they cannot have it."""
        era = await self._admitted(snapshot or self._base)
        try:
            yield
        finally:
            self._leave(era)

    async def _admitted(self, policy: str) -> int:
        """The era."""
        if policy == self._current and not self._waiting:
            self._running += 1
            return self._era
        waiting = _WaitingSample(policy, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._advance()
        try:
            return await waiting.turn
        except asyncio.CancelledError:
            if waiting.admitted:  # at the same moment
                self._leave(waiting.turn.result())
            elif waiting in self._waiting:
                self._waiting.remove(waiting)
                self._advance()
            raise

    def _leave(self, era: int) -> None:
        if era == self._era:
            self._running -= 1
            self._advance()

    def next_update(self) -> ServePolicy | None:
        """The update that the ranks are to make now. `served` or `refuse` follows, or ranks of another attempt do."""
        policy, now = self._next or self._current, time.monotonic()
        if policy is None:
            return None
        lacking = [e for e in self._endpoints if self._has.get(e.pod_uid) != policy]
        ready = tuple(_as_json(e) for e in lacking if self._not_before.get(e.pod_uid, now) <= now)
        step = self._step + 1 if self._next else self._step
        self.sending = policy if ready else ""
        return ServePolicy(path=policy, step=step, servers=ready) if ready else None

    def served(self, work: ServePolicy, pods: Sequence[str]) -> None:
        """What became of an update. `pods`: UIDs of those that have the policy."""
        later, known = time.monotonic() + PAUSE_SECONDS, {endpoint.pod_uid for endpoint in self._endpoints}
        self._not_before |= {server["podUid"]: later for server in work.servers if server["podUid"] not in pods}
        self.sending = ""
        if work.step > self._step:
            self._has.clear()  # whoever has no part in it would refuse this step
            self._step = work.step
        self._has |= dict.fromkeys(known.intersection(pods), work.path)
        self._advance()

    def lost(self, endpoint: RolloutEndpoint) -> None:
        """A server did not answer: it may have been started again, without the policy."""
        self._has.pop(endpoint.pod_uid, None)
        self._require_servers()
        self._changed()

    def refuse(self, policy: str, why: str) -> None:
        """Servers cannot have a policy: the samples that wait for it fail with that."""
        refused = [waiting for waiting in self._waiting if waiting.policy == policy]
        self._waiting = deque(waiting for waiting in self._waiting if waiting.policy != policy)
        self._has.clear()  # what they have of it counts for nothing
        self._next, self.sending = None, ""
        self._end_era()
        for waiting in refused:
            if not waiting.turn.done():
                waiting.turn.set_exception(RequestRefusedError(why))
        self._advance()

    def _require_servers(self) -> None:
        """Nobody samples from a policy that no server has any more: it is sent again."""
        if self._current is not None and self._current not in self._has.values():
            self._end_era()
            self._advance()

    def _end_era(self) -> None:
        self._current, self._running = None, 0
        self._era += 1

    def _advance(self) -> None:
        """Admit who comes next, or have the servers updated for it."""
        while self._waiting and self._waiting[0].policy == self._current:
            first = self._waiting.popleft()
            if not first.turn.done():
                self._running += 1
                first.turn.set_result(self._era)
        if self._waiting and not self._running and self._next != self._waiting[0].policy:
            self._current, self._next = None, self._waiting[0].policy
            self._changed()
        if self._next in self._has.values() and not self.sending:
            # An update has brought it, or the samples for which it was to be replaced were cancelled before the ranks began.
            self._current, self._next = self._next, None
            self._advance()


def _as_json(endpoint: RolloutEndpoint) -> dict[str, str]:
    return {name: str(value) for name, value in endpoint.dump().items()}
