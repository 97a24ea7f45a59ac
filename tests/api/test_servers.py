"""Servers that consist of several pods: how many there are, and what each has, holds and sends."""

from typing import Any

import pytest

from api.specs import make_spec, raw_spec
from rljob_api.rules import validate
from rljob_api.sizing import network
from rljob_api.sizing.layout import required_pods, required_servers, servers_per_pod, wanted_servers
from rljob_api.sizing.memory import GIB, cache_memory, rollout_memory
from rljob_api.sizing.replica import arrival, parameters, sent_per_token, sequences, server_defaults
from rljob_api.sizing.shape import Shape
from rljob_api.spec import RLJobSpec
from rljob_api.spec.processes import Servers

SERVERS = {"replicas": 3, "minReplicas": 2, "nodes": 4, "tensorParallel": 8, "pipelineParallel": 2}


def test_pods_are_counted_by_servers_and_their_nodes_and_servers_by_replicas() -> None:
    pool = {"name": "judge", "model": "/judge", "replicas": 2, "nodes": 2, "tensorParallel": 2}
    spec = make_spec(rollout=SERVERS, pools=[pool], rewards=[{"vllm": {"pool": "judge"}}])
    assert spec.pod_counts == {"trainer": 1, "rollout": 12, "judge": 4}
    assert required_pods(spec) == {"trainer": 1, "rollout": 8, "judge": 4}
    assert (wanted_servers(spec), required_servers(spec)) == (3, 2)


def test_a_pod_has_its_share_of_the_gpus_of_its_server() -> None:
    spec = make_spec(trainer={"device": "gpu"}, rollout=SERVERS)
    assert spec.rollout.gpus == 16
    assert spec.container_resources("rollout") == {"limits": {"nvidia.com/gpu": "4"}}


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("nnodes", 2, "nodes"),
        ("node-rank", 1, "nodes"),
        ("master-addr", "10.0.0.1", "nodes"),
        ("tensor-parallel-size", 2, "tensorParallel"),
        ("pipeline-parallel-size", 2, "pipelineParallel"),
        ("data-parallel-size", 2, "dataParallel"),
        ("data-parallel-rpc-port", 2, "dataParallel"),
        ("enable-expert-parallel", True, "expertParallel"),
    ],
)
def test_arguments_of_vllm_that_cut_a_server_are_fields(key: str, value: object, field: str) -> None:
    pool = {"name": "judge", "model": "/judge", "vllmArgs": {key: value}}
    spec = raw_spec(rollout={"vllmArgs": {key: value}}, pools=[pool], rewards=[{"vllm": {"pool": "judge"}}])
    rules = {v.field: v.rule for v in validate(spec, "demo").violations}
    assert rules == {
        f"spec.rollout.vllmArgs.{key}": f"this key is set by spec.rollout.{field}",
        f"spec.pools[0].vllmArgs.{key}": f"this key is set by the pool's {field}",
    }


def test_a_server_whose_gpus_its_pods_cannot_share_is_refused_with_its_numbers() -> None:
    spec = raw_spec(rollout={"nodes": 3, "tensorParallel": 4, "pipelineParallel": 2})
    (violation,) = validate(spec, "demo").violations
    assert str(violation) == (
        "spec.rollout.nodes = 3: the GPUs of a server, the product of tensorParallel = 4, pipelineParallel = 2 and "
        "dataParallel = 1, cannot be shared equally by so many pods; choose a divisor of that product"
    )


def test_each_pod_has_whole_data_parallel_copies() -> None:
    """Whether or not the GPUs could be shared by more pods."""
    spec = raw_spec(rollout={"nodes": 4, "tensorParallel": 2, "dataParallel": 2, "expertParallel": True})
    (violation,) = validate(spec, "demo").violations
    assert str(violation) == (
        "spec.rollout.nodes = 4: each pod of a server with data-parallel copies has as many whole ones as the others, and "
        "dataParallel = 2 is not divisible by it; choose a divisor of spec.rollout.dataParallel"
    )


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_experts_are_spread_over_the_gpus_of_all_copies(device: str) -> None:
    wide = {"nodes": 2, "tensorParallel": 2, "dataParallel": 8, "expertParallel": True}
    pool = {"name": "judge", "model": "/judge"} | wide
    spec = raw_spec(rollout=wide, pools=[pool], rewards=[{"vllm": {"pool": "judge"}}], trainer={"device": device})
    found = validate(spec, "demo").accepted
    assert found and (found.rollout.gpus, found.rollout.processes_per_pod) == (16, 8)
    assert (found.rollout.gpus_of_a_copy, found.pools[0].gpus_sharing_experts) == (2, 16)


