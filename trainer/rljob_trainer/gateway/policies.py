"""Which policy the rollout servers have, in a service that trains all parameters: a server has one at a time, and samples of another one wait for an
update of its weights.

Samples are served in the order in which they came: those of one policy together, and the next policy comes when they have their answers. A policy is
known by the directory from which the ranks send it: a snapshot's, or the base model's.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.gateway.refusals import MOST_REFUSED, REFUSED_SECONDS, TEMPORARY_SECONDS, Refusals
from rljob_trainer.wire.rollout_client import RequestRefusedError
from rljob_trainer.wire.service import ServePolicy

PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 60.0
"""Before a server that could not be updated gets its next update: twice as long each time."""


@dataclass
class _UpdatedServer:
    """What is known of a server."""

    has: str = ""
    """The policy; empty: none that counts."""
    not_before: float = 0.0
    """When it gets its next update, by the monotonic clock."""
    pause: float = 0.0
    """The last one, since it could not be updated."""
    updates: int = 0
    """That have begun. Each aborts the samples that it has."""

    def took(self, policy: str) -> None:
        self.has, self.not_before, self.pause = policy, 0.0, 0.0

    def failed(self) -> None:
        """It was not updated."""
        self.pause = min(max(2 * self.pause, PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
        self.not_before = time.monotonic() + self.pause


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
        self._servers = dict[str, _UpdatedServer]()
        """By the UID of a pod."""
        self._refusals = Refusals()
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
        uids = [endpoint.pod_uid for endpoint in endpoints]
        self._servers = {uid: self._servers.get(uid) or _UpdatedServer() for uid in uids}
        self._require_servers()
        self._changed()

    def begin(self) -> None:
        """Ranks of another attempt: servers answer it only once it has updated them."""
        self.sending = ""
        self._refusals.begin()
        self._forget()
        self._require_servers()

    def serving(self, endpoint: RolloutEndpoint) -> bool:
        """Whether a server has the current policy."""
        server = self._servers.get(endpoint.pod_uid)
        return server is not None and self._current is not None and server.has == self._current

    def updates_of(self, endpoint: RolloutEndpoint) -> int:
        """How often a server was given an update. Samples that it has while this grows are aborted by that."""
        server = self._servers.get(endpoint.pod_uid)
        return server.updates if server else 0

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
        refused = self._refusals.why(policy, self._servers)
        if refused:
            raise RequestRefusedError(refused)
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

    @property
    def due(self) -> bool:
        """Whether there is an update that the ranks are to make."""
        return bool(self._lacking())

    def next_update(self) -> ServePolicy:
        """The update that is due, which the ranks make now. `served`, `postponed` or `refuse` follows, or ranks of another attempt do."""
        policy, lacking = self._wanted, self._lacking()
        assert policy is not None, "an update is due"
        for endpoint in lacking:
            self._servers[endpoint.pod_uid].updates += 1
        self.sending = policy
        step = self._step + 1 if self._next else self._step
        return ServePolicy(path=policy, step=step, servers=tuple(map(_as_json, lacking)))

    @property
    def _wanted(self) -> str | None:
        """The policy that servers are to have."""
        return self._next or self._current

    def _lacking(self) -> list[RolloutEndpoint]:
        """Servers that have another policy, and are not left in peace since they could not be updated."""
        policy, now = self._wanted, time.monotonic()
        if policy is None:
            return []
        servers = [(endpoint, self._servers[endpoint.pod_uid]) for endpoint in self._endpoints]
        return [endpoint for endpoint, server in servers if server.has != policy and server.not_before <= now]

    def served(self, work: ServePolicy, pods: Sequence[str], refused: Mapping[str, str]) -> None:
        """What became of an update. `pods`: UIDs of those that have the policy; `refused`: why others do not that have answered, by their UIDs."""
        self.sending = ""
        if work.step > self._step:
            for server in self._servers.values():
                server.has = ""  # whoever has no part in it would refuse this step
            self._step = work.step
        names = {server["podUid"]: server["pod"] for server in work.servers}
        for uid in names.keys() & self._servers.keys():
            if uid in pods:
                self._servers[uid].took(work.path)
            else:
                self._servers[uid].failed()
        why = self._refusal(work.path, {names[uid]: reason for uid, reason in refused.items()})
        if why:
            self.refuse(work.path, why)
        else:
            self._advance()

    def postponed(self, work: ServePolicy, why: str) -> None:
        """The ranks could not send a policy, for a reason that may pass: they try again after a pause, and after some tries the samples fail that
        wait for it."""
        self.sending = ""
        for server in work.servers:
            if server["podUid"] in self._servers:
                self._servers[server["podUid"]].failed()
        if self._refusals.count(work.path):
            self.refuse(work.path, why, TEMPORARY_SECONDS)
        else:
            self._advance()  # nobody may want it any more

    def _refusal(self, policy: str, reasons: Mapping[str, str]) -> str | None:
        """Why a policy is not sent again after an update. `reasons`: of servers that have answered, by pod: one that nobody reaches says nothing."""
        if self._has(policy):
            self._refusals.taken(policy)
            return None
        if not reasons or not self._refusals.count(policy):
            return None
        said = "; ".join(f"{pod}: {why}" for pod, why in sorted(reasons.items()))
        return f"no server has taken {policy}, of {MOST_REFUSED} updates in a row. {said}"

    def lost(self, endpoint: RolloutEndpoint) -> None:
        """A server does not have the policy any more: it may have been started again."""
        if endpoint.pod_uid in self._servers:
            self._servers[endpoint.pod_uid].has = ""
        self._require_servers()
        self._changed()

    def refuse(self, policy: str, why: str, seconds: float = REFUSED_SECONDS) -> None:
        """Servers cannot have a policy: the samples that wait for it fail with that, and those that come later, as long as Refusals says so:
        `seconds` at most."""
        self._refusals.keep(policy, why, self._servers, seconds)
        refused = [waiting for waiting in self._waiting if waiting.policy == policy]
        self._waiting = deque(waiting for waiting in self._waiting if waiting.policy != policy)
        self._forget()  # what they have of it counts for nothing
        self._next, self.sending = None, ""
        self._end_era()
        for waiting in refused:
            if not waiting.turn.done():
                waiting.turn.set_exception(RequestRefusedError(why))
        self._advance()

    def _require_servers(self) -> None:
        """Nobody samples from a policy that no server has any more: it is sent again."""
        if self._current is not None and not self._has(self._current):
            self._end_era()
            self._advance()

    def _forget(self) -> None:
        """Which policies servers have, and cannot have."""
        self._servers = {uid: _UpdatedServer(updates=server.updates) for uid, server in self._servers.items()}

    def _has(self, policy: str) -> bool:
        """Whether a server has it."""
        return any(server.has == policy for server in self._servers.values())

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
        if self._next is not None and self._has(self._next) and not self.sending:
            # An update has brought it, or the samples for which it was to be replaced were cancelled before the ranks began.
            self._current, self._next = self._next, None
            self._advance()


def _as_json(endpoint: RolloutEndpoint) -> dict[str, str]:
    return {name: str(value) for name, value in endpoint.dump().items()}
