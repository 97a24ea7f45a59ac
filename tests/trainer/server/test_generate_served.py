"""The generate route before vLLM's engine: what it answers is what vLLM's own route answers."""

import asyncio
import contextlib
import json
import re
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljob_api.spec.common import Sampling
from rljob_api.spec.train import EvaluationSampling
from rljob_trainer.rank.weights.publisher import Publisher
from rljob_trainer.server.generate import NEUTRAL
from rljob_trainer.wire.completions import Completion, decode, encode
from rljob_trainer.wire.rollout_client import Generation, GenerationRequest, RequestRefusedError, RolloutClient
from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.protocol import SERVED_MODEL
from rljob_trainer.wire.weights.transport import over_tcp
from trainer.server import models
from trainer.server.servers import TOKEN, Server

pytestmark = pytest.mark.slow

PROMPT = (2, 30, 4, 50)
SECONDS, TRIES = 600, 40
"""Many times what anything takes."""
LATENCIES = "vllm:inter_token_latency_seconds_count"
"""Of it: outputs of the engine's after the first of their request."""
LONGEST = Sampling(temperature=2.0, max_tokens=100)


@pytest.fixture(scope="module")
def server(start: Callable[..., Server], checkpoints: dict[str, Path]) -> Server:
    """It serves the policy of step 3."""
    server = start(checkpoints["old"])
    publisher = Publisher(1, TOKEN, over_tcp("127.0.0.1"))
    assert publisher.publish(3, iter(models.tensors(checkpoints["old"])), [server.endpoint], lambda: None).ok
    return server


def client(server: Server) -> RolloutClient:
    return RolloutClient(server.endpoint, TOKEN, 1)


async def generate(server: Server, n: int, sampling: Sampling, prompt: tuple[int, ...] = PROMPT) -> list[Generation]:
    async with client(server) as asking:
        return await asking.generate(GenerationRequest(prompt, n, sampling, seed=11))


def complete(server: Server, n: int, sampling: Sampling) -> list[Generation]:
    """The same by vLLM's own route."""
    body: dict[str, Any] = {"model": SERVED_MODEL, "prompt": PROMPT, "n": n, "seed": 11, "logprobs": 0}
    body |= {"temperature": sampling.temperature, "max_tokens": sampling.max_tokens, "return_token_ids": True}
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    data = json.dumps(NEUTRAL | body).encode()
    request = urllib.request.Request(server.endpoint.url + protocol.COMPLETIONS, data, headers)
    with urllib.request.urlopen(request, timeout=SECONDS) as response:
        choices = sorted(json.load(response)["choices"], key=lambda c: c["index"])
        step = int(response.headers[protocol.STEP_HEADER])
    found = [Completion(c["token_ids"], c["logprobs"]["token_logprobs"], c["finish_reason"]) for c in choices]
    return [Generation(*drawn[:3], step) for drawn in decode(np.frombuffer(b"".join(encode(found).pieces), np.uint8))]


def without_log_probs(generation: Generation) -> tuple[tuple[int, ...], str, int]:
    """Tokens, reason of the end, and policy."""
    g = generation
    return tuple(g.tokens.tolist()), g.finish_reason, g.policy_step


@pytest.mark.parametrize(("n", "temperature"), [(4, 1.0), (4, 2.0), (1, 1.0), (1, 0.0)])
async def test_it_answers_what_vllm_s_route_answers(server: Server, n: int, temperature: float) -> None:
    """One response bit by bit. Of several, log-probabilities depend in their last bits on which of them the engine computes together."""
    sampling = Sampling(temperature=temperature, max_tokens=60)
    ours = await generate(server, n, sampling)
    theirs = await asyncio.to_thread(complete, server, n, sampling)
    assert [*map(without_log_probs, ours)] == [*map(without_log_probs, theirs)]
    for own, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(own.log_probs, other.log_probs, rtol=0, atol=0 if n == 1 else 1e-5)
    assert len({without_log_probs(g)[0] for g in ours}) == n and {g.policy_step for g in ours} == {3}


