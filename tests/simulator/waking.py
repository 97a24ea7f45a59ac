"""A world whose operator makes a pass only when somebody has asked for one: a watch, by its rules, or the pass before."""

import math
from dataclasses import dataclass, field

from rljob_operator.handlers import EventHandlers
from rljob_operator.kube.api import Conflict, Key
from simulator.site import NAMESPACE
from simulator.world import World


@dataclass(kw_only=True)
class Waking(World):
    """What a pass forgets to ask for never happens."""

    due: dict[Key, float] = field(default_factory=dict)

    def restart_operator(self) -> None:
        super().restart_operator()
        self.feed.handlers = EventHandlers(self.feed.cache, self.enqueue, progress_interval=0)
        self.due = {(NAMESPACE, "demo"): self.now}

    def enqueue(self, key: Key, after: float) -> None:
        self.due[key] = min(self.now + after, self.due.get(key, math.inf))

    async def pass_over(self, job: str) -> None:
        key = (NAMESPACE, job)
        if self.due.get(key, math.inf) > self.now:
            return
        del self.due[key]
        try:
            after = await self.operator(key)
        except Conflict:
            after = 0.0
        if after is not None:
            self.enqueue(key, after)
