"""What vLLM's scheduler takes for a step in which every request draws a token: vLLM's own, and ours, whose outputs leave in pieces. On a CPU.

    python -m benchmarks.scheduling [--requests 256] [--steps 600] [--turns 3]

The scheduler is vLLM's, of the tiny shape; the engine's part is left out: tokens and log-probabilities are drawn by numpy. This is the thread that
limits generation on GPUs. `update` are microseconds of a step from the engine's output to what goes out, `encode` those that another thread takes to
encode it, holding the interpreter meanwhile, `schedule` those to choose the next step. Each is the least of the turns' medians.
"""

import argparse
import json
import statistics
import sys
import time
from typing import Any

import numpy as np

from benchmarks.shapes import model_of

BLOCK, LONGEST, PROMPT, WARM_STEPS = 16, 2304, 200, 40
KINDS = ("vllm", "vllm with log-probabilities", "in pieces with log-probabilities")
COLUMNS = ("schedule", "update", "encode")


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.scheduling")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    turns = [{kind: measured(kind, options) for kind in KINDS} for _ in range(options.turns)]
    for kind in KINDS:
        least = {name: round(min(turn[kind][name] for turn in turns)) for name in COLUMNS}
        print(json.dumps({"what": kind, "requests": options.requests} | least), flush=True)
    return 0


def measured(kind: str, options: argparse.Namespace) -> dict[str, float]:
    """Medians over the steps, in microseconds."""
    from vllm.v1.serial_utils import MsgpackEncoder

    asked = kind != KINDS[0]
    scheduler, encoder = scheduler_of(kind, options.requests), MsgpackEncoder()
    add_requests(scheduler, options.requests, asked)
    draw, before = np.random.default_rng(0), scheduler.schedule()
    times: list[tuple[float, ...]] = []
    for _ in range(options.steps):
        marks = [time.perf_counter()]
        scheduled = scheduler.schedule()
        marks.append(time.perf_counter())
        computed = output_of(list(before.num_scheduled_tokens), asked, draw)
        marks.append(time.perf_counter())
        found = scheduler.update_from_output(before, computed)
        marks.append(time.perf_counter())
        for outputs in found.values():
            encoder.encode(outputs)
        marks.append(time.perf_counter())
        times.append((marks[1] - marks[0], marks[3] - marks[2], marks[4] - marks[3]))
        before = scheduled
    medians = map(statistics.median, zip(*times[WARM_STEPS:], strict=True))
    return {name: 1e6 * median for name, median in zip(COLUMNS, medians, strict=True)}


def scheduler_of(kind: str, requests: int) -> Any:
    """As vLLM makes its own for a GPU, which schedules a step while the one before runs."""
    import torch
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    from rljob_trainer.server.compat.scheduler import AsyncSchedulerInPieces

    model = str(model_of("tiny"))
    config = VllmConfig(
        model_config=ModelConfig(model=model, max_model_len=LONGEST, dtype="float32", skip_tokenizer_init=True),
        cache_config=CacheConfig(block_size=BLOCK),
        scheduler_config=SchedulerConfig(
            max_num_seqs=requests,
            max_num_batched_tokens=requests * PROMPT,
            max_model_len=LONGEST,
            is_encoder_decoder=False,
            async_scheduling=True,
        ),
    )
    blocks = config.cache_config.num_gpu_blocks = requests * LONGEST // BLOCK + 1
    layer = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return (AsyncSchedulerInPieces if kind == KINDS[2] else AsyncScheduler)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)]
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        hash_block_size=BLOCK,
        log_stats=True,
    )


def add_requests(scheduler: Any, requests: int, asked: bool) -> None:
    """As server/generate.py asks."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK, sha256)
    form = {"logprobs": 0, "flat_logprobs": True} if asked else {}
    for i in range(requests):
        sampling = SamplingParams(
            max_tokens=LONGEST - PROMPT, seed=i, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY, **form
        )
        scheduler.add_request(Request(f"{i}_{i * 7919:016x}", [1] * PROMPT, sampling, None, block_hasher=hasher))


def output_of(requests: list[str], asked: bool, draw: np.random.Generator) -> Any:
    """What the engine hands to the scheduler."""
    from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput

    count = len(requests)
    tokens = draw.integers(0, 8192, (count, 1))
    rows = LogprobsLists(tokens, draw.random((count, 1), np.float32), np.ones(count, np.int64)) if asked else None
    return ModelRunnerOutput(
        req_ids=requests,
        req_id_to_index={name: i for i, name in enumerate(requests)},
        sampled_token_ids=tokens.tolist(),
        logprobs=rows,
    )


if __name__ == "__main__":
    sys.exit(main())
