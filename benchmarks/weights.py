"""Weights from the trainer to a vLLM server: our whole update beside a plain broadcast of the same bytes.

    python -m benchmarks.weights [--size NAME] [--device gpu|cpu] [--placement separate|colocated] [--servers N] [--repeats N]

On GPUs: two of one host, or one, where they are colocated (without the broadcast). The update is what `python -m rljob_trainer run` does after each
step: export from megatron-core in one process, to servers in others, verified on both ends and applied. `--servers N`: each on a GPU of its own.
Prints one JSON line per measurement, with the seconds until servers were connected, had received everything, and served it.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.shapes import MODELS, model_of
from benchmarks.training import torchrun
from rljob_api import names
from rljob_api.protocol import RolloutEndpoint
from rljob_api.spec import RLJobSpec
from rljob_trainer.machine import free_port, gpus
from rljob_trainer.pod.arguments import server_arguments, server_environment

TOKEN = "benchmark"
READY_SECONDS = 300
GPU_ARGUMENTS = {"enforce-eager": True, "gpu-memory-utilization": 0.3}


@cache
def port(number: int) -> int:
    """Of this run's servers."""
    return free_port()


def endpoint(number: int) -> RolloutEndpoint:
    return RolloutEndpoint(pod=f"rollout-{number}", pod_uid=f"uid-{number}", url=f"http://127.0.0.1:{port(number)}")


ENDPOINT = endpoint(0)


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.weights")
    parser.add_argument("--size", choices=list(MODELS), default="1.5b")
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--placement", choices=["separate", "colocated"], default="separate")
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--plain", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain:
        broadcast(options.plain, options.device)
        return 0
    job = spec(model_of(options.size), options.device, options.placement)
    with ThreadPoolExecutor(options.servers) as pool, ExitStack() as stack:
        starting = [pool.submit(stack.enter_context, server(job, n)) for n in range(options.servers)]
        for future in starting:
            future.result()
        size = update(job, options.servers, options.repeats)
    if options.placement == "colocated":
        return 0
    command = [sys.executable, *torchrun(2)]
    plain = ["-m", "benchmarks.weights", "--plain", str(size), "--device", options.device]
    subprocess.run([*command, *plain], check=True, timeout=200)
    return 0


def gpu_of_server(job: RLJobSpec, number: int) -> str:
    """Of a trainer on the first."""
    if job.trainer.device == "cpu":
        return ""
    return gpus()[0 if job.rollout.placement == "colocated" else 1 + number]


def spec(model: Path, device: str, placement: str) -> RLJobSpec:
    return RLJobSpec.model_validate(
        {
            "image": "none",
            "model": {"path": str(model), "dtype": "bfloat16"},
            "data": {"train": ["/none"], "maxPromptTokens": 1024},
            "rewards": [{"rule": "exactMatch"}],
            "train": {"steps": 1, "promptsPerStep": 2, "samplesPerPrompt": 2},
            "trainer": {"device": device},
            "rollout": {
                "placement": placement,
                "sampling": {"maxTokens": 1024},
                "vllmArgs": GPU_ARGUMENTS if device == "gpu" else {},
            },
            "checkpoint": {"path": "/tmp/none"},
        }
    )


