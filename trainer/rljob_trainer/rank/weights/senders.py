"""Publication over ranks: who leads an update, who sends which part of the policy, and what became of it."""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import cached_property
from typing import Any

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.rank.weights.publisher import OpenUpdate, Published, Publisher
from rljob_trainer.rank.weights.sender import Opened, Sent
from rljob_trainer.wire.collective import Ranks
from rljob_trainer.wire.parity import Probe
from rljob_trainer.wire.weights.bucket import total
from rljob_trainer.wire.weights.plan import GatherPhase, Receivers, TransferPlan
from rljob_trainer.wire.weights.protocol import Offer, PolicyVersion

log = logging.getLogger(__name__)

FIRST = 0


class Senders:
    """All ranks. Rank 0 leads updates of servers in pods of their own, the first rank of a pod those of its colocated servers, since no other pod can
    reach their GPUs. Every rank that owns a part of the policy sends it. Every method is collective."""

    def __init__(
        self,
        ranks: Ranks,
        publisher: Callable[[], Publisher],
        heartbeat: Callable[[], None],
        own: Iterable[RolloutEndpoint] | None = None,
        leader: int = FIRST,
    ) -> None:
        """
        Args:
            publisher: makes that of this rank, if it needs one
            own: the colocated servers of this rank's pod, on its first rank, and none on its other ranks; None on all ranks when servers are in pods
                of their own
            leader: the rank that leads updates to which this one sends
        """
        self._ranks, self._make, self._heartbeat, self.leader = ranks, publisher, heartbeat, leader
        self.colocated = own is not None
        self._own = {server.pod_uid: server for server in own or ()}
        self._awake = dict(self._own)
        self.leads = bool(self._own) if self.colocated else ranks.is_first
        """Whether this rank leads updates."""
        self._planned: TransferPlan | None = None
        self._said = ""

    def publish(
        self,
        step: int,
        phases: Sequence[GatherPhase],
        servers: Sequence[RolloutEndpoint],
        probe: Probe | None,
        sent: Callable[[], None],
    ) -> Published | None:
        """Publish the policy of `step`; without servers only its digest is computed.

        Args:
            phases: the same number on all ranks
            sent: called on all ranks when servers have received everything, and will apply it next

        Returns the result on rank 0 at least. Raises as Publisher.publish.
        """
        targets = [s for s in servers if not self.colocated or s.pod_uid in self._own]
        offered = self._ranks.gather(self._offer(phases))
        senders = [rank for rank, offer in enumerate(offered) if offer and offer["leader"] == self.leader]
        self._plan([offer["bytes"] if rank in senders else None for rank, offer in enumerate(offered)], len(targets))
        with self._publisher.update(targets) if self.leads else nullcontext() as update:
            offers = [Offer(**offered[rank]["offer"]) for rank in senders]
            opened = self._everywhere(update.open(offers) if update else None)
            part = self._send(phases, opened, senders)
            parts = [sent_by and Sent.from_json(sent_by) for sent_by in self._ranks.gather(part and part.as_json())]
            sent()
            sent_parts = [part for rank, part in enumerate(parts) if part and rank in senders]
            self._say_received(opened.receivers, sent_parts)
            published = self._commit(update, step, sent_parts, probe) if update else None
        return self._merged(published) if self.colocated else published

    def sleep(self) -> None:
        """Have colocated servers release their memory. The trainer can use the GPUs when this returns."""
        if self.leads and self.colocated:
            self._publisher.sleep(list(self._awake.values()))
        self._awake = {}
        self._ranks.barrier()

    @cached_property
    def _publisher(self) -> Publisher:
        return self._make()

    def _offer(self, phases: Sequence[GatherPhase]) -> dict[str, Any] | None:
        """How servers reach this rank; None: it sends nothing."""
        if not any(phase.sends for phase in phases):
            return None
        offer = asdict(self._publisher.sender.offer)
        return {"leader": self.leader, "offer": offer, "bytes": sum(phase.bytes for phase in phases)}

    def _everywhere(self, opened: Opened | None) -> Opened:
        """What this rank's leader has opened, on all ranks."""
        return Opened.from_json(self._ranks.gather((opened or Opened("", {})).as_json())[self.leader])

    def _send(
        self,
        phases: Sequence[GatherPhase],
        opened: Opened,
        senders: Sequence[int],
    ) -> Sent | None:
        """None: this rank sends nothing, and has taken part in what others send."""
        if self._ranks.rank in senders:
            place = senders.index(self._ranks.rank)
            return self._publisher.sender.send(phases, opened, place, self._heartbeat)
        for phase in phases:
            for _ in phase.tensors:
                pass
        return None

    def _commit(self, update: OpenUpdate, step: int, parts: Sequence[Sent], probe: Probe | None) -> Published:
        version = PolicyVersion(self._publisher.attempt, step, total(part.digest for part in parts))
        return update.commit(version, parts, probe)

    def _plan(self, sizes: Sequence[int | None], servers: int) -> None:
        """Log who sends what, when that is known and new; of colocated servers, in the first pod."""
        plan = TransferPlan.of(sizes)
        if self._ranks.is_first and servers and plan.total and plan != self._planned:
            self._planned = plan
            log.info("%s", plan.sentence(servers))

    def _say_received(self, receivers: Receivers, sent: Sequence[Sent]) -> None:
        """Log what workers receive, when not all receive everything and that is new."""
        parts = [part for by_rank in sent for part in by_rank.parts]
        sentence = receivers.sentence(parts, sum(by_rank.bytes for by_rank in sent))
        if self._ranks.is_first and sentence and sentence != self._said:
            self._said = sentence
            log.info("%s", sentence)

    def _merged(self, mine: Published | None) -> Published:
        """The result over all pods, on all ranks. Each pod exported the policy for itself, so their digests must agree."""
        if mine:
            self._awake |= {uid: server for uid, server in self._own.items() if server.pod in mine.ok}
        by_pod = [p for p in self._ranks.gather(asdict(mine) if mine else None) if p]
        assert len({p["version"]["digest"] for p in by_pod}) == 1, f"the pods exported different policies: {by_pod}"
        return Published(
            PolicyVersion(**by_pod[0]["version"]),
            ok=[pod for p in by_pod for pod in p["ok"]],
            failed={pod: why for p in by_pod for pod, why in p["failed"].items()},
            unreached=[pod for p in by_pod for pod in p["unreached"]],
            difference=max((tuple(p["difference"]) for p in by_pod if p["difference"]), default=None),
            paused=max(p["paused"] for p in by_pod),
            waited=max(p["waited"] for p in by_pod),
        )
