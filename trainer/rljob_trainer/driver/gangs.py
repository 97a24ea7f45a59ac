"""The driver's end of models on gangs of their own. Rank 0 of each gang connects (pod_listener.py), then asks for work.

A gang gets one request at a time, in order. Its rank 0 sends heartbeats while it works and asks again while it is idle, so a gang that is silent
for the stall timeout is lost. A critic computes the values of a batch before rank 0 gets it, and learns from it while the policy does.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from rljob_api import names
from rljob_api.callbacks import nothing
from rljob_trainer.driver.buffer.measured import Measure, joined
from rljob_trainer.driver.buffer.sources import Ready
from rljob_trainer.driver.done import when_done
from rljob_trainer.driver.pod_listener import PodListener
from rljob_trainer.driver.server import RankLost, answer
from rljob_trainer.failure import PeerLost
from rljob_trainer.reporting.timeline import Timeline
from rljob_trainer.wire.batch import Array, Batch
from rljob_trainer.wire.calls import RoleCalls, RoleRequest, TaskOutcome, handlers
from rljob_trainer.wire.channel import Arrays, announced, part_of

ANSWER_SECONDS = 1.0
"""A role without work is answered after this time at the latest."""
GOODBYE_SECONDS = 60.0
"""Longest wait for a role to end."""

log = logging.getLogger(__name__)


class RoleLost(PeerLost):
    """The gang of a role ended, or is silent. Its own pods report why."""


@dataclass(frozen=True)
class _Request:
    """A request to a role, and the future of its answer."""

    kind: str
    batch: Batch | None
    message: Mapping[str, Any]
    result: asyncio.Future[dict[str, Any]]

    def encoded(self) -> RoleRequest:
        """The message to rank 0 of the role, followed by the columns of the batch, if there is one."""
        batch = announced(self.batch) if self.batch is not None else Arrays({}, ())
        return cast(RoleRequest, Arrays({"ask": self.kind, **self.message, **batch}, batch.pieces))


@dataclass
class RoleGang(RoleCalls):
    """One role, whose rank 0 calls it as wire/calls.py describes."""

    role: str
    connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
    wake: Callable[[], None] = nothing
    """Called when the result of `written` may have changed."""
    on_loaded: Callable[[], None] = nothing
    """Called once, when the role has loaded its model."""
    timeline: Timeline = field(default_factory=Timeline)
    """Has when it does what it is asked for."""
    is_loaded: bool = False
    _queue: deque[_Request] = field(default_factory=deque)
    _current: _Request | None = None
    _over: TaskOutcome | None = None
    _answered: bool = False
    """Whether any request has been answered."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _written: dict[str, Any] | None = None
    """The last completed save: `step`, `layout` and `files`."""

    async def ask(self, kind: str, batch: Batch | None = None, **message: Any) -> dict[str, Any]:
        """Send a request and wait for the answer. If the caller is cancelled, the role still completes it, and the answer is dropped."""
        return await self.tell(kind, batch, **message)

    def tell(self, kind: str, batch: Batch | None = None, **message: Any) -> asyncio.Future[dict[str, Any]]:
        """Send a request; returns the future of its answer."""
        result: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._queue.append(_Request(kind, batch, message, result))
        self._changed.set()
        return result

    async def measure(self, batch: Batch) -> Mapping[str, Array]:
        """What the role measures of a whole batch; see buffer.measured.Measure."""
        return (await self.ask("measure", batch))["arrays"]

    @property
    def is_awaited(self) -> bool:
        """Whether its rank 0 has not connected yet: a role has one."""
        return not self.connected.done()

    async def welcome(self, pod: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Rank 0 has connected. Returns when `serve` has closed the connection."""
        if self.is_awaited:  # else another one was faster
            self.connected.set_result((reader, writer))
            await writer.wait_closed()

    async def serve(self, heartbeat: Callable[[int], None], seconds: float) -> None:
        """Answer the role until it ends. Raises RoleLost when it does not connect or is silent for `seconds`, or ends without calling `end`."""
        try:
            async with asyncio.timeout(seconds):
                reader, writer = await asyncio.shield(self.connected)
        except TimeoutError:
            raise RoleLost(f"no rank of the role {self.role} has connected for {seconds:g} s") from None
        calls, _ = handlers(RoleCalls, self)
        try:
            await answer(reader, writer, calls, {"heartbeat": heartbeat}, seconds)
        except RankLost as error:
            raise RoleLost(f"lost the role {self.role}: its {error}") from None
        finally:
            writer.close()

    async def finish(self, outcome: TaskOutcome) -> None:
        """Tell the role that the job is over, and wait for it to end, for GOODBYE_SECONDS at most."""
        self._over = outcome
        self._changed.set()
        try:
            await asyncio.wait_for(self._ended.wait(), GOODBYE_SECONDS)
        except TimeoutError:
            log.warning("the role %s has not said goodbye", self.role)

    async def next(self) -> RoleRequest:
        # a role loads its model between its answer to the first request, `open`, and its question for the second
        if self._answered and not self.is_loaded:
            self.is_loaded = True
            self.on_loaded()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                while not (self._queue or self._over):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return {}
        if self._queue:
            self._current = self._queue.popleft()
            self.timeline.turn(self.role, self._current.kind)
            return self._current.encoded()
        assert self._over, "it was woken for one of the two"
        return {"over": self._over}

    async def part(self, rows: Sequence[int]) -> dict[str, int]:
        assert self._current and self._current.batch, "a batch comes before its parts"
        return part_of(self._current.batch, rows, routed=False)

    async def done(self, metrics: dict[str, float] | None = None, arrays: dict[str, Array] | None = None) -> None:
        assert self._current, "nothing was asked"
        if not self._current.result.done():  # else nobody waits any more
            self._current.result.set_result({"metrics": metrics, "arrays": arrays})
        self._current, self._answered = None, True
        self.timeline.turn(self.role, "")

    async def saved(self, step: int, layout: str, files: dict[str, Any]) -> None:
        self._written = {"step": step, "layout": layout, "files": files}
        self.wake()

    def written(self, step: int) -> dict[str, Any] | None:
        """Layout and files of the save of this step; None until it is on the disk."""
        return self._written if self._written and self._written["step"] == step else None

    async def end(self) -> None:
        self._ended.set()


class Gangs:
    """All gangs of one attempt but the trainer's. Must be created inside the event loop."""

    def __init__(
        self, roles: Iterable[str], listener: PodListener, seconds: float, timeline: Timeline | None = None
    ) -> None:
        """`listener`: to which they connect. `seconds`: how long a role may be silent. `timeline` has what they do when."""
        connected = asyncio.get_running_loop().create_future
        timeline = timeline or Timeline()
        self._gangs = {role: RoleGang(role, connected(), timeline=timeline) for role in roles}
        self._seconds = seconds
        for role, gang in self._gangs.items():
            listener.admit(role, gang)

    def __bool__(self) -> bool:
        return bool(self._gangs)

    @property
    def critic(self) -> RoleGang | None:
        """The critic's gang, the only one that learns."""
        return self._gangs.get(names.ROLE_CRITIC)

    def open(self, steps: int, on_loaded: Callable[[], None] = nothing) -> None:
        """Have all roles load their models. `on_loaded` is called once for each. `steps`: of the whole job."""
        for gang in self._gangs.values():
            gang.on_loaded = on_loaded
            gang.tell("open", steps=steps)

    def loading(self) -> list[str]:
        """Roles whose models are not loaded yet."""
        return [role for role, gang in self._gangs.items() if not gang.is_loaded]

    @property
    def measuring(self) -> list[Measure]:
        """Of the roles that measure a batch as soon as it is generated: all but the critic."""
        return [gang.measure for role, gang in self._gangs.items() if role != names.ROLE_CRITIC]

    async def run(self, heartbeat: Callable[[int], None]) -> None:
        """Serve all roles until cancelled. Raises RoleLost when one is lost."""
        async with asyncio.TaskGroup() as tasks:
            for gang in self._gangs.values():
                tasks.create_task(gang.serve(heartbeat, self._seconds))
            tasks.create_task(asyncio.Event().wait())

    async def finish(self, outcome: TaskOutcome) -> None:
        """Tell all roles that the job is over, and wait for their end."""
        await asyncio.gather(*(gang.finish(outcome) for gang in self._gangs.values()))


class Buffer(Protocol):
    """The part of RolloutBuffer that is needed."""

    @property
    def first(self) -> Ready | None: ...

    def take(self) -> Ready | None: ...


class Critic:
    """The driver's view of the critic. The order of requests: values of a batch, an update from it, perhaps a save, values of the next batch."""

    def __init__(self, gang: RoleGang, changed: Callable[[], None]):
        """`changed` is called when the result of `take`, `learnt` or `saved` may have changed."""
        self._gang, self._changed = gang, changed
        gang.wake = changed
        self._valuing: asyncio.Task[Ready] | None = None
        self._learning: asyncio.Future[dict[str, Any]] | None = None

    @property
    def is_idle(self) -> bool:
        """No batch is being valued."""
        return self._valuing is None

    def take(self, buffer: Buffer) -> Ready | None:
        """Remove the next batch from the buffer and return it with its values; None until they are computed."""
        if self._valuing is None:
            ready = buffer.first
            if ready:
                self._valuing = asyncio.create_task(self._valued(ready))
                when_done(self._valuing, self._changed)
            return None
        if not self._valuing.done():
            return None
        valued, self._valuing = self._valuing, None
        taken = buffer.take()
        assert taken and taken.batch.step == valued.result().batch.step, "nobody else takes batches"
        return valued.result()

    def restore(self, directory: Path) -> None:
        """Continue from the engine's part of a checkpoint."""
        self._gang.tell("restore", directory=directory)

    def learn(self, measured: Batch) -> None:
        """Begin to learn from the batch that was returned last. `measured`: its columns, and what the critic is to learn."""
        self._learning = self._gang.tell("learn", measured)
        when_done(self._learning, self._changed)

    def learnt(self) -> dict[str, float] | None:
        """The metrics of the last update; None until it is done."""
        assert self._learning, "it was given nothing to learn"
        return self._learning.result()["metrics"] if self._learning.done() else None

    def save(self, step: int, directory: Path, alongside: bool) -> None:
        """Begin to write its state after the last update."""
        self._gang.tell("save", step=step, directory=directory, alongside=alongside)

    def saved(self, step: int) -> dict[str, Any]:
        """{role: layout and files} of the save of this step; {}: it is not on the disk yet."""
        written = self._gang.written(step)
        return {names.ROLE_CRITIC: written} if written else {}

    def close(self) -> None:
        if self._valuing:
            self._valuing.cancel()

    async def _valued(self, ready: Ready) -> Ready:
        return Ready(joined(ready.batch, await self._gang.measure(ready.batch)), ready.cursor)
