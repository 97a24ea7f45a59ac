"""A gateway whose ranks only remember what they did, on a volume that survives both."""

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from rljob_api.spec.service import ServiceSpec
from rljob_trainer.gateway.service import GatewayService
from rljob_trainer.wire.gateway import decode_result, decode_work, encode
from rljob_trainer.wire.service import (
    CreateModel,
    Datum,
    ForwardBackward,
    KeepModels,
    LoadState,
    OptimStep,
    SaveForSampler,
    SaveState,
    Work,
    WorkFailure,
    WorkResult,
)

REQUESTS = 6
SNAPSHOT, PASS = 3, 5
"""Those that change nothing."""
STEPS = [seq for seq in range(1, REQUESTS + 1) if seq not in (SNAPSHOT, PASS)]
SPEC = ServiceSpec(checkpoint_seconds=3600)


def forward(model: str, seq: int) -> ForwardBackward:
    datum = Datum(np.zeros(3, "<i4"), np.zeros(3, "<i8"), {})
    return ForwardBackward(model=model, seq=seq, data=(datum,), loss="cross_entropy", forward_only=True)


def files(root: Path) -> set[str]:
    """Those of models and of what the ranks have written, by their paths below the service's directory."""
    found = (path for path in root.glob("*/**/*") if path.is_file() or path.parent.parent.parent == root)
    return {re.sub("^journals-[0-9a-f]+/", "", str(path.relative_to(root))) for path in found} - {"service.log"}


def the_only(root: Path, pattern: str) -> Path:
    (path,) = root.glob(pattern)
    return path


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file can become larger than this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def metrics(steps: list[int]) -> WorkResult:
    return WorkResult(metrics={"grad_norm:mean": float(hash(tuple(steps)))})


def expected(seq: int) -> WorkResult:
    return WorkResult() if seq == SNAPSHOT else metrics([step for step in STEPS if step <= seq])


class Ranks:
    """Ranks that remember, of every model, the order of its steps: state that is saved and loaded, and lost with them."""

    def __init__(self, volume: dict[str, list[int]]) -> None:
        self._volume, self._models = volume, dict[str, list[int]]()

    def do(self, work: Work) -> WorkResult | WorkFailure:
        match work:
            case KeepModels():
                self._models = {name: steps for name, steps in self._models.items() if name in work.models}
            case CreateModel():
                assert work.model not in self._models and len(self._models) < SPEC.max_models
                self._models[work.model] = []
            case LoadState():
                self._models[work.model] = list(self._volume[Path(work.path).name])
            case SaveState() | SaveForSampler():
                assert Path(work.path).name not in self._volume
                self._volume[Path(work.path).name] = list(self._models[work.model])
                Path(work.path).mkdir(parents=True)
            case OptimStep():
                self._models[work.model].append(work.seq)
                return metrics(self._models[work.model])
            case ForwardBackward():
                return metrics(self._models[work.model])
        return WorkResult()

    def steps(self, model: str) -> list[int]:
        return self._models[model]


class World:
    """A gateway, its ranks, and a volume that survives both."""

    def __init__(self, root: Path, spec: ServiceSpec = SPEC) -> None:
        self._root, self._spec, self.volume = root, spec, dict[str, list[int]]()
        self.service, self.session, self.model = GatewayService(spec, root), "", ""
        self.ranks, self._life, self.guest = Ranks(self.volume), 0, ""

    async def begin(self, start: str = "") -> None:
        self.session = await self.service.open_session("ann")
        self.model = f"{self.session}:train:0"
        await self.service.create("ann", CreateModel(model=self.model, seq=0, rank=4, seed=1), start)

    async def ask(self, seq: int) -> None:
        work: Work = OptimStep(model=self.model, seq=seq, learning_rate=0.1 * seq)
        if seq == SNAPSHOT:
            work = SaveForSampler(model=self.model, seq=seq, path="")
        if seq == PASS:
            work = forward(self.model, seq)
        await self.service.ask("ann", self.model, seq, work, f"{self.session}:sample:0" if seq == SNAPSHOT else "")

    async def visit(self, ends: bool) -> None:
        """Another client comes, which steps its model; or what came ends."""
        if ends and self.guest:
            await self.service.close_session("bob", self.guest)
            self.guest = ""
        elif not ends and not self.guest:
            self.guest = await self.service.open_session("bob")
            model = f"{self.guest}:train:0"
            await self.service.create("bob", CreateModel(model=model, seq=0, rank=4, seed=1))
            await self.service.ask("bob", model, 1, OptimStep(model=model, seq=1, learning_rate=0.1))

    async def offered(self) -> Work | None:
        """The work that comes next, which stays the same until it is done."""
        for book in self.service.books.values():
            book.saved_at = -1e9  # a checkpoint is due whenever one is possible
        piece = await self.service.desk.next(str(self._life), False, 0.0)
        return decode_work(piece.work) if piece else None

    async def work(self, delivered: bool = True, full: int | None = None, meanwhile: bool | None = None) -> bool:
        """One piece of work. False: there was none.

        Args:
            delivered: else the ranks do it, and the gateway never hears of it
            full: no file can become larger than this when the gateway hears first
            meanwhile: what the other client does before that
        """
        await self.offered()
        piece = await self.service.desk.next(str(self._life), False, 0.0)
        if piece is None:
            return False
        result = encode(self.ranks.do(decode_work(piece.work)))
        if meanwhile is not None:
            await self.visit(meanwhile)
        if not delivered:
            self._restart_gateway()
        elif full is not None:
            with suppress(OSError), full_disk(full):
                await self.service.desk.done(piece.ticket, result)
        await self.service.desk.done(piece.ticket, result)
        return True

    async def idle(self) -> None:
        while await self.work():
            pass

    def move(self, root: Path) -> None:
        """The volume is mounted elsewhere, and everybody begins anew."""
        self._root = self._root.rename(root)
        self.crash("both")

    def _restart_gateway(self) -> None:
        self.service = GatewayService(self._spec, self._root)

    def crash(self, what: str) -> None:
        if what in ("ranks", "both"):
            self.ranks, self._life = Ranks(self.volume), self._life + 1
        if what in ("gateway", "both"):
            self._restart_gateway()

    async def result(self, seq: int) -> WorkResult | WorkFailure | None:
        found = await self.service.book("ann", self.model).result(seq, 0.0)
        return None if found is None else decode_result(found)