def test_a_colocated_server_has_the_gpus_of_all_its_copies() -> None:
    rollout = {"placement": "colocated", "tensorParallel": 2, "dataParallel": 2, "sampling": {"maxTokens": 8}}
    rollout["expertParallel"] = True
    spec = raw_spec(trainer={"processesPerNode": 8}, rollout=rollout)
    found = validate(spec, "demo").accepted
    assert found and servers_per_pod(found) == 2
    (violation,) = validate(raw_spec(trainer={"processesPerNode": 2}, rollout=rollout), "demo").violations
    assert str(violation) == (
        "spec.rollout.dataParallel = 2: spec.trainer.processesPerNode = 2 is not divisible by spec.rollout.tensorParallel = 2 "
        "times it; lower it, or raise spec.trainer.processesPerNode"
    )


CACHE, SHARE = "kv-cache-memory-bytes", "gpu-memory-utilization"
SHARING = {"placement": "colocated", "serversPerGpu": 2, "sampling": {"maxTokens": 8}}


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize(
    ("rollout", "broken"),
    [
        (
            SHARING | {"placement": "separate"},
            "spec.rollout.serversPerGpu = 2: only colocated servers share a GPU; separate ones have GPUs of their own; "
            "remove it, or set spec.rollout.placement: colocated",
        ),
        (
            SHARING | {"tensorParallel": 2, "vllmArgs": {CACHE: GIB}},
            "spec.rollout.serversPerGpu = 2: only servers on one GPU each share it, and the GPUs of a server are tensorParallel = 2 times "
            "dataParallel = 1; remove it, or set both to 1",
        ),
        (SHARING | {"vllmArgs": {CACHE: GIB}}, ""),
    ],
    ids=["servers in pods of their own", "a server of two GPUs", "two servers on each GPU"],
)
def test_only_colocated_servers_of_one_gpu_share_it(device: str, rollout: dict[str, Any], broken: str) -> None:
    found = validate(raw_spec(trainer={"device": device, "processesPerNode": 2}, rollout=rollout), "demo").violations
    assert [*map(str, found)] == ([broken] if broken else [])


@pytest.mark.parametrize(
    ("arguments", "broken"),
    [
        (
            {},
            [
                f"spec.rollout.vllmArgs.{CACHE} = unset: 2 servers on each GPU start at the same time, so that none can measure what is free "
                "for its cache; set the bytes of each server's cache"
            ],
        ),
        (
            {CACHE: GIB, SHARE: 0.25},
            [
                f"spec.rollout.vllmArgs.{SHARE} = 0.25: with 2 servers on each GPU, {CACHE} says what each takes; remove it"
            ],
        ),
        ({CACHE: GIB}, []),
    ],
)
def test_servers_that_share_a_gpu_have_caches_of_a_given_size(arguments: dict[str, Any], broken: list[str]) -> None:
    """Those of a rank on CPU, and a single one, need none."""
    gpu, rollout = {"device": "gpu"}, SHARING | {"vllmArgs": arguments}
    assert [*map(str, validate(raw_spec(trainer=gpu, rollout=rollout), "demo").violations)] == broken
    for trainer, servers in (({"device": "cpu"}, 2), (gpu, 1)):
        spec = raw_spec(trainer=trainer, rollout=rollout | {"serversPerGpu": servers})
        assert validate(spec, "demo").violations == ()


@pytest.mark.parametrize("servers", [0, 5])
def test_a_gpu_has_one_to_four_servers(servers: int) -> None:
    (violation,) = validate(raw_spec(rollout=SHARING | {"serversPerGpu": servers}), "demo").violations
    assert violation.field == "spec.rollout.serversPerGpu"


def test_servers_that_start_at_the_same_time_ask_for_equal_parts_of_the_share_of_one() -> None:
    """vLLM does not start a server for whose share the GPU has too little left (v1/worker/utils.py, request_memory)."""
    shares = {n: make_spec(trainer={"device": "gpu"}, rollout=SHARING | {"serversPerGpu": n}) for n in (1, 2, 4)}
    assert {n: server_defaults(spec)[SHARE] for n, spec in shares.items()} == {1: 0.5, 2: 0.25, 4: 0.125}


DENSE = Shape(10, 64, 8, 2, 16, 256, 1000)
"""A layer has 2 x 64 x 16 x (8 + 2) + 3 x 64 x 256 = 69,632 parameters, the embedding and the output layer 64,000 each."""
EXPERTS = Shape(10, 64, 8, 2, 16, 256, 1000, experts=8, experts_per_token=2, expert_feed_forward=32, dense_layers=2)
"""Experts of a layer have 3 x 64 x 32 x 8 = 49,152 parameters, in eight layers."""
OUTSIDE = 10 * 20_480 + 2 * 49_152 + 8 * 64 * 8
"""Parameters of EXPERTS in layers outside experts: attention, two dense layers, routers."""
ENDS = 128_000
"""Embedding and output layer."""


