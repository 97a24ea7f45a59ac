"""Before an attempt's processes begin: model and data are on the volume. Node rank 0 fetches them in a process of its own, the others wait."""

import asyncio

from rljob_api.spec import RLJobSpec
from rljob_trainer.launcher.fork_client import ForkServer
from rljob_trainer.launcher.fork_server import ForkRequest
from rljob_trainer.sources.record import are_fetched, until_fetched

PROCESS = "rljob_trainer.sources.process"


async def obtain(spec: RLJobSpec, fork_server: ForkServer | None, request: ForkRequest, stop: asyncio.Event) -> bool:
    """Whether all sources of the job are there; False when `stop` came first, or when the process that fetches them failed and has said why.

    `fork_server`: has the process forked; None on nodes that wait. `request`: for that process.
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
