"""What weights take on their way: two buckets at each end, and a second copy of a worker's own shard where a server is to serve meanwhile."""

from typing import Any

import pytest

from api.specs import make_spec
from rljob_api.sizing.memory import GIB, phases
from rljob_api.sizing.network import NOTHING, owned, sync
from rljob_api.sizing.replica import (
    GPU_BUCKET,
    GPU_ROOM,
    HOST_ROOM,
    Arrival,
    FreeBytes,
    RolloutHost,
    arrival,
    in_transfer,
    rollout_host,
    where,
)
from rljob_api.sizing.shape import Shape
from rljob_api.sizing.traffic import links
from rljob_api.spec import RLJobSpec

LLAMA_70B = Shape(80, 8192, 64, 8, 128, 28672, 128256)
QWEN_235B = Shape(94, 4096, 64, 4, 128, 0, 151936, experts=128, experts_per_token=8, expert_feed_forward=1536)
H100 = 79 * GIB
OFFLOAD = {"parameters": True, "gradients": True, "optimizer": True}


def spec(
    nodes: int, parallelism: dict[str, int], rollout: dict[str, Any], lora: dict[str, Any] | None = None, **trainer: Any
) -> RLJobSpec:
    return make_spec(
        model={"path": "/data/model", "dtype": "bfloat16"} | ({"lora": lora} if lora else {}),
        trainer={"device": "gpu", "nodes": nodes, "processesPerNode": 8, "parallelism": parallelism} | trainer,
        rollout=rollout,
    )


@pytest.mark.parametrize(
    ("room", "found"),
    [
        (FreeBytes(gpu=10 + GPU_ROOM, host=0), "gpu"),
        (FreeBytes(gpu=9 + GPU_ROOM, host=10 + HOST_ROOM), "host"),
        (FreeBytes(gpu=0, host=9 + HOST_ROOM), "in place"),
    ],
)
def test_a_copy_is_where_there_is_room_for_it(room: FreeBytes, found: str) -> None:
    assert where(10, room) == found


def test_what_is_in_transfer_does_not_grow_with_the_model() -> None:
    apart = spec(8, {"tensor": 8}, {"tensorParallel": 8})
    assert in_transfer(apart, QWEN_235B) == 2 * max(GPU_BUCKET, 2 * 151936 * 4096)
    assert in_transfer(apart, LLAMA_70B) == 2 * 2 * 128256 * 8192, "the embedding is larger than a bucket"


@pytest.mark.parametrize(
    ("shape", "nodes", "parallelism"),
    [
        (LLAMA_70B, 8, {"tensor": 8}),
        (QWEN_235B, 64, {"tensor": 8, "pipeline": 2, "expert": 32, "expertTensor": 1}),
    ],
    ids=["70 B", "235 B"],
)
def test_a_large_model_is_updated_on_the_gpus_that_train_it(
    shape: Shape, nodes: int, parallelism: dict[str, int]
) -> None:
    """When every worker kept the whole update, these took 170 and 506 GiB."""
    job = spec(nodes, parallelism, {"placement": "colocated", "tensorParallel": 8}, offload=OFFLOAD)
    sync = next(phase for phase in phases(job, shape, H100) if phase.name == "sync")
    assert sync.total < H100


def test_a_rollout_pod_keeps_one_more_copy_of_its_model_in_host_memory() -> None:
    found = arrival(spec(8, {"tensor": 8}, {"tensorParallel": 8}), LLAMA_70B, H100)
    assert found.where == "host" and found.copies == 2 * LLAMA_70B.parameters