@contextmanager
def server(job: RLJobSpec, number: int = 0) -> Any:
    """One rollout server, as the supervisor starts it."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": gpu_of_server(job, number), names.ENV_ROLLOUT_TOKEN: TOKEN}
    command = [sys.executable, "-m", "rljob_trainer.server.server", *server_arguments(job, port(number))]
    log = Path(tempfile.mkstemp(prefix=f"weights-server-{number}-", suffix=".log")[1])
    began = time.monotonic()
    process = subprocess.Popen(
        command, env=server_environment(job, 1, environment), stdout=log.open("wb"), stderr=subprocess.STDOUT
    )
    try:
        while not healthy(number):
            if process.poll() is not None or time.monotonic() - began > READY_SECONDS:
                raise RuntimeError(log.read_text()[-5000:])
            time.sleep(0.5)
        say(what="server", seconds_to_ready=round(time.monotonic() - began, 1))
        yield
    except BaseException:
        print(log.read_text()[-5000:])
        raise
    finally:
        process.terminate()
        process.wait(60)
        log.unlink()


def healthy(number: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"{endpoint(number).url}/health", timeout=5) as answer:
        return answer.status == 200
    return False


def update(job: RLJobSpec, servers: int, repeats: int) -> int:
    """Publish several times to so many servers; the bytes of one update."""
    import torch
    import torch.distributed as dist

    from rljob_trainer.megatron import compat

    compat.install()
    torch.set_num_threads(1)  # as a rank of a job
    gpu = job.trainer.device == "gpu"
    if gpu:
        torch.cuda.set_device(0)
    store = dist.HashStore()
    dist.init_process_group("nccl" if gpu else "gloo", store=store, rank=0, world_size=1, timeout=timedelta(seconds=60))
    from rljob_trainer.megatron.engine import Engine
    from rljob_trainer.rank.weights.publisher import OpenUpdate, Publisher
    from rljob_trainer.wire.weights.transport import transport_of

    engine = Engine(job, lambda: None)
    size = sum(tensor.nbytes for _, tensor in engine.export())
    publisher = Publisher(1, TOKEN, transport_of(job, "127.0.0.1"))
    tensors = [(name, tensor.clone()) for name, tensor in engine.export()]
    cases: dict[str, tuple[Any, list[RolloutEndpoint]]] = {
        "export": (engine.export, []),
        "update from tensors": (lambda: iter(tensors), list(map(endpoint, range(servers)))),
        "update from the engine": (engine.export, list(map(endpoint, range(servers)))),
    }
    opening, applying = seconds_of(OpenUpdate, "open"), seconds_of(OpenUpdate, "commit")
    for what, (source, targets) in cases.items():
        times = []
        for step in range(repeats):
            began = time.perf_counter()
            published = publisher.publish(step, source(), targets, lambda: None)
            times.append(time.perf_counter() - began)
            if published.failed:
                raise RuntimeError(str(published.failed))
        best = min(times[1:])
        say(
            what=what,
            gigabytes=round(size / 1e9, 3),
            seconds=rounded(times),
            gigabytes_per_s=round(size / best / 1e9, 2),
            servers=len(targets),
            opening=rounded(opening[-repeats:]),
            applying=rounded(applying[-repeats:]),
        )
    for number in range(servers):
        say(what="served", log_probs=asyncio.run(generated(endpoint(number))))
    dist.destroy_process_group()
    return size


def seconds_of(owner: type, method: str) -> list[float]:
    """What calls of a method take from now on, in their order."""
    calls, original = [], getattr(owner, method)

    def timed(*args: Any) -> Any:
        began = time.perf_counter()
        try:
            return original(*args)
        finally:
            calls.append(time.perf_counter() - began)

    setattr(owner, method, timed)
    return calls


async def generated(endpoint: RolloutEndpoint) -> list[float]:
    """The server still answers: log-probabilities of a few tokens."""
    from rljob_api.spec.common import Sampling
    from rljob_trainer.wire.rollout_client import GenerationRequest, RolloutClient

    async with RolloutClient(endpoint, TOKEN, 1) as client:
        (answer,) = await client.generate(GenerationRequest(tuple(range(100, 120)), 1, Sampling(max_tokens=4), seed=1))
    return [round(float(p), 3) for p in answer.log_probs]


def broadcast(size: int, device: str) -> None:
    """One rank of two: a broadcast of so many bytes in buckets of the publisher's size."""
    import torch
    import torch.distributed as dist

    from rljob_trainer.wire.weights.transport import over_nccl, over_tcp

    rank = int(os.environ["RANK"])
    gpu = device == "gpu"
    if gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if gpu else "gloo", timeout=timedelta(seconds=60))
    where = torch.device("cuda", rank) if gpu else torch.device("cpu")
    bucket = (over_nccl if gpu else over_tcp)("").bucket_bytes
    parts = [torch.zeros(min(bucket, size - i), dtype=torch.uint8, device=where) for i in range(0, size, bucket)]
    times = []
    for _ in range(5):
        dist.barrier()
        began = time.perf_counter()
        for part in parts:
            dist.broadcast(part, 0)
        if gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    if rank == 0:
        say(what="plain broadcast", seconds=rounded(times), gigabytes_per_s=round(size / min(times[1:]) / 1e9, 2))
    dist.destroy_process_group()


def rounded(times: list[float]) -> list[float]:
    return [round(t, 4) for t in times]


def say(**row: Any) -> None:
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    sys.exit(main())
