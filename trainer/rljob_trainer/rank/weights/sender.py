"""One rank's part of the policy, on its way to the servers: every bucket goes to all servers at once, while the next one is exported."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.rank.weights.link import Link
from rljob_trainer.rank.weights.rounds import Round
from rljob_trainer.wire.weights.bucket import digest, pack, total
from rljob_trainer.wire.weights.plan import Phase
from rljob_trainer.wire.weights.protocol import Offer, Opened
from rljob_trainer.wire.weights.rendezvous import SenderStore
from rljob_trainer.wire.weights.transport import End, Transport


@dataclass(frozen=True, slots=True)
class Sent:
    """What one rank has sent."""

    digest: str
    """Of its tensors (bucket.digest)."""
    bytes: int
    """Of its tensors, to each server."""
    failed: dict[str, str]
    """Pod -> why it did not get them."""


class Sender:
    """This rank's end of the connections to all servers, which live as long as the attempt."""

    def __init__(self, transport: Transport, awaits: Callable[[str], None]) -> None:
        self._transport, self._awaits = transport, awaits
        self._home = SenderStore(transport.address)
        self._step = 0
        self._ends: dict[str, tuple[str, End]] = {}
        """By pod uid: the connection of the last update, with its group's name."""

    def offers(self, step: int, servers: Iterable[RolloutEndpoint]) -> dict[str, Offer]:
        """By pod uid: how each server's workers reach this rank for the policy of `step`.

        At a new step, connections to servers that do not get it are closed: they are gone, or connect anew.
        """
        kept = {server.pod_uid: self._ends.get(server.pod_uid) for server in servers}
        for uid in self._ends.keys() - kept if step != self._step else ():
            self._ends.pop(uid)[1].close()
        self._step = step
        return {uid: Offer(self._home.address, self._home.port, end[0] if end else "") for uid, end in kept.items()}

    def send(
        self,
        phases: Iterable[Phase],
        servers: Sequence[RolloutEndpoint],
        opened: Mapping[str, Opened],
        index: int,
        heartbeat: Callable[[], None],
    ) -> Sent:
        """Send to those of `servers` that have opened the update. `opened`: by pod uid. `index`: this sender's place among the offers.

        All phases are exhausted even if every server fails. Raises what they raise; the servers keep their old weights then.
        """
        targets = {s.pod: s.pod_uid for s in servers if s.pod_uid in opened}
        links = {pod: self._link(uid, opened[uid], index) for pod, uid in targets.items()}
        digests, size = [], 0
        with Round(links, Link.close, self._awaits) as round_:
            round_.run(Link.join, "connect")
            for tensors, sends, _ in phases:
                if sends:
                    for bucket in pack(tensors, self._transport.bucket_bytes, self._memory()):
                        digests.append(digest(bucket.entries))
                        size += sum(entry.size for entry in bucket.entries)
                        round_.wait()
                        round_.start(partial(Link.send, bucket=bucket), "receive weights")
                        heartbeat()
                    round_.wait()
                round_.run(Link.end_phase, "receive weights")
                for _ in tensors:
                    pass
            round_.run(Link.complete, "verify weights")
        for pod, link in round_.live.items():
            assert link.end
            self._ends[targets[pod]] = link.group, link.end
        return Sent(total(digests), size, round_.failed)

    def _link(self, uid: str, opened: Opened, index: int) -> Link:
        group, end = self._ends.pop(uid, ("", None))
        if end and not opened.joined[index]:
            end.close()
            group, end = "", None
        return Link(self._transport, self._home, opened.session, group, end)

    def _memory(self) -> torch.device:
        """The device of buckets."""
        return torch.device("cuda", torch.cuda.current_device()) if self._transport.on_gpu else torch.device("cpu")
