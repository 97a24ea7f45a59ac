"""Sends the current policy to rollout servers.

Tensors are exported once and packed into buckets. Every bucket is sent to all replicas concurrently, while the next one is exported. A replica that
fails keeps its old weights; the others continue.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.failure import RolloutLost
from rljob_trainer.rank.weights.call import ReplicaError, ReplicaGoneError
from rljob_trainer.rank.weights.session import UpdateSession
from rljob_trainer.wire.collective import Ranks
from rljob_trainer.wire.parity import Probe
from rljob_trainer.wire.weights.bucket import Entry, digest, pack
from rljob_trainer.wire.weights.protocol import PolicyVersion
from rljob_trainer.wire.weights.transport import End, Transport

NAMED_SECONDS = 10.0
"""Replicas that take longer for one step of an update are named."""
MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Published:
    """The result of a publication."""

    version: PolicyVersion
    ok: list[str]
    """Pods that serve the version."""
    failed: dict[str, str]
    """Pod -> reason. These serve their previous policy, or nothing, and get no requests until a later publication succeeds."""
    difference: tuple[float, float] | None = None
    """Mean and largest difference per token of the log-probabilities of a probe, for the replica with the largest mean. None without a probe."""


class Publisher:
    """The trainer's end of all weight updates of one attempt."""

    def __init__(
        self, attempt: int, token: str, transport: Transport, awaits: Callable[[str], None] | None = None
    ) -> None:
        """`awaits`: called with what is waited for when that takes long, and with an empty text when it is over."""
        self._awaits = awaits or (lambda _: None)
        self._attempt, self._token, self._transport = attempt, token, transport
        self._step = 0
        self._ends: dict[str, End] = {}
        """By pod uid: connections of the last update, which the next one reuses."""

    def publish(
        self,
        step: int,
        tensors: Iterator[tuple[str, Tensor]],
        replicas: list[RolloutEndpoint],
        heartbeat: Callable[[], None],
        probe: Probe | None = None,
    ) -> Published:
        """Send the policy after `step` steps to `replicas`; without replicas only its digest is computed.

        `tensors` is consumed to its end even if all replicas fail, because exporting is collective. `heartbeat` is called per bucket.

        Raises AttemptSuperseded when a replica knows a higher attempt, MismatchError when a replica that has the weights disagrees with `probe`, and
        whatever the iterator raises; all replicas keep their old weights then.
        """
        self._forget_others(step, replicas)
        ends = {r.pod: self._ends.pop(r.pod_uid, None) for r in replicas}
        sessions = {
            r.pod: UpdateSession(r, self._token, self._attempt, self._transport.connect, ends[r.pod]) for r in replicas
        }
        entries: list[Entry] = []
        with _Round(sessions, self._awaits) as round_:
            round_.start(UpdateSession.open, "open an update")
            for bucket in pack(tensors, self._transport.bucket_bytes, self._memory()):
                entries += bucket.entries
                round_.wait()
                round_.start(partial(UpdateSession.send, bucket=bucket), "receive weights")
                heartbeat()
            round_.wait()
            round_.start(UpdateSession.complete, "verify weights")
            version = PolicyVersion(self._attempt, step, digest(entries))
            round_.wait()
            round_.start(partial(UpdateSession.commit, version=version), "apply weights")
            round_.wait()
            heartbeat()
            difference = self._compare(round_, probe) if probe else None
        self._ends |= {r.pod_uid: end for r in replicas if r.pod in round_.live and (end := sessions[r.pod].end)}
        return Published(version, list(round_.live), round_.failed, difference)

    def _forget_others(self, step: int, replicas: list[RolloutEndpoint]) -> None:
        """At a new step, close connections to replicas that do not get it: they are gone, or will connect anew."""
        if step != self._step:
            for uid in self._ends.keys() - {r.pod_uid for r in replicas}:
                self._ends.pop(uid).close()
        self._step = step

    def _compare(self, round_: "_Round", probe: Probe) -> tuple[float, float] | None:
        found: list[tuple[float, float]] = []
        round_.start(lambda session: found.append(probe.compare(session.log_probs(probe.sequences))), "answer a probe")
        round_.wait()
        return max(found, default=None)

    def sleep(self, replicas: list[RolloutEndpoint]) -> None:
        """Have replicas release their memory. Raises ReplicaError for one that refuses, RolloutLost for one that is gone."""
        try:
            with ThreadPoolExecutor(max(1, len(replicas))) as pool:
                list(
                    pool.map(
                        lambda r: UpdateSession(r, self._token, self._attempt, self._transport.connect).sleep(),
                        replicas,
                    )
                )
        except ReplicaGoneError as error:
            raise RolloutLost(str(error)) from None  # a symptom: the launcher reports the cause, see failure.py

    def _memory(self) -> torch.device:
        """The device of buckets."""
        return torch.device("cuda", torch.cuda.current_device()) if self._transport.on_gpu else torch.device("cpu")


