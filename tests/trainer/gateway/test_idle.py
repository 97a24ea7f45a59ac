"""When a service says that nobody asks: the operator lets it sleep then."""

import time
from pathlib import Path

from rljob_api.spec.service import ServiceSpec
from rljob_trainer.gateway.main import service_report
from rljob_trainer.gateway.samples import Samples
from rljob_trainer.wire.rollout_client import ReplicaLost
from rljob_trainer.wire.rollout_server import SampleAnswer, SampleRequest
from trainer.gateway.world import World

IDLE = 60
SPEC = ServiceSpec(checkpoint_seconds=3600, idle_seconds=IDLE)


async def test_a_service_is_idle_when_its_newest_ranks_have_been_asked_for_nothing_for_so_long(tmp_path: Path) -> None:
    world = World(tmp_path, SPEC)

    def says(later: float) -> tuple[int, bool]:
        """The attempt, and whether it is idle `later` seconds from now."""
        samples = Samples(no_server, world.service.clock)
        report = service_report(world.service, samples, time.monotonic() + later)
        return report.attempt, report.idle

    for attempt in (1, 2):
        world.service.desk.tally.active -= 2 * IDLE  # it takes long to load the model
        await world.service.desk.next(str(attempt), False, 0.0, attempt)
        assert says(0.0) == (attempt, False) and says(IDLE + 5.0) == (attempt, True)
    await world.begin()
    assert says(2 * IDLE) == (2, False), "a request waits for ranks"
    await world.idle()
    assert says(IDLE - 5.0)[1] is False and says(IDLE + 5.0)[1] is True


async def no_server(_: SampleRequest) -> SampleAnswer:
    raise ReplicaLost("there is none")
