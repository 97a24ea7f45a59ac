"""The operator's watches, as the world wants them: prompt; or late, doubled, out of order, and with losses that only the next list mends."""

from dataclasses import dataclass
from random import Random

from rljob_operator.cache.cache import key_of
from rljob_operator.cache.cluster import ClusterCache
from rljob_operator.handlers import SELECTORS, EventHandlers
from rljob_operator.kube.api import Object
from simulator.cluster import FakeCluster
from simulator.objects import copied


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities per event, and numbers of turns."""

    late: int = 0
    """An event comes up to so many turns late, each for itself, so that they overtake each other."""
    doubled: float = 0.0
    lost: float = 0.0
    relist: int = 25
    """Turns between two lists of everything."""


PROMPT = Faults()
HOSTILE = Faults(late=4, doubled=0.2, lost=0.2)


class Feed:
    """One operator's: a new one begins with a list. `handlers`: who gets the events; None: nobody is woken by them."""

    def __init__(
        self,
        cluster: FakeCluster,
        cache: ClusterCache,
        faults: Faults,
        random: Random,
        handlers: EventHandlers | None = None,
    ) -> None:
        self._cluster, self.cache, self._faults, self._random = cluster, cache, faults, random
        self._sent: dict[tuple[str, str | None, str], Object] = {}
        self._queue: list[tuple[int, bool, Object]] = []
        """Turn, whether it is gone, object."""
        self._turn, self._removed = 0, len(cluster.removed)
        self.handlers = handlers or EventHandlers(cache, lambda job, after: None, 0)

    def deliver(self) -> None:
        """What happened since the last turn, and whatever is due of before."""
        self._send()
        if self._turn % self._faults.relist == 0:
            self.relist()
        due = [event for event in self._queue if event[0] <= self._turn]
        self._queue = [event for event in self._queue if event[0] > self._turn]
        for _, gone, obj in due:
            self.handlers.handle(obj["kind"], obj, gone=gone)
        self._turn += 1

    def relist(self) -> None:
        for kind, selector in SELECTORS.items():
            wanted = dict(pair.split("=") for pair in selector.split(",")) if selector else {}
            objects = [o for (k, _, _), o in self._cluster.objects.items() if k == kind]
            matching = [o for o in objects if wanted.items() <= o["metadata"].get("labels", {}).items()]
            cache = self.cache.of_kind(kind)
            for obj in copied(matching):
                self.handlers.changed(kind, cache.put(obj))
            listed = {key_of(obj) for obj in matching}
            self.handlers.changed(kind, cache.prune(listed, str(self._cluster.version), None))

    def _send(self) -> None:
        now = {key: o for key, o in self._cluster.objects.items() if key[0] in SELECTORS}
        gone = [o for o in self._cluster.removed[self._removed :] if o["kind"] in SELECTORS]
        self._removed = len(self._cluster.removed)
        news = [o for key, o in now.items() if _version(self._sent.get(key)) != _version(o)]
        for is_gone, objects in ((True, gone), (False, news)):
            for obj in objects:
                self._post(is_gone, copied(obj))
        self._sent = {key: {**o, "metadata": dict(o["metadata"])} for key, o in now.items()}

    def _post(self, gone: bool, obj: Object) -> None:
        if self._random.random() < self._faults.lost:
            return
        for _ in range(1 + (self._random.random() < self._faults.doubled)):
            self._queue.append((self._turn + self._random.randint(0, self._faults.late), gone, obj))


def _version(obj: Object | None) -> str:
    return obj["metadata"]["resourceVersion"] if obj else ""
