"""How many colocated servers a pod has, and which GPUs they see."""

import pytest

from api.specs import make_spec
from rljob_api import names
from rljob_api.protocol import Control, Resume
from rljob_api.sizing.layout import servers_per_pod
from rljob_trainer.machine import VISIBLE
from rljob_trainer.pod.colocated import ColocatedServers, visible


def test_a_server_has_its_own_gpus_first_and_sees_all_whose_memory_it_reads() -> None:
    assert visible(4, 2, ["4", "5", "6", "7"]) == ["4,5,6,7", "6,7,4,5"]
    assert visible(2, 1, ["0", "1"]) == ["0,1", "1,0"]
    assert visible(1, 1, ["3"]) == ["3"]


def test_servers_that_share_a_gpu_see_the_same_and_stand_next_to_each_other() -> None:
    assert visible(2, 1, ["4", "5"], sharing=2) == ["4,5", "4,5", "5,4", "5,4"]


@pytest.mark.parametrize(
    ("device", "servers", "shares"),
    [
        ("gpu", 1, [{VISIBLE: "4,5"}, {VISIBLE: "5,4"}]),
        ("gpu", 2, [{VISIBLE: "4,5"}, {VISIBLE: "4,5"}, {VISIBLE: "5,4"}, {VISIBLE: "5,4"}]),
        ("cpu", 3, [{}] * 6),
    ],
)
def test_a_pod_has_so_many_servers_for_each_of_its_ranks(
    device: str, servers: int, shares: list[dict[str, str]]
) -> None:
    rollout = {"placement": "colocated", "serversPerGpu": servers}
    spec = make_spec(trainer={"device": device, "processesPerNode": 2}, rollout=rollout)
    control = Control(name="demo", namespace="ns", job_uid="uid", attempt=2, resume=Resume(policy="auto"), spec=spec)
    pod = {names.ENV_POD_NAME: "demo-trainer-0", names.ENV_POD_UID: "p", names.ENV_POD_IP: "10.0.0.1", VISIBLE: "4,5"}
    colocated = ColocatedServers(control, pod)
    assert colocated._shares == shares
    assert colocated.count == servers_per_pod(spec) == len(shares)
    endpoints = [colocated._endpoint(i, 8000 + i) for i in range(colocated.count)]
    assert [e.pod for e in endpoints] == [f"demo-trainer-0-server-{i}" for i in range(len(shares))]
    assert len({e.pod_uid for e in endpoints}) == len({e.url for e in endpoints}) == len(shares)
