"""What the operator's own token may write: objects of jobs, and nothing else, although its roles say more."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.specs import raw_spec
from apiserver.test_security import pods
from chart.chart import HELM, NO_HELM, helm
from e2e.cluster.steps import BIN
from e2e.control_plane import ControlPlane
from e2e.intruder import Trial, outcome
from e2e.kube import Kube, wait_for
from rljob_api import names
from rljob_api.status import RLJobMeta
from rljob_operator.model.children import covers
from rljob_operator.render import render
from simulator.canonical import canonical
from simulator.makers import make_job
from simulator.objects import copied

pytestmark = [pytest.mark.slow, pytest.mark.skipif(HELM is None, reason=NO_HELM)]
NAMESPACE, SYSTEM, OURS = "written", "kube-system", "rljob-system"
CHART = (
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ClusterRole",
    "ClusterRoleBinding",
    "ServiceAccount",
)
CHANGE = '{"metadata":{"annotations":{"intruder":"was here"}}}'
TAKEN = '{"metadata":{"labels":{"app.kubernetes.io/managed-by":"rljob"}}}'
RELEASED = '{"metadata":{"labels":{"app.kubernetes.io/managed-by":null}}}'
AMOUNTS = {
    "requests": {"cpu": "0.5", "memory": "1024Mi", "ephemeral-storage": "1.5Gi", "example.com/a": "1000"},
    "limits": {"cpu": "1000m", "memory": "2000Mi", "example.com/a": "1000", "ephemeral-storage": "2000M"},
}


@pytest.fixture(scope="module")
def kube(plane: ControlPlane) -> Iterator[Kube]:
    """The chart's policies and roles, and one job with its children, as the administrator makes them."""
    found = Kube(plane.kubeconfig, NAMESPACE, str(BIN))
    for namespace in (NAMESPACE, OURS):
        found.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    installed = Kube(plane.kubeconfig, OURS, str(BIN))
    installed.apply(*(o for o in yaml.safe_load_all(helm().stdout) if o and o["kind"] in CHART))
    found.apply({"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "demo"}, "spec": raw_spec()})
    found.apply(*children(found))
    Kube(plane.kubeconfig, SYSTEM, str(BIN)).apply(named("ConfigMap", "coredns", SYSTEM, data={"Corefile": ".:53"}))
    found.apply(named("ConfigMap", "settings", NAMESPACE, data={}))
    yield found


@pytest.fixture(scope="module")
def operator(kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> Kube:
    """kubectl with the operator's token, when its rights and the policy have taken effect."""
    token = kube.run("kubectl", "-n", OURS, "create", "token", "rljob").strip()
    config = json.loads(kube.run("kubectl", "config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
    config["users"][0]["user"] = {"token": token}
    path: Path = tmp_path_factory.mktemp("operator") / "kubeconfig"
    path.write_text(json.dumps(config))
    found = Kube(path, NAMESPACE, kube.path)
    wait_for("its rights", partial(came_out, found, ("get", "configmap", "settings"), "allowed"), 180)
    wait_for("the policy", partial(came_out, found, ("patch", "configmap", "settings", "-p", CHANGE), "403"), 180)
    return found


def children(kube: Kube) -> list[dict[str, Any]]:
    meta = RLJobMeta(name="demo", namespace=NAMESPACE, uid=kube.get("rljob", "demo")["metadata"]["uid"])
    trainer = {"device": "cpu", "nodes": 2, "shmSize": "1024Mi", "template": {"resources": AMOUNTS}}
    snapshot = make_job(trainer=trainer, scheduling={"backend": "none"}).having(job=meta, fresh_token="secret")
    found = render(snapshot.snapshot(), snapshot.status)
    return found + [
        pod | {"metadata": pod["metadata"] | {"namespace": NAMESPACE}}
        for o in found
        if o["kind"] == "StatefulSet"
        for pod in pods(o)
    ]


def named(kind: str, name: str, namespace: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}} | fields


def came_out(kube: Kube, command: tuple[str, ...], expected: str) -> bool:
    return outcome(kube, Trial(command, allowed=expected == "allowed")) == expected


def test_it_may_not_touch_what_is_of_no_job(operator: Kube, kube: Kube) -> None:
    before = kube.run("kubectl", "-n", SYSTEM, "get", "configmap", "coredns", "-o", "json")
    foreign = [("configmap", "coredns", SYSTEM), ("configmap", "settings", NAMESPACE)]
    kube.apply(named("ServiceAccount", "builder", NAMESPACE), named("Pod", "web", NAMESPACE, spec=WEB))
    foreign += [("serviceaccount", "builder", NAMESPACE), ("pod", "web", NAMESPACE)]
    for kind, name, namespace in foreign:
        for change in (CHANGE, TAKEN):
            assert came_out(operator, ("patch", kind, name, "-n", namespace, "-p", change), "403"), (kind, name, change)
        assert came_out(operator, ("delete", kind, name, "-n", namespace), "403"), (kind, name)
    assert kube.run("kubectl", "-n", SYSTEM, "get", "configmap", "coredns", "-o", "json") == before


WEB = {"serviceAccountName": "builder", "containers": [{"name": "c", "image": "i"}]}


def test_it_may_not_create_what_is_of_no_job(operator: Kube) -> None:
    created = (
        ("create", "configmap", "new", "--from-literal=a=b"),
        ("create", "configmap", "new", "-n", SYSTEM, "--from-literal=a=b"),
        ("create", "secret", "generic", "new", "--from-literal=a=b"),
        ("create", "serviceaccount", "new"),
        ("create", "role", "new", "--verb=get", "--resource=configmaps"),
        ("create", "rolebinding", "new", "--role=demo-pods", "--serviceaccount=written:default"),
    )
    for command in created:
        assert came_out(operator, command, "403"), command


def test_it_makes_changes_and_deletes_the_objects_of_a_job(operator: Kube, kube: Kube) -> None:
    for kind, name in (
        ("configmap", "demo-control"),
        ("statefulset", "demo-trainer"),
        ("role", "demo-pods"),
        ("rolebinding", "demo-pods"),
        ("networkpolicy", "demo-pods"),
        ("serviceaccount", "demo-pods"),
        ("pod", "demo-trainer-0"),
    ):
        assert came_out(operator, ("patch", kind, name, "-p", CHANGE), "allowed"), kind
        if kind != "pod":
            assert came_out(operator, ("patch", kind, name, "-p", RELEASED), "403"), kind
    kube.kubectl("patch", "pod", "demo-trainer-1", "-p", RELEASED)
    for pod in ("demo-trainer-0", "demo-trainer-1"):  # also one that somebody has taken the label from
        assert came_out(operator, ("delete", "pod", pod, "--wait=false"), "allowed"), pod
    assert came_out(operator, ("delete", "configmap", "demo-control"), "allowed")
    (control,) = [child for child in children(kube) if child["metadata"]["name"] == "demo-control"]
    operator.kubectl("create", "-f", "-", stdin=json.dumps(control))


def test_the_simulators_api_server_stores_pods_as_this_one_does(kube: Kube) -> None:
    (wanted,) = [child for child in children(kube) if child["metadata"]["name"] == "demo-trainer"]
    live = kube.get("statefulset", "demo-trainer")
    stored = copied(wanted)
    canonical(stored)
    for real, simulated in zip(containers(live), containers(stored), strict=True):
        assert real["resources"] == simulated["resources"] != {}
    assert sizes(live) == sizes(stored) == ["1Gi"]
    assert covers(live["spec"], wanted["spec"])


def containers(stateful_set: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = stateful_set["spec"]["template"]["spec"]["containers"]
    return found


def sizes(stateful_set: dict[str, Any]) -> list[str]:
    volumes = stateful_set["spec"]["template"]["spec"]["volumes"]
    return [size for v in volumes if v.get("name", "").endswith("shm") and (size := v["emptyDir"].get("sizeLimit"))]
