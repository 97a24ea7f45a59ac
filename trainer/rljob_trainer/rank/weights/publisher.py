"""Publishes the policy to servers: opens an update at each of them, has senders send, and has those that got everything apply it.

A server that fails keeps its old weights; the others continue.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass

from torch import Tensor

from rljob_api.callbacks import nothing
from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.failure import RolloutLost
from rljob_trainer.rank.weights.attendance import losses
from rljob_trainer.rank.weights.call import ReplicaGoneError
from rljob_trainer.rank.weights.rounds import Round
from rljob_trainer.rank.weights.sender import Opened, Sender, Sent
from rljob_trainer.rank.weights.session import UpdateSession
from rljob_trainer.rank.weights.watch import Watch
from rljob_trainer.wire.parity import Probe
from rljob_trainer.wire.weights.bucket import total
from rljob_trainer.wire.weights.plan import GatherPhase, Receivers
from rljob_trainer.wire.weights.protocol import Offer, PolicyVersion, ServerWorker
from rljob_trainer.wire.weights.slices import Needs
from rljob_trainer.wire.weights.transport import Transport


@dataclass(frozen=True, slots=True)
class Published:
    """The result of a publication."""

    version: PolicyVersion
    ok: list[str]
    """Pods that serve the version."""
    failed: dict[str, str]
    """Pod -> reason. These serve their previous policy, or nothing, and get no requests until a later publication succeeds."""
    unreached: Sequence[str] = ()
    """Those of them that ended or did not answer, which says nothing of the policy."""
    difference: tuple[float, float] | None = None
    """Mean and largest difference per token of the log-probabilities of a probe, for the replica with the largest mean. None without a probe."""
    paused: float = 0.0
    """Longest time that a server generated nothing to apply the policy, in seconds."""
    waited: float = 0.0
    """Longest time that a sender waited for servers to receive, in seconds (Sent.waited)."""


class OpenUpdate(AbstractContextManager["OpenUpdate"]):
    """One update of some servers, as the rank that coordinates it sees it. An exception inside abandons it at all of them."""

    def __init__(self, name: str, sessions: Mapping[str, UpdateSession], awaits: Callable[[str], None]) -> None:
        """`sessions`: by pod."""
        self._name, self._round = name, Round(sessions, UpdateSession.abort, awaits)
        self._opened = Opened(name, {})
        self._unreached: list[str] = []

    def open(self, offers: Sequence[Offer]) -> Opened:
        """The servers that open the update, in the order in which they were given. `offers`: of all senders.

        Raises AttemptSuperseded when a server knows a higher attempt.
        """
        workers: dict[str, dict[ServerWorker, Needs]] = {}

        def open_one(session: UpdateSession) -> None:
            workers[session.server.pod] = session.open(offers)

        self._round.run(self._noting_the_gone(open_one), "open an update")
        live = {pod: workers[pod] for pod in self._round.live}
        receivers = Receivers.of({member.name: needs for own in live.values() for member, needs in own.items()})
        self._opened = Opened(self._name, {pod: tuple(own) for pod, own in live.items()}, receivers)
        return self._opened

    def commit(self, version: PolicyVersion, sent: Sequence[Sent], probe: Probe | None) -> Published:
        """Have all servers apply the update, but those that a sender has lost. `sent`: by all senders.

        Raises MismatchError when a server that has the weights disagrees with `probe`.
        """
        lost = losses(part.failed for part in sent)
        for pod in lost.keys() & self._round.live.keys():
            self._round.drop(pod, lost[pod])
        receivers, parts = self._opened.receivers, [part for by_rank in sent for part in by_rank.parts]
        digests = [total(part.digest for part in own) for own in receivers.received(parts)]
        paused: list[float] = []

        def commit_one(session: UpdateSession) -> None:
            workers = self._opened.servers[session.server.pod]
            paused.append(session.commit(version, [digests[receivers.kind(worker)] for worker in workers]))

        self._run(commit_one, "apply weights")
        difference = self._compare(probe) if probe else None
        return Published(
            version,
            list(self._round.live),
            self._round.failed,
            self._unreached,
            difference,
            paused=max(paused, default=0.0),
            waited=max((part.waited for part in sent), default=0.0),
        )

    def _compare(self, probe: Probe) -> tuple[float, float] | None:
        differences: list[tuple[float, float]] = []

        def compare(session: UpdateSession) -> None:
            differences.append(probe.compare(session.log_probs(probe.sequences)))

        self._run(compare, "answer a probe")
        return max(differences, default=None)

    def _run(self, work: Callable[[UpdateSession], None], what: str) -> None:
        watches = {pod: Watch(workers) for pod, workers in self._opened.servers.items()}
        self._round.run(self._noting_the_gone(work), what, lambda pod: watches[pod].lost())

    def _noting_the_gone(self, work: Callable[[UpdateSession], None]) -> Callable[[UpdateSession], None]:
        def noting(session: UpdateSession) -> None:
            try:
                work(session)
            except ReplicaGoneError:
                self._unreached.append(session.server.pod)
                raise

        return noting

    def __exit__(self, *raised: object) -> None:
        self._round.__exit__(*raised)  # type: ignore[arg-type]


class Publisher:
    """One process that coordinates updates of one attempt, or sends, or both."""

    def __init__(
        self,
        attempt: int,
        token: str,
        transport: Transport,
        awaits: Callable[[str], None] | None = None,
        keeps: bool = False,
    ) -> None:
        """
        Args:
            awaits: called with what is waited for when that takes long, and with an empty text when it is over
            keeps: requests in flight continue under the new policy, with their keys and values
        """
        self._awaits = awaits or nothing
        self.attempt, self._token, self._keeps = attempt, token, keeps
        self.sender = Sender(transport, self._awaits)

    def update(self, servers: Sequence[RolloutEndpoint]) -> OpenUpdate:
        """A new update of these servers, which this process coordinates."""
        name = secrets.token_hex(8)
        sessions = {s.pod: UpdateSession(s, self._token, self.attempt, name, self._keeps) for s in servers}
        return OpenUpdate(name, sessions, self._awaits)

    def publish(
        self,
        step: int,
        tensors: Iterator[tuple[str, Tensor]],
        servers: list[RolloutEndpoint],
        heartbeat: Callable[[], None],
        probe: Probe | None = None,
    ) -> Published:
        """Send the whole policy after `step` steps from this process; without servers only its digest is computed.

        `tensors` is consumed to its end even if all servers fail, because exporting is collective. `heartbeat` is called per bucket.

        Raises AttemptSuperseded when a server knows a higher attempt, MismatchError when a server that has the weights disagrees with `probe`, and
        whatever the iterator raises; all servers keep their old weights then.
        """
        with self.update(servers) as update:
            opened = update.open([self.sender.offer])
            sent = self.sender.send([GatherPhase(tensors, sends=True)], opened, 0, heartbeat)
            return update.commit(PolicyVersion(self.attempt, step, sent.digest), [sent], probe)

    def sleep(self, servers: list[RolloutEndpoint]) -> None:
        """Have servers release their memory. Raises ReplicaError for one that refuses, RolloutLost for one that is gone."""
        sessions = [UpdateSession(server, self._token, self.attempt) for server in servers]
        try:
            with ThreadPoolExecutor(max(1, len(servers))) as pool:
                list(pool.map(UpdateSession.sleep, sessions))
        except ReplicaGoneError as error:
            raise RolloutLost(str(error)) from None  # a symptom: the launcher reports the cause, see failure.py
