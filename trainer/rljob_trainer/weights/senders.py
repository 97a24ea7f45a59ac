"""Which ranks send the policy to which servers: the first one to all, or, where servers are colocated, each pod's first rank to its pod's own,
because only there can they read its GPU."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict

from torch import Tensor

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.collective import Ranks
from rljob_trainer.parity import Probe
from rljob_trainer.weights.protocol import PolicyVersion
from rljob_trainer.weights.publisher import Published, Publisher


class Senders:
    """Every method is collective."""

    def __init__(
        self,
        ranks: Ranks,
        publisher: Publisher | None,
        beat: Callable[[], None],
        own: Iterable[RolloutEndpoint] | None = None,
    ) -> None:
        """`publisher`: of a rank that sends. `own`: the colocated servers of this rank's pod; None, on all ranks: they are in pods of their own."""
        self._ranks, self._publisher, self._beat = ranks, publisher, beat
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
        """What came of it, where it is known: on the first rank at least. Raises as Publisher.publish does."""
        mine = None
        if self._publisher:
            targets = [r for r in replicas if not self.colocated or r.pod_uid in self._own]
            mine = self._publisher.publish(step, tensors, targets, self._beat, probe)
            self._awake |= {r.pod_uid: r for r in targets if r.pod in mine.ok}
        for _ in tensors:
            pass  # exporting is collective, also for those who send nothing
        return self._merged(mine) if self.colocated else mine

    def rest(self) -> None:
        """Colocated servers give their memory up: the GPUs are ours when this returns."""
        if self._publisher:
            self._publisher.sleep(list(self._awake.values()))
        self._awake = {}
        self._ranks.barrier()

    def _merged(self, mine: Published | None) -> Published:
        """Of all pods. Each exported the policy for itself, so their digests have to agree."""
        told = [p for p in self._ranks.gather(asdict(mine) if mine else None) if p]
        assert len({p["version"]["digest"] for p in told}) == 1, f"the pods exported different policies: {told}"
        return Published(
            PolicyVersion(**told[0]["version"]),
            ok=[pod for p in told for pod in p["ok"]],
            failed={pod: why for p in told for pod, why in p["failed"].items()},
            difference=max((tuple(p["difference"]) for p in told if p["difference"]), default=None),
        )
