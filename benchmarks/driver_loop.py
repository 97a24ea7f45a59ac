"""How long the driver's event loop is busy with the responses of a step.

    python -m benchmarks.driver_loop [--requests N] [--servers N] [--tokens N] [--seconds N] [--layers N]

As many requests as `--requests` are begun at once, on servers of 256 samples each, which are stubs in a process of their own and answer within
`--seconds`: all are on their way at the same time if that is longer than the loop needs to send them, and if a process may open as many files.
Every response has `--tokens` tokens, becomes text, and is scored by the rule `number`. What counts is the processor's time of the loop's own thread,
so that other programs do not: its longest turn, in which nobody else is served (goal 0.1 s), and all turns together (goal 60 s a step).
"""

import argparse
import asyncio
import multiprocessing
import resource
import time
from multiprocessing.connection import Connection

import numpy as np
from aiohttp import web
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rljob_api.protocol import RolloutEndpoint
from rljob_api.spec import RLJobSpec
from rljob_trainer.collection import exempt_from_collection
from rljob_trainer.data.prompts import HeldOutSet, Prompt, PromptSet
from rljob_trainer.driver.buffer.generation import Generator
from rljob_trainer.driver.pool import RolloutPool
from rljob_trainer.rewards.manager import RewardManager
from rljob_trainer.wire.completions import MEDIA_TYPE, Completion, encode
from rljob_trainer.wire.weights.protocol import GENERATE, STATE, STEP_HEADER

SAMPLES = 256
"""Of a server at a time."""
LONGEST_SECONDS = 5.0
"""Within which a server answers."""
PROMPT_TOKENS, EXPERTS = 512, 8
"""Of a request; of a token in a layer."""


class TimedLoop(asyncio.SelectorEventLoop):
    """Adds up the processor's time of its turns."""

    busy = longest = 0.0
    turns = 0

    def _run_once(self) -> None:
        began = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        seconds = time.thread_time() - began
        self.busy, self.longest, self.turns = self.busy + seconds, max(self.longest, seconds), self.turns + 1


def tokenizer() -> PreTrainedTokenizerFast:
    """Of bytes, whose text of random tokens is as long as of words."""
    words = {word: number for number, word in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=words, merges=[]))
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


def serve(count: int, tokens: int, ready: Connection, longest: float = LONGEST_SECONDS, layers: int = 0) -> None:
    """Stubs, in a process of their own. Sends their ports. `layers`: those whose routed experts come with a response."""
    experts = np.ones((PROMPT_TOKENS + tokens - 1, layers, EXPERTS), np.uint8) if layers else None
    response = Completion(np.full(tokens, 64, np.int32), np.full(tokens, -1.0, np.float32), "stop", experts)
    body, chance = b"".join(encode([response]).pieces), np.random.default_rng(0)

    async def generate(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(chance.uniform(0.0, longest))
        return web.Response(body=body, content_type=MEDIA_TYPE, headers={STEP_HEADER: "0"})

    async def state(_: web.Request) -> web.Response:
        return web.json_response({"attempt": 1, "policy_step": 0, "digest": ""})

    async def run() -> None:
        application = web.Application(client_max_size=2**26)
        application.add_routes([web.post(GENERATE, generate), web.get(STATE, state)])
        runner = web.AppRunner(application)
        await runner.setup()
        sites = [web.TCPSite(runner, "127.0.0.1", 0, backlog=4096) for _ in range(count)]
        for site in sites:
            await site.start()
        ready.send([site._server.sockets[0].getsockname()[1] for site in sites])  # type: ignore[union-attr]
        await asyncio.Event().wait()

    asyncio.run(run())


async def serving(ports: list[int]) -> tuple[RolloutPool, asyncio.Task[None]]:
    """A pool of servers that have the policy, and what keeps it; cancel that, then close the pool."""
    servers = [RolloutEndpoint(pod=f"s-{p}", pod_uid=f"s-{p}", url=f"http://127.0.0.1:{p}") for p in ports]
    pool = RolloutPool("token", 1, len(servers), SAMPLES, lambda: None)
    await pool.follow(servers)
    probing = asyncio.create_task(pool.run())
    while len(pool.to_publish()) < len(servers):  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    await pool.published(0, servers, {})
    return pool, probing


async def step(spec: RLJobSpec, ports: list[int], prompts: PromptSet, words: PreTrainedTokenizerFast) -> None:
    (pool, probing), rewards = await serving(ports), RewardManager(spec.rewards)
    generator = Generator(spec, words, rewards, pool, lambda: None)
    await generator.evaluate([HeldOutSet("all", prompts, 1, spec.rollout.sampling)])
    probing.cancel()
    await pool.close()


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.driver_loop")
    parser.add_argument("--requests", type=int, default=12_288)
    parser.add_argument("--servers", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=LONGEST_SECONDS)
    parser.add_argument("--layers", type=int, default=0, help="with experts that are replayed")
    options = parser.parse_args()
    spec = RLJobSpec.model_validate(
        {
            "model": {"path": "/none"},
            "data": {"train": ["/none"]},
            "rewards": [{"rule": "number"}],
            "train": {"steps": 1},
            "checkpoint": {"path": "/none"},
            "image": "none",
        }
    )
    here, there = multiprocessing.Pipe()
    stubs = multiprocessing.Process(
        target=serve, args=(options.servers, options.tokens, there, options.seconds, options.layers), daemon=True
    )
    stubs.start()
    prompts = PromptSet(Prompt(i, (64,) * PROMPT_TOKENS, "question", "7", "set") for i in range(options.requests))
    words, loop = tokenizer(), TimedLoop()
    exempt_from_collection()
    held = _gigabytes()
    began = time.monotonic()
    loop.run_until_complete(step(spec, here.recv(), prompts, words))
    print(
        f"{options.requests:,} requests of {options.tokens:,} tokens on {options.servers} servers: the loop was busy for {loop.busy:.1f} s, "
        f"at most {loop.longest:.2f} s at a time, in {time.monotonic() - began:.0f} s, "
        f"with {_gigabytes() - held:.2f} GB more than before"
    )
    stubs.terminate()


def _gigabytes() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


if __name__ == "__main__":
    main()
