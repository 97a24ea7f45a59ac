"""The rollout servers as this attempt uses them: membership (replicas.py) joined to the pool that generates (rollout/pool.py)."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from rljob_api.protocol import RolloutEndpoint, RolloutState
from rljob_trainer.driver.replicas import Replicas
from rljob_trainer.rollout.client import ReplicaLost, RolloutClient, Unauthorized
from rljob_trainer.rollout.pool import Pool

TICK_SECONDS = 0.5

log = logging.getLogger(__name__)


class Rollouts:
    """`changed` is called when a replica became publishable, current, or was lost. `run` has to run beside."""

    def __init__(
        self, token: str, attempt: int, min_replicas: int, samples_in_flight: int, changed: Callable[[], None]
    ):
        self._token, self._attempt, self._min, self._changed = token, attempt, min_replicas, changed
        self._replicas = Replicas()
        self._enough = asyncio.Event()
        self.pool = Pool(token, attempt, samples_in_flight)

    async def run(self) -> None:
        """Find out who answers and who was lost, until cancelled."""
        while True:
            self._notice_lost()
            await asyncio.gather(*(self._probe(e) for e in self._replicas.to_probe(time.monotonic())))
            await asyncio.sleep(TICK_SECONDS)

    async def follow(self, endpoints: Sequence[RolloutEndpoint]) -> None:
        """The operator's list changed."""
        self._replicas.follow(endpoints)
        current = self._replicas.current()
        for endpoint in self.pool.replicas:
            if endpoint not in current:
                await self.pool.dismiss(endpoint.pod_uid, "its pod is gone")
        self._tell()

    def to_publish(self) -> list[RolloutEndpoint]:
        return self._replicas.to_publish()

    async def published(self, step: int, targets: Sequence[RolloutEndpoint], failed: Mapping[str, str]) -> None:
        """`targets` were published to; `failed` says by pod why some do not have the policy of `step`."""
        self._notice_lost()
        for endpoint in targets:
            if endpoint.pod in failed:
                log.warning(
                    "rollout %s did not take the policy of step %d: %s", endpoint.pod, step, failed[endpoint.pod]
                )
                self._replicas.lost(endpoint, time.monotonic())
            else:
                self._replicas.published(endpoint, step)
        for endpoint in self._replicas.current():
            if endpoint not in self.pool.replicas:
                await self.pool.admit(endpoint)
        self._tell()

    async def trained(self) -> None:
        """The policy moved on: nobody has it."""
        self._notice_lost()
        self._replicas.trained()
        for endpoint in self.pool.replicas:
            await self.pool.dismiss(endpoint.pod_uid, "the policy moved on")
        self._tell()

    async def enough(self) -> None:
        """Returns once minReplicas have the current policy."""
        await self._enough.wait()

    @property
    def is_enough(self) -> bool:
        return self._enough.is_set()

    @property
    def count(self) -> int:
        """Replicas that have the current policy."""
        return len(self._replicas.current())

    def report(self) -> list[RolloutState]:
        return self._replicas.report()

    def _notice_lost(self) -> None:
        for endpoint in self._replicas.current():
            if endpoint not in self.pool.replicas:
                log.warning("rollout %s is lost: %s", endpoint.pod, self.pool.lost.get(endpoint.pod_uid, "unknown"))
                self._replicas.lost(endpoint, time.monotonic())
                self._tell()

    async def _probe(self, endpoint: RolloutEndpoint) -> None:
        try:
            async with RolloutClient(endpoint, self._token, self._attempt) as client:
                await client.state()
        except Unauthorized as refused:
            log.warning("%s", refused)
            self._replicas.refused(endpoint, time.monotonic())
            self._tell()
        except ReplicaLost:
            self._replicas.lost(endpoint, time.monotonic())
        else:
            self._replicas.healthy(endpoint)
            self._tell()

    def _tell(self) -> None:
        if self.count >= max(self._min, 1):
            self._enough.set()
        else:
            self._enough.clear()
        self._changed()
