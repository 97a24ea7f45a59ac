"""What it is worth that all turns of a trajectory go to the server that holds its prefix: real vLLM servers on CPU, and agents of many turns.

    python -m benchmarks.sticky_turns [--servers N] [--agents N] [--turns N] [--rounds N] [--pause SECONDS]

Both ways run against the same servers in turns: `home` keeps the server of a trajectory (driver/slots.py), `anywhere` chooses one for each turn as
for any other request. Every trajectory has a prompt of its own, so that nothing is in a cache before its first turn. Prints, for each round, the part
of all prompt tokens that was not computed again, and generated tokens per second.
"""

import argparse
import asyncio
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rljob_api import names
from rljob_api.protocol import RolloutEndpoint
from rljob_api.spec.common import Sampling
from rljob_trainer.driver.pool import RolloutPool
from rljob_trainer.driver.slots import Home
from rljob_trainer.machine import free_port
from rljob_trainer.pod.arguments import server_arguments, server_environment
from rljob_trainer.pod.supervisor import with_targets_of_its_model
from rljob_trainer.rank.weights.publisher import Publisher
from rljob_trainer.wire.rollout_client import GenerationRequest
from rljob_trainer.wire.weights.transport import over_tcp
from trainer.server import models
from trainer.server.servers import TOKEN, Server, spec

PROMPT, WRITTEN, SAID = 200, 16, 48
"""Tokens of a prompt, of a turn, and of what the agent says behind it."""
BLOCK = 32
"""Tokens of a block of the cache: what is not a whole one is computed again."""


def make_model(path: Path) -> Path:
    """A random model for which reading a prompt takes longer than a request."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=models.VOCABULARY, hidden_size=512, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=4096, eos_token_id=None, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(path)
    models.save_tokenizer(path)
    return path


@contextmanager
def served(model: Path, length: int, number: int) -> Iterator[Server]:
    """One server, of sequences up to so many tokens."""
    arguments = {"block-size": BLOCK, "max-num-seqs": 64}
    job = spec(model, vllmArgs=arguments, sampling={"maxTokens": length})
    port, log = free_port(), model.parent / f"server-{number}.log"
    environment = server_environment(job, 1, os.environ) | {names.ENV_ROLLOUT_TOKEN: TOKEN}
    command = [sys.executable, "-m", "rljob_trainer.server.server"]
    with log.open("w") as stream:
        process = subprocess.Popen(
            [*command, *server_arguments(with_targets_of_its_model(job), port)],
            env=environment, stdout=stream, stderr=stream, start_new_session=True,
        )  # fmt: skip
    endpoint = RolloutEndpoint(pod=f"rollout-{number}", pod_uid=f"uid-{number}", url=f"http://127.0.0.1:{port}")
    server = Server(endpoint, process.pid, log)
    try:
        server.wait()
        yield server
    finally:
        server.kill()
        process.wait(120)


async def trajectory(pool: RolloutPool, chance: random.Random, turns: int, pause: float, sticky: bool) -> int:
    """The tokens that were generated."""
    context, home, written = [chance.randrange(2, models.VOCABULARY) for _ in range(PROMPT)], Home(), 0
    for turn in range(turns):
        request = GenerationRequest(context, 1, Sampling(max_tokens=WRITTEN), turn)
        (answer,) = await pool.generate(request, home if sticky else Home())
        said = [chance.randrange(2, models.VOCABULARY) for _ in range(SAID)]
        context, written = context + answer.tokens.tolist() + said, written + len(answer.tokens)
        await asyncio.sleep(pause * chance.random())
    return written


def cached(servers: Sequence[Server]) -> tuple[float, float]:
    """Tokens of prompts that the servers were asked for, and those of them that they did not compute again."""
    texts = [server.get("/metrics")[1] for server in servers]
    found = [
        [float(number) for text in texts for number in re.findall(rf"^vllm:prefix_cache_{name}_total{{.*}} (.*)$", text, re.MULTILINE)]
        for name in ("queries", "hits")
    ]  # fmt: skip
    return sum(found[0]), sum(found[1])


async def round_of(
    pool: RolloutPool, servers: Sequence[Server], options: argparse.Namespace, sticky: bool, seed: int
) -> tuple[float, float]:
    """The part of prompt tokens that was cached, and generated tokens per second."""
    before, began = await asyncio.to_thread(cached, servers), time.monotonic()
    chances = [random.Random(f"{seed}-{sticky}-{i}") for i in range(options.agents)]
    written = await asyncio.gather(*(trajectory(pool, c, options.turns, options.pause, sticky) for c in chances))
    seconds = time.monotonic() - began
    await asyncio.sleep(1.0)  # the servers count a little later
    after = await asyncio.to_thread(cached, servers)
    return (after[1] - before[1]) / (after[0] - before[0]), sum(written) / seconds


async def measure(model: Path, servers: Sequence[Server], options: argparse.Namespace) -> None:
    endpoints = [server.endpoint for server in servers]
    publisher, pool = Publisher(1, TOKEN, over_tcp("127.0.0.1")), RolloutPool(TOKEN, 1, len(servers), 64, lambda: None)
    published = (0, iter(models.tensors(model)), endpoints, lambda: None)
    assert (await asyncio.to_thread(publisher.publish, *published)).ok
    await pool.follow(endpoints)
    await pool.published(0, endpoints, {})
    found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for seed in range(options.rounds + 1):  # the first does not count
        for sticky in (False, True) if seed % 2 else (True, False):
            part, rate = await round_of(pool, servers, options, sticky, seed)
            if seed:
                found[sticky].append((part, rate))
                print(f"{'home' if sticky else 'anywhere'}: {part:.1%} cached, {rate:.1f} tokens/s", flush=True)
    for sticky, numbers in found.items():
        part, rate = (statistics.median(column) for column in zip(*numbers, strict=True))
        print(f"median, {'home' if sticky else 'anywhere'}: {part:.1%} cached, {rate:.1f} tokens/s")
    await pool.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.5)
    options = parser.parse_args()
    length = options.turns * (WRITTEN + SAID) + PROMPT
    with tempfile.TemporaryDirectory(prefix="rljob-bench-turns-") as directory, ExitStack() as stack:
        model = make_model(Path(directory) / "model")
        servers = [stack.enter_context(served(model, length, i)) for i in range(options.servers)]
        asyncio.run(measure(model, servers, options))


if __name__ == "__main__":
    main()