async def test_a_response_ends_with_the_text_that_stops_it_and_is_the_same_up_to_there(server: Server) -> None:
    """Its tokens are there and have the log-probabilities that they have without the text."""
    sampling = Sampling(temperature=1.0, max_tokens=60)
    (whole,) = await generate(server, 1, sampling)
    text = f"w{whole.tokens[9]}"
    end = next(i for i, token in enumerate(whole.tokens) if text in f"w{token}") + 1
    (stopped,) = await generate(server, 1, sampling.model_copy(update={"stop": [text, "never said"]}))
    assert stopped.finish_reason == "stop" and 1 <= end <= 10
    assert stopped.tokens.tolist() == whole.tokens[:end].tolist()
    assert stopped.log_probs.tobytes() == whole.log_probs[:end].tobytes()


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
async def test_an_evaluation_may_sample_from_the_most_probable_tokens_only(server: Server, narrow: dict) -> None:
    (greedy,) = await generate(server, 1, Sampling(temperature=0.0, max_tokens=20))
    sampling = EvaluationSampling(temperature=1.0, max_tokens=20, **narrow)
    assert {tuple(g.tokens.tolist()) for g in await generate(server, 4, sampling)} == {tuple(greedy.tokens.tolist())}


async def test_tokens_leave_the_engine_in_pieces(server: Server) -> None:
    tokens, pieces = await generated(server), _metric(server, LATENCIES)
    drawn = sum(len(g.tokens) for g in await generate(server, 8, LONGEST))
    assert await generated(server) - tokens == drawn
    assert 8 <= _metric(server, LATENCIES) - pieces < drawn / 8


@pytest.mark.parametrize(
    ("prompt", "n", "says"),
    [
        ((2,) * 201, 1, "do not fit into max-model-len 300"),
        ((), 1, "prompt cannot be empty"),
        ((models.VOCABULARY + 1000,), 1, "out of vocabulary"),
        (PROMPT, 0, "n must be at least 1"),
    ],
)
async def test_a_wrong_request_is_refused_with_the_reason(
    server: Server, prompt: tuple[int, ...], n: int, says: str
) -> None:
    with pytest.raises(RequestRefusedError, match=says):
        await generate(server, n, LONGEST, prompt)


async def interrupted(server: Server) -> list[Generation]:
    """Responses that an interruption ends while they are drawn."""
    asked = asyncio.create_task(generate(server, 8, LONGEST))
    async with client(server) as interrupting:
        await asyncio.to_thread(until, lambda: running(server) > 0 or asked.done())
        await interrupting.interrupt()
    return await asyncio.wait_for(asked, SECONDS)


async def test_an_interruption_answers_all_that_there_is_of_every_response(server: Server) -> None:
    whole = await generate(server, 8, LONGEST)
    answers, cut = list[list[Generation]](), list[list[int]]()
    while len(answers) < 4 or not any(len(lengths) > 4 for lengths in cut):
        assert len(answers) < TRIES, "they were always complete before the interruption"
        answers.append(await interrupted(server))
        cut.append([len(part.tokens) for part in answers[-1] if part.finish_reason == "abort"])
    for part, response in (pair for found in answers for pair in zip(found, whole, strict=True)):
        drawn, whole_response = part.tokens.tolist(), response.tokens.tolist()
        assert len(drawn) == len(part.log_probs) and drawn == whole_response[: len(drawn)]
        assert part.finish_reason == "abort" or drawn == whole_response
    print(f"\ncut off after {cut} tokens")
    spread = min(max(lengths) - min(lengths) for lengths in cut if len(lengths) > 4)
    assert spread <= 3, "they were begun together: what the engine held back of some is there as well"


async def test_a_client_that_leaves_ends_its_generation(server: Server) -> None:
    before = await generated(server)
    whole = sum(len(g.tokens) for g in await generate(server, 16, LONGEST))
    assert await generated(server) - before == whole
    assert any([await left(server) < whole for _ in range(4)])


async def left(server: Server) -> int:
    """Tokens that were generated for a client that left when they had begun."""
    before = await generated(server)
    asked = asyncio.create_task(generate(server, 16, LONGEST))
    await asyncio.to_thread(until, lambda: running(server) > 0 or asked.done())
    asked.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asked
    return await generated(server) - before


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def running(server: Server) -> int:
    return _metric(server, "vllm:num_requests_running")


async def generated(server: Server) -> int:
    """Tokens so far. The engine's loop counts a token after it has been answered, and its request as ended at the same time."""
    await asyncio.to_thread(until, lambda: not running(server))
    return _metric(server, "vllm:generation_tokens_total")


def _metric(server: Server, name: str) -> int:
    found = re.search(rf"^{name}{{.*}} (.*)$", server.get("/metrics")[1], re.MULTILINE)
    assert found, name
    return int(float(found[1]))
