"""Memory and placement on the page of plan, on a cluster that answers over HTTP."""

import json
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Rljob
from cli.fake_api import FakeApi
from cli.makers import make_job, make_spec
from cli.test_plan import write
from placement.device_objects import FULL, make_claim, make_class, make_slice, make_template
from placement.makers import make_pod, make_racks
from rljob_placement.cluster import OCCUPYING

SCHEDULING = {"backend": "builtin", "topologyLevels": ["block", "rack"]}

PAGE = """\
GIB PER GPU   WEIGHTS   GRADIENTS   OPTIMIZER   ACTIVATIONS   OUTSIDE   TOTAL
trainer       1.8       3.5         5.3         17.0          4.0       31.6
rollout       7.1       -           -           -             -         7.1
--gpu shows every phase of a step on a trainer's GPU

Host memory of a trainer pod: 49.6 GiB (49.6 for a checkpoint), and what its processes need in any case; \
spec.trainer.template.resources.limits.memory is not set: a node has to have that much

KV cache of a server: 7.0 GiB per GPU would hold all samples in flight at their longest; --gpu says how much there is

Volume: 4 checkpoints of 106.6 GB, 1 export of 15.2 GB; 441.7 GB in all, at most

BETWEEN NODES, GB          OUT OF A POD   INTO A POD   SECONDS (--network)
a sync of the servers      15.2           15.2         -
the hand-over of a batch   0.0            0.0          -

Placement on 3 nodes, as free now:
PODS        DOMAIN
stage 0     b0/r0/n0-0
stage 1     b0/r0/n0-1
rollout 0   b0/r0/n0-2
rollout 1   b0/r0/n0-2
rollout 2   b0/r0/n0-2
rollout 3   b0/r0/n0-2

CROSSES   PAIRS   BYTES/STEP
block     0       0 B
rack      0       0 B
node      2       37.8 GB
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    """Qwen2.5-7B."""
    config = {"model_type": "qwen2", "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4}
    config |= {"hidden_size": 3584, "intermediate_size": 18944, "vocab_size": 152064}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


def manifest(path: Path, **scheduling: Any) -> str:
    return write(path, make_spec(scheduling=SCHEDULING | scheduling))


def test_the_page_says_memory_and_where_pods_would_go(api: FakeApi, rljob: Rljob, tmp_path: Path, model: str) -> None:
    api.nodes = make_racks([4, 4])
    screen = rljob("plan", "-f", manifest(tmp_path), "--model", model)
    assert (screen.code, screen.err) == (0, "")
    assert PAGE in screen.out


ASSUMED = "Bytes are those of a model of 8 billion parameters; --model counts those of the job's own\n"


def test_bytes_of_a_model_that_nobody_named_are_said_to_be_assumed(
    api: FakeApi, rljob: Rljob, tmp_path: Path, model: str
) -> None:
    api.nodes = make_racks([4, 4])
    screen = rljob("plan", "-f", manifest(tmp_path))
    assert f"node      2       42.2 GB\n{ASSUMED}" in screen.out
    assert ASSUMED not in rljob("plan", "-f", manifest(tmp_path), "--model", model).out
    (found,) = json.loads(rljob("plan", "-f", manifest(tmp_path), "-o", "json").out)
    assert found["placement"]["nominal"] is True


def test_nothing_is_assumed_of_bytes_where_none_cross(api: FakeApi, rljob: Rljob, tmp_path: Path) -> None:
    api.nodes = make_racks([4, 4])
    one = write(tmp_path, make_spec(scheduling=SCHEDULING, trainer={"nodes": 1}, rollout={"placement": "colocated"}))
    screen = rljob("plan", "-f", one)
    assert "CROSSES" in screen.out and ASSUMED not in screen.out


def gpu(name: str, mebibytes: int, **labels: str) -> dict[str, str]:
    return {"nvidia.com/gpu.product": name, "nvidia.com/gpu.memory": str(mebibytes)} | labels


def test_the_gpu_is_the_smallest_that_the_nodes_labels_name(
    api: FakeApi, rljob: Rljob, tmp_path: Path, model: str
) -> None:
    api.nodes = make_racks([4, 4])
    labels = (gpu("NVIDIA-H200", 143771, pool="new"), gpu("NVIDIA-H100-80GB-HBM3", 81559, pool="old"))
    for node, found in zip(api.nodes, labels, strict=False):
        node["metadata"]["labels"] |= found
    screen = rljob("plan", "-f", manifest(tmp_path), "--model", model)
    assert "OF 78.6\n" in screen.out
    assert "\nGPU: NVIDIA-H100-80GB-HBM3, by the labels of 2 nodes, the smallest of 2 kinds\nFits" in screen.out
    only = ("--set", "trainer.template.nodeSelector={pool: new}")
    screen = rljob("plan", "-f", manifest(tmp_path), "--model", model, *only)
    assert "\nGPU: NVIDIA-H200, by the labels of 1 node\n" in screen.out
    screen = rljob("plan", "-f", manifest(tmp_path), "--model", model, "--gpu", "96Gi")
    assert "OF 96.0\n" in screen.out
    assert "GPU: " not in screen.out, "whoever names it knows"


SERVERS = {"replicas": 3, "minReplicas": 1, "nodes": 2, "tensorParallel": 8, "pipelineParallel": 2}


def placed(screen: str) -> str:
    """The lines about pods and domains."""
    return screen[screen.index("PODS        DOMAIN") : screen.index("\n\nCROSSES")]


def test_servers_of_several_pods_are_shown_with_their_nodes_and_why_one_has_none(
    api: FakeApi, rljob: Rljob, tmp_path: Path
) -> None:
    job = write(tmp_path, make_spec(scheduling=SCHEDULING, trainer={"nodes": 1}, rollout=SERVERS))
    api.nodes = make_racks([1, 3, 2])
    assert placed(rljob("plan", "-f", job).out) == (
        "PODS        DOMAIN\n"
        "stage 0     b0/r0/n0-0\n"
        "rollout 0   b0/r1: n1-0, n1-1\n"
        "rollout 1   b1/r2: n2-0, n2-1\n"
        "rollout 2   no capacity now\n"
        "rollout 2 needs capacity for 2 rollout pods with 8 nvidia.com/gpu each and the cluster has it for 1; "
        "block: b0 has capacity for 1, 1 other for none; rack: b0/r1 has capacity for 1, 2 others for none; "
        "1/6 nodes have capacity for such a pod: 5 insufficient nvidia.com/gpu"
    )
    (found,) = json.loads(rljob("plan", "-f", job, "-o", "json").out)
    assert found["placement"]["servers"] == {"rollout": [["n1-0", "n1-1"], ["n2-0", "n2-1"], ["", ""]]}
    assert found["placement"]["lacking"].startswith("needs capacity for 2 rollout pods")


def test_servers_of_a_pool_are_shown_with_their_nodes_too(api: FakeApi, rljob: Rljob, tmp_path: Path) -> None:
    pool = {"name": "judge", "model": "/data/judge", "nodes": 2, "tensorParallel": 16, "replicas": 2}
    more: dict[str, Any] = {"pools": [pool], "rewards": [{"vllm": {"pool": "judge"}}]}
    job = make_spec(scheduling=SCHEDULING, trainer={"nodes": 1}, rollout={"replicas": 1, "tensorParallel": 8}, **more)
    api.nodes = make_racks([2, 2, 2])
    out = placed(rljob("plan", "-f", write(tmp_path, job)).out)
    assert out.endswith("\njudge 0     b0/r1: n1-0, n1-1\njudge 1     b1/r2: n2-0, n2-1")
    api.nodes = make_racks([2, 2, 1])
    assert (
        "Placement: there is no capacity now: alongside the job's other pods needs capacity for 4 judge pods with 8 nvidia.com/gpu each "
        "and the cluster has it for 3; "
    ) in rljob("plan", "-f", write(tmp_path, job)).out


def test_a_server_that_no_domain_holds_is_in_the_whole_cluster(api: FakeApi, rljob: Rljob, tmp_path: Path) -> None:
    server = SERVERS | {"replicas": 1, "nodes": 4, "pipelineParallel": 4}
    job = write(tmp_path, make_spec(scheduling=SCHEDULING, trainer={"nodes": 1}, rollout=server))
    api.nodes = make_racks([1, 1, 1, 1, 1])
    assert "rollout 0   the whole cluster: n" in rljob("plan", "-f", job).out


def test_a_cluster_without_room_says_what_lacks(api: FakeApi, rljob: Rljob, tmp_path: Path) -> None:
    api.nodes = make_racks([2, 1])
    api.pods = [make_pod("n0-0", 8), make_pod("n1-0", 8)]
    screen = rljob("plan", "-f", manifest(tmp_path))
    assert screen.code == 0, "no rule is broken: capacity may come"
    assert (
        "Placement: there is no capacity now: needs capacity for 2 trainer pods with 8 nvidia.com/gpu each and the cluster has it for 1; "
        "block: b0 has capacity for 1; rack: b0/r0 has capacity for 1, 1 other for none; "
        "1/3 nodes have capacity for such a pod: 2 insufficient nvidia.com/gpu\n"
    ) in screen.out


def test_who_may_not_read_nodes_still_gets_the_rest(api: FakeApi, rljob: Rljob, tmp_path: Path) -> None:
    api.refuse = (403, "nodes is forbidden")
    screen = rljob("plan", "-f", manifest(tmp_path))
    assert screen.code == 0
    assert "\nPlacement: not checked: nodes of the cluster: nodes is forbidden\n" in screen.out


def test_offline_asks_nobody(api: FakeApi, rljob: Rljob, tmp_path: Path) -> None:
    assert "Placement: not checked (--offline)\n" in rljob("plan", "-f", manifest(tmp_path), "--offline").out
    assert api.requests == []


def test_o_json_has_both(api: FakeApi, rljob: Rljob, tmp_path: Path, model: str) -> None:
    api.nodes = make_racks([4, 4])
    (found,) = json.loads(rljob("plan", "-f", manifest(tmp_path), "--model", model, "-o", "json").out)
    assert found["memory"]["trainer"].keys() >= {"weights", "gradients", "optimizer", "activations", "logits"}
    assert found["placement"]["stages"] == ["b0/r0/n0-0", "b0/r0/n0-1"]


def test_a_large_cluster_is_read_in_pages_and_without_pods_that_take_nothing(
    api: FakeApi, rljob: Rljob, tmp_path: Path
) -> None:
    api.nodes = make_racks([4, 4])
    full = [make_pod(node["metadata"]["name"], 8) for node in api.nodes[:4]]
    api.pods = [make_pod(api.nodes[4]["metadata"]["name"], 0) for _ in range(1200)] + full
    screen = rljob("plan", "-f", manifest(tmp_path))
    assert "b0/r1" in screen.out and "b0/r0" not in screen.out, "what the last page holds counts as well"
    asked = [query for _, path, query in api.requests if path == "/api/v1/pods"]
    assert [query.get("continue") for query in asked] == [None, "500", "1000"]
    assert {query["limit"] for query in asked} == {"500"}
    assert {query["fieldSelector"] for query in asked} == {OCCUPYING}


CLAIM = {"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "eight"}]}


@pytest.mark.parametrize(("gpus", "placed"), [(16, True), (8, False)])
def test_devices_of_claims_are_counted_as_the_operator_does(
    api: FakeApi, rljob: Rljob, tmp_path: Path, gpus: int, placed: bool
) -> None:
    api.nodes = make_racks([2], gpus=0)
    api.devices = {
        "deviceclasses": [make_class("gpu", FULL)],
        "resourceslices": [make_slice("n0-0", gpus), make_slice("n0-1", 9)],
        "resourceclaims": [make_claim("other", "n0-1", "gpu-0", "gpu-1")],
        "resourceclaimtemplates": [make_template("eight", {"deviceClassName": "gpu", "count": 8})],
    }
    trainer = {"nodes": 1, "resourceName": "", "template": CLAIM}
    job = write(tmp_path, make_spec(scheduling=SCHEDULING, trainer=trainer, rollout={"replicas": 1, "template": CLAIM}))
    screen = rljob("plan", "-f", job)
    assert (screen.code, "Placement on 1 node," in screen.out) == (0 if placed else screen.code, placed)
    assert ("deviceclass.resource.kubernetes.io/gpu" in screen.out) is not placed


def test_a_cluster_without_such_devices_is_not_asked_for_them(api: FakeApi, rljob: Rljob, tmp_path: Path) -> None:
    api.nodes = make_racks([4, 4])
    rljob("plan", "-f", manifest(tmp_path))
    assert not [path for _, path, _ in api.requests if path.startswith("/apis/resource")]
    trainer = {"nodes": 1, "resourceName": "", "template": CLAIM}
    job = write(tmp_path, make_spec(scheduling=SCHEDULING, trainer=trainer, rollout={"replicas": 1, "template": CLAIM}))
    assert (
        "the API server does not serve resource.k8s.io/v1, which Kubernetes has from 1.34"
        in rljob("plan", "-f", job).out
    )


def test_nodes_that_are_reserved_for_a_job_that_waits_are_named(api: FakeApi, rljob: Rljob, tmp_path: Path) -> None:
    api.nodes = make_racks([4])
    job = manifest(tmp_path)
    assert "reserved" not in rljob("plan", "-f", job).out
    waits = {"waitingSince": "2026-11-26T09:00:00Z", "problem": "too few", "reserved": ["n0-0", "n0-1", "elsewhere"]}
    api.add(make_job("large", placement=waits))
    said = "n0-0, n0-1 reserved for research/large, which waits since 2026-11-26T09:00:00Z (nobody knows until when)"
    assert f"\n{said}\n" in rljob("plan", "-f", job).out
    api.add(make_job("large", placement=waits | {"expectedAt": "2026-11-26T12:40:00Z"}))
    assert "(expected at 2026-11-26T12:40:00Z)" in rljob("plan", "-f", job).out
    copied = make_spec(managedBy="kueue.x-k8s.io/multikueue")
    api.add(make_job("large", copied, placement=waits))
    assert "reserved" not in rljob("plan", "-f", job).out, "these nodes are of another cluster"
