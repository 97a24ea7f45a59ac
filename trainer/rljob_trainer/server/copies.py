"""Servers with data-parallel copies of their model. vLLM has an engine for each copy, and one client of all of them in the API server, which spreads
requests, and passes everything else to all (0.32, v1/engine/core_client.py, DPLBAsyncMPClient). `engine`: vLLM's AsyncLLM."""

from typing import Any


def copies(engine: Any) -> int:
    """How many the server has."""
    return int(engine.vllm_config.parallel_config.data_parallel_size)


async def all_workers(engine: Any, method: str, *args: Any) -> list[Any]:
    """Call a method of all workers of all copies. Returns their answers, copy by copy; AsyncLLM.collective_rpc has those of the first copy only.

    Raises what one of them raises.
    """
    answers = await engine.engine_core.call_utility_all_async("collective_rpc", method, None, args, None)
    return [answer for workers in answers for answer in workers]


async def moves(engine: Any) -> None:
    """Returns when the engines of all copies have answered, which they do between two of their steps. Raises when one has failed."""
    await engine.engine_core.call_utility_all_async("is_scheduler_paused")
