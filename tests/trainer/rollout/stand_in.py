"""What the supervisor sees of a server, without vLLM: `python -m trainer.rollout.stand_in <arguments>`.

`--max-num-seqs` steers it: 1 ends at once like argparse does on a wrong argument, 2 ends with 0 after it has answered for a moment and
leaves a child behind that holds its output open, as vLLM's engine does. 5 has a process that is called as vLLM's engine, 6 as well, and
answers nothing, as while it loads a model.
Its answers say the highest attempt it has seen.
"""

import asyncio
import os
import sys
import time

from aiohttp import web
from setproctitle import setproctitle

from rljob_api import names
from rljob_trainer.weights.protocol import ATTEMPT_HEADER, HEALTH

highest = int(os.environ.get(names.ENV_ATTEMPT, "0"))


async def state(request: web.Request) -> web.Response:
    global highest
    highest = max(highest, int(request.headers[ATTEMPT_HEADER]))
    return web.json_response({"attempt": highest})


async def health(_: web.Request) -> web.Response:
    return web.json_response({"silence": 0.0, "updating": False})


def fork_engine() -> None:
    """What the server leaves alone once it is there."""
    if os.fork() == 0:
        setproctitle("VLLM::EngineCore")
        time.sleep(3600)


async def main(port: int, behaviour: str) -> None:
    print("started with", sys.argv[1:3], "by attempt", highest, flush=True)
    application = web.Application()
    application.add_routes([web.get("/rljob/state", state), web.get(HEALTH, health)])
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    if behaviour == "2":
        await asyncio.create_subprocess_exec("sleep", "3600")
        await asyncio.sleep(0.5)
        os._exit(0)
    await asyncio.sleep(3600)


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else ""


if __name__ == "__main__":
    if option("--max-num-seqs") == "1":
        print("error: argument --max-num-seqs: 1 is not enough", flush=True)
        sys.exit(2)
    if option("--max-num-seqs") in ("5", "6"):
        fork_engine()
    if option("--max-num-seqs") == "6":
        time.sleep(3600)
    asyncio.run(main(int(option("--port")), option("--max-num-seqs")))