class _Round(AbstractContextManager["_Round"]):
    """The replicas of one publication: those still taking part, and why others do not. An exception inside aborts all of them."""

    def __init__(self, sessions: dict[str, UpdateSession], awaits: Callable[[str], None]) -> None:
        self._awaits, self._what = awaits, ""
        self.live = dict(sessions)
        self.failed: dict[str, str] = {}
        self._pool = ThreadPoolExecutor(max(1, len(sessions)), thread_name_prefix="publish")
        self._running: dict[str, Future[None]] = {}

    def start(self, work: Callable[[UpdateSession], None], what: str) -> None:
        """`what`: that each replica does, for messages."""
        self._what = what
        self._running = {pod: self._pool.submit(work, session) for pod, session in self.live.items()}

    def wait(self) -> None:
        """Wait for all replicas, and drop those that failed. Names those that take long."""
        _, late = wait(self._running.values(), NAMED_SECONDS)
        if late:
            pods = sorted(pod for pod, future in self._running.items() if future in late)
            some = ", ".join(pods[:MOST_NAMED]) + (
                f" and {len(pods) - MOST_NAMED} more" if len(pods) > MOST_NAMED else ""
            )
            self._awaits(f"{some} to {self._what}")
            wait(late)
            self._awaits("")
        for pod, future in self._running.items():
            try:
                future.result()
            except ReplicaError as error:
                self.failed[pod] = str(error)
                self._pool.submit(self.live.pop(pod).abort)
        self._running = {}

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for future in self._running.values():
                future.cancel()
            wait(self._running.values())  # a connection is not for two threads
            for session in self.live.values():
                self._pool.submit(session.abort)
        self._pool.shutdown()


class Senders:
    """Distributes publication over ranks. Rank 0 sends to all servers in pods of their own. Colocated servers are sent to by the first rank of their
    own pod, whose GPUs only they can read. Every method is collective."""

    def __init__(
        self,
        ranks: Ranks,
        publisher: Publisher | None,
        heartbeat: Callable[[], None],
        own: Iterable[RolloutEndpoint] | None = None,
    ) -> None:
        """`publisher`: on ranks that send. `own`: the colocated servers of this rank's pod; None on all ranks when servers are in pods of their
        own."""
        self._ranks, self._publisher, self._heartbeat = ranks, publisher, heartbeat
        self.colocated = own is not None
        self._own = {server.pod_uid: server for server in own or ()}
        self._awake = dict(self._own)

    def publish(
        self,
        step: int,
        tensors: Iterator[tuple[str, Tensor]],
        replicas: list[RolloutEndpoint],
        probe: Probe | None,
    ) -> Published | None:
        """Publish the policy of `step`. Returns the result on rank 0 at least. Raises as Publisher.publish."""
        mine = None
        if self._publisher:
            targets = [r for r in replicas if not self.colocated or r.pod_uid in self._own]
            mine = self._publisher.publish(step, tensors, targets, self._heartbeat, probe)
            self._awake |= {r.pod_uid: r for r in targets if r.pod in mine.ok}
        for _ in tensors:
            pass  # exporting is collective: ranks that send nothing must take part
        return self._merged(mine) if self.colocated else mine

    def sleep(self) -> None:
        """Have colocated servers release their memory. The trainer can use the GPUs when this returns."""
        if self._publisher:
            self._publisher.sleep(list(self._awake.values()))
        self._awake = {}
        self._ranks.barrier()

    def _merged(self, mine: Published | None) -> Published:
        """The result over all pods, on all ranks. Each pod exported the policy for itself, so their digests must agree."""
        found = [p for p in self._ranks.gather(asdict(mine) if mine else None) if p]
        assert len({p["version"]["digest"] for p in found}) == 1, f"the pods exported different policies: {found}"
        return Published(
            PolicyVersion(**found[0]["version"]),
            ok=[pod for p in found for pod in p["ok"]],
            failed={pod: why for p in found for pod, why in p["failed"].items()},
            difference=max((tuple(p["difference"]) for p in found if p["difference"]), default=None),
        )
