"""A leader that is cut off from the cluster while one of its writes is on its way: the write arrives when a successor already acts."""

from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from rljob_operator.kube.api import ApiError, Object
from simulator.cluster import Crash, FakeCluster
from simulator.life import end, live
from simulator.world import GRACE, NAMESPACE, World

STEPS, TURNS_LATE = 12, 2
Write = Callable[[], Coroutine[Any, Any, Any]]


class LateCluster(FakeCluster):
    """The write of this number, from 1, is held back; whoever sent it says nothing more."""

    def __init__(self, held_write: int) -> None:
        super().__init__()
        self.answer = ""
        """What came of the write that was late, in one word; empty: it has not arrived."""
        self._left, self._held = held_write, list[Write]()

    async def land(self) -> None:
        """The write arrives, if there is one. Nobody hears the answer."""
        while self._held:
            write = self._held.pop()
            try:
                await write()
                self.answer = "done"
            except ApiError as error:
                self.answer = type(error).__name__

    async def create(self, obj: Object) -> Object:
        return await self._sent(lambda: super(LateCluster, self).create(obj))

    async def replace(self, obj: Object, subresource: str = "") -> Object:
        return await self._sent(lambda: super(LateCluster, self).replace(obj, subresource))

    async def apply(self, obj: Object, live: Object) -> Object:
        return await self._sent(lambda: super(LateCluster, self).apply(obj, live))

    async def merge(self, obj: Object, live: Object) -> Object:
        return await self._sent(lambda: super(LateCluster, self).merge(obj, live))

    async def patch(self, kind: str, namespace: str, name: str, operations: list[Object]) -> Object:
        return await self._sent(lambda: super(LateCluster, self).patch(kind, namespace, name, operations))

    async def delete(self, kind: str, namespace: str, name: str, uid: str, *, force: bool = False) -> None:
        await self._sent(lambda: super(LateCluster, self).delete(kind, namespace, name, uid, force=force))

    async def _sent(self, write: Write) -> Any:
        self._left -= 1
        if self._left == 0:
            self._held.append(write)
            self._dead = True
        if self._dead:
            raise Crash("cut off")
        return await write()


@dataclass(kw_only=True)
class LateWorld(World):
    """The successor begins in the turn in which the leader is cut off, and the write arrives so many turns later."""

    turns_late: int
    cluster: LateCluster = field(default_factory=lambda: LateCluster(0))
    _cut_off: int = 0
    """Turns since then."""

    async def turn(self) -> None:
        await super().turn()
        self._cut_off += self.crashes
        if self._cut_off > self.turns_late:
            await self.cluster.land()


async def hold_writes(every: int, **changes: Any) -> Counter[str]:
    """A leader that is cut off in the first write of a whole life, in that and `every` more, and so on: each life ends like the undisturbed one, with
    as many pods of each name. What came of the writes."""
    undisturbed = await live(World(steps=STEPS), **changes)
    expected, answers = (end(undisturbed), made(undisturbed)), Counter[str]()
    for number in range(1, len(undisturbed.cluster.writes) + 1, every):
        world = LateWorld(steps=STEPS, turns_late=TURNS_LATE, cluster=LateCluster(number))
        await live(world, **changes)
        for _ in range(TURNS_LATE + GRACE):
            await world.turn()
        what = f"{undisturbed.cluster.writes[number - 1]} was late: {world.cluster.answer}"
        assert (end(world), made(world)) == expected, what
        assert world.cluster.pods(NAMESPACE) == [], what
        answers[world.cluster.answer] += 1
    return answers


def made(world: World) -> Counter[str]:
    """Pods that there have been, by name."""
    pods = [obj for obj in (*world.cluster.removed, *world.cluster.objects.values()) if obj["kind"] == "Pod"]
    names = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in pods}
    return Counter(names.values())
