"""Health checks that a test may ask what they have seen, in place of waiting until they probably have."""

from typing import Any, ClassVar

import psutil

from rljob_trainer.pod.health import HealthCheck, Lost
from rljob_trainer.pod.part import FollowerCheck
from trainer.pod.pods import until


class Watched(HealthCheck):
    """Of one server. Those of all servers are in `made`, the newest last."""

    made: ClassVar[list["Watched"]] = []

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._verdict: Lost | None = None
        Watched.made.append(self)

    async def lost(self) -> Lost:
        self._verdict = await super().lost()
        return self._verdict

    async def has_seen_it_healthy(self) -> None:
        """An engine, and an answer."""
        await until(lambda: bool(self._engine._engines) and self._answered is not None)

    @staticmethod
    async def has_seen(engine: psutil.Process) -> None:
        """The check of its server has."""
        await until(lambda: any(engine in check._engine._engines for check in Watched.made))

    @staticmethod
    async def has_an_answer() -> None:
        """The newest."""
        await until(lambda: Watched.made[-1]._answered is not None)

    @staticmethod
    async def has_a_verdict() -> None:
        """The newest."""
        await until(lambda: Watched.made[-1]._verdict is not None)


class WatchedFollower(Watched, FollowerCheck):
    """Of a part that has its head in another pod."""
