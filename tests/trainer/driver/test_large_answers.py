"""What the driver's event loop does with an answer of 50 MB: nobody else is served meanwhile."""

import multiprocessing

from benchmarks.driver_loop import EXPERTS, PROMPT_TOKENS, TimedLoop, serve, serving
from rljob_api.spec.common import Sampling
from rljob_trainer.wire.rollout_client import Generation, GenerationRequest

TOKENS, LAYERS = 65_024, 94
LONGEST = 0.1
"""Seconds of the processor."""


async def generated(ports: list[int]) -> Generation:
    pool, probing = await serving(ports)
    (answer,) = await pool.generate(GenerationRequest((64,) * PROMPT_TOKENS, 1, Sampling(max_tokens=TOKENS), 0))
    probing.cancel()
    await pool.close()
    return answer


def test_the_experts_of_a_long_response_hold_up_the_loop_for_no_tenth_of_a_second() -> None:
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(1, TOKENS, there, 0.0, LAYERS), daemon=True
    )
    server.start()
    loop = TimedLoop()
    try:
        answer = loop.run_until_complete(generated(here.recv()))
    finally:
        server.kill()
        server.join()
        loop.close()
    assert answer.routed_experts is not None and answer.routed_experts.shape == (
        PROMPT_TOKENS + TOKENS - 1,
        LAYERS,
        EXPERTS,
    )
    assert answer.routed_experts.all() and len(answer.tokens) == TOKENS
    assert loop.longest < LONGEST
