"""Servers that consist of several pods: how many there are, and what each has."""

import pytest

from api.specs import make_spec, raw_spec
from rljob_api.rules import validate
from rljob_api.sizing.layout import pods_of, required_pods, required_servers, wanted_servers

SERVERS = {"replicas": 3, "minReplicas": 2, "nodes": 4, "tensorParallel": 8, "pipelineParallel": 2}


def test_pods_are_counted_by_servers_and_their_nodes_and_servers_by_replicas() -> None:
    pool = {"name": "judge", "model": "/judge", "replicas": 2, "nodes": 2, "tensorParallel": 2}
    spec = make_spec(rollout=SERVERS, pools=[pool], rewards=[{"vllm": {"pool": "judge"}}])
    assert pods_of(spec) == {"trainer": 1, "rollout": 12, "judge": 4}
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