@pytest.mark.parametrize(
    ("shape", "sizes", "in_layers", "outside"),
    [
        (DENSE, {"tensorParallel": 8}, 10 * 69_632 / 8, ENDS / 8),
        (DENSE, {"tensorParallel": 2, "pipelineParallel": 4}, 3 * 69_632 / 2, ENDS / 2 / 2),
        (EXPERTS, {"tensorParallel": 4}, (OUTSIDE + 8 * 49_152) / 4, ENDS / 4),
        (EXPERTS, {"tensorParallel": 4, "expertParallel": True}, (OUTSIDE + 8 * 49_152) / 4, ENDS / 4),
        (EXPERTS, {"dataParallel": 4, "expertParallel": True}, OUTSIDE + 8 * 49_152 / 4, ENDS),
        (EXPERTS, {"tensorParallel": 2, "dataParallel": 4}, (OUTSIDE + 8 * 49_152 / 4) / 2, ENDS / 2),
    ],
)
def test_a_gpu_of_a_server_holds_its_part_of_its_stage(
    shape: Shape, sizes: dict, in_layers: float, outside: float
) -> None:
    assert parameters(Servers.model_validate(sizes), shape) == pytest.approx((in_layers, outside))


SPREAD = {"nodes": 2, "tensorParallel": 2, "dataParallel": 4, "expertParallel": True}


@pytest.mark.parametrize(
    ("shape", "sizes", "sent", "one"),
    [
        (DENSE, {"tensorParallel": 8}, 0, 0),
        (DENSE, {"nodes": 4, "tensorParallel": 2, "pipelineParallel": 4}, 256, 128),
        (DENSE, {"nodes": 2, "tensorParallel": 8}, 4 * 128 * 7 / 8 * 10, 4 * 128 * 7 / 8 * 10),
        (EXPERTS, {"tensorParallel": 2, "dataParallel": 4, "expertParallel": True}, 0, 0),
        (EXPERTS, SPREAD, 2 * 128 * 7 / 8 * 8, 2 * 128 * 7 / 8 * 8),
        (EXPERTS, SPREAD | {"expertParallel": False}, 2 * (2 * 128 * 3 / 4 * 8), 2 * 128 * 3 / 4 * 8),
    ],
)
def test_pods_of_a_server_send_each_other_activations(shape: Shape, sizes: dict, sent: float, one: float) -> None:
    assert sent_per_token(Servers.model_validate(sizes), shape, 2) == pytest.approx((sent, one))


def over(nodes: int, **sizes: object) -> RLJobSpec:
    rollout = {"replicas": 2, "nodes": nodes, "sampling": {"maxTokens": 8}} | sizes
    return make_spec(trainer={"device": "gpu"}, rollout=rollout)


def test_generation_sends_what_all_tokens_of_a_servers_samples_do() -> None:
    """Of float32, as the next test's keys and values."""
    spec = over(2, pipelineParallel=2)
    tokens = spec.train.prompts_per_step * spec.train.samples_per_prompt / 2 * (spec.data.max_prompt_tokens + 8)
    assert network.generation(spec, DENSE).sent == tokens * 2 * 4 * 64
    assert network.generation(over(1, pipelineParallel=2), DENSE).sent == 0


def test_a_server_has_room_for_more_tokens_where_a_gpu_has_fewer_layers() -> None:
    one, staged = (cache_memory(spec, EXPERTS, GIB) for spec in (over(1), over(2, pipelineParallel=2)))
    assert one.tokens == pytest.approx(one.there / (4 * 10 * 2 * 2 * 16))
    assert staged.tokens == pytest.approx(staged.there / (4 * 5 * 2 * 2 * 16))


def test_every_data_parallel_copy_has_room_for_tokens_of_its_own() -> None:
    """And generates as many samples as a whole server without copies, at most."""
    one, copied = (cache_memory(spec, EXPERTS, GIB) for spec in (over(1), over(2, dataParallel=2)))
    assert copied.there == pytest.approx(one.there + 4 * 8 * 49_152 / 2), "it holds half of the experts"
    assert copied.tokens == pytest.approx(2 * copied.there / (4 * 10 * 2 * 2 * 16))
    assert copied.wanted == one.wanted / 2
    assert (sequences(over(1)), sequences(over(2, dataParallel=2))) == (1024, 2048)


def test_a_pod_keeps_the_next_policy_of_its_own_gpus() -> None:
    spec = over(2, tensorParallel=4)
    assert arrival(spec, DENSE, 80 * GIB).copies == pytest.approx(2 * rollout_memory(spec, DENSE).weights)


def test_layers_with_a_state_of_fixed_size_cache_nothing_of_a_token() -> None:
    """Qwen3-Next-80B-A3B, by its published sizes: 12 of 48 layers have keys and values, of two heads of 256 in two bytes."""
    config = {"num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 16, "vocab_size": 151936}
    config |= {"model_type": "qwen3_next", "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 5120}
    config |= {"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_conv_kernel_dim": 4}
    config |= {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "full_attention_interval": 4}
    config |= {"num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512}
    shape = Shape.of(config | {"shared_expert_intermediate_size": 512})
    assert shape
    model = {"path": "/data/model", "dtype": "bfloat16"}
    spec = make_spec(
        trainer={"device": "gpu"}, model=model, rollout={"tensorParallel": 2, "sampling": {"maxTokens": 8}}
    )
    cache = cache_memory(spec, shape, 139.8 * GIB)
    assert cache.there / cache.tokens == 12 * 2 * 1 * 256 * 2
