"""Fetches model and data to the volume before an attempt starts: node rank 0 in a process of its own, while the other nodes wait."""

import asyncio

from rljob_api.spec import RLJobSpec
from rljob_trainer.pod.fork_client import ForkServer
from rljob_trainer.pod.fork_server import ForkRequest
from rljob_trainer.sources.record import are_fetched, until_fetched

PROCESS = "rljob_trainer.sources.process"


async def obtain(spec: RLJobSpec, fork_server: ForkServer | None, request: ForkRequest, stop: asyncio.Event) -> bool:
    """Wait until all sources of the job are on the volume. Returns False when `stop` came first, or the process that fetches them failed; it has
    written why.

    `fork_server`: forks that process; None on nodes that only wait. `request`: for that process.
    """
    if await asyncio.to_thread(are_fetched, spec.sources.values()):
        return True
    stopped = asyncio.create_task(stop.wait())
    task = asyncio.create_task(_run(fork_server, request) if fork_server else _wait(spec))
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not task.done():
        if fork_server and fork_server.busy:
            await fork_server.kill_until_ended(task)
        task.cancel()
        return False
    return task.result()


async def _run(fork_server: ForkServer, request: ForkRequest) -> bool:
    await fork_server.ready()
    return await fork_server.run(request) == 0


async def _wait(spec: RLJobSpec) -> bool:
    await until_fetched(spec.sources.values)
    return True