def test_the_host_of_a_rollout_pod_holds_the_next_policy_and_what_vllm_reads_from_there() -> None:
    plain = spec(8, {"tensor": 8}, {"tensorParallel": 8})
    copy = 2 * LLAMA_70B.parameters
    assert rollout_host(plain, LLAMA_70B, H100) == RolloutHost(copy, 0.0)
    moved = spec(8, {"tensor": 8}, {"tensorParallel": 8, "vllmArgs": {"cpu-offload-gb": 4}})
    assert rollout_host(moved, LLAMA_70B, H100).total == copy + 8 * 4 * GIB
    limits = {"template": {"resources": {"limits": {"memory": "200Gi"}}}}
    assert rollout_host(spec(8, {"tensor": 8}, {"tensorParallel": 8} | limits), LLAMA_70B, H100).arriving == copy
    given = {"tensorParallel": 8, "vllmArgs": {"cpu-offload-gb": 10}} | limits
    crowded = rollout_host(spec(8, {"tensor": 8}, given), LLAMA_70B, H100)
    assert crowded == RolloutHost(0.0, 8 * 10 * GIB), "the policy that is served is overwritten instead"


def test_a_small_model_waits_on_the_gpu_and_one_without_room_is_overwritten() -> None:
    small = Shape(28, 1536, 12, 2, 128, 8960, 151936, tied=True)
    leaves_room = {"vllmArgs": {"gpu-memory-utilization": 0.8}}
    assert arrival(spec(1, {}, leaves_room), small, H100).where == "gpu"
    limited = {"tensorParallel": 8, "template": {"resources": {"limits": {"memory": "64Gi"}}}}
    assert arrival(spec(8, {"tensor": 8}, limited), LLAMA_70B, H100).where == "in place"


@pytest.mark.parametrize("limits", [{}, {"template": {"resources": {"limits": {"memory": "64Gi"}}}}])
def test_adapters_alone_wait_in_host_memory_and_need_no_second_copy_of_the_model(limits: dict[str, Any]) -> None:
    """Each of eight workers keeps all: 80 layers x rank 32 x (inputs + outputs) of two matrices."""
    lora = {"rank": 32, "alpha": 64, "targets": ["linear_qkv", "linear_proj"], "sync": "adapters"}
    job = spec(8, {"tensor": 8}, {"tensorParallel": 8} | limits, lora=lora)
    adapters = 2 * 80 * 32 * (8192 + 10240 + 8192 + 8192)
    assert arrival(job, LLAMA_70B, H100) == Arrival("host", 8 * adapters)
    assert rollout_host(job, LLAMA_70B, H100) == RolloutHost(8 * adapters, 0.0)
    merged = spec(8, {"tensor": 8}, {"tensorParallel": 8} | limits, lora=lora | {"sync": "merged"})
    assert arrival(merged, LLAMA_70B, H100) == arrival(
        spec(8, {"tensor": 8}, {"tensorParallel": 8} | limits), LLAMA_70B, H100
    )


SERVICE = {"maxTokens": 64, "maxRank": 16, "maxSnapshots": 4}


def service(**settings: Any) -> RLJobSpec:
    model = {"path": "/data/model", "dtype": "bfloat16"}
    trainer = {"device": "gpu", "nodes": 2, "processesPerNode": 8, "parallelism": {"tensor": 8, "pipeline": 2}}
    rollout = {"tensorParallel": 8, "replicas": 2}
    return make_spec(task="service", service=SERVICE | settings, model=model, trainer=trainer, rollout=rollout)


def test_servers_of_a_service_keep_snapshots_of_adapters_and_get_no_policy() -> None:
    """Every worker has all adapters of each."""
    adapters = service()
    assert adapters.adapters
    snapshot = 2 * 80 * LLAMA_70B.adapters(adapters.adapters)
    assert arrival(adapters, LLAMA_70B, H100) == Arrival("host", 0.0)
    assert rollout_host(adapters, LLAMA_70B, H100) == RolloutHost(0.0, 0.0, 4 * 8 * snapshot)
    assert (sync(adapters, LLAMA_70B), in_transfer(adapters, LLAMA_70B)) == (NOTHING, 0.0)
    assert not [link for link in links(adapters, LLAMA_70B, 2) if link.kind == "weights" and link.bytes]


def test_rank_0_of_a_service_sends_whole_models() -> None:
    whole = service(maxRank=0, maxModels=1)
    assert owned(whole, LLAMA_70B) == {0: 2 * LLAMA_70B.parameters}
    assert sync(whole, LLAMA_70B).one == 2 * LLAMA_70B.parameters
    assert rollout_host(whole, LLAMA_70B, H100).snapshots == 0
