"""Tokens, admission and Pod Security before a real API server: no nodes are needed to be refused."""

import json
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.specs import raw_spec
from chart.chart import HELM, NO_HELM, helm
from e2e.cluster.steps import BIN
from e2e.control_plane import ControlPlane
from e2e.intruder import Trial, as_pod, outcome, trials
from e2e.kube import CommandFailed, Kube, wait_for
from kubectl_rljob import pod_access
from kubectl_rljob.job import Job
from rljob_api import names
from rljob_api.status import RLJobMeta
from rljob_operator.render import render
from simulator.makers import make_job

pytestmark = [pytest.mark.slow, pytest.mark.skipif(HELM is None, reason=NO_HELM)]
NAMESPACE = "secured"
META = {name: RLJobMeta(name=name, namespace=NAMESPACE, uid=f"uid-of-{name}") for name in ("demo", "other")}
BOXED = RLJobMeta(name="boxed", namespace=NAMESPACE, uid="uid-of-boxed")
"""A job with sandboxes."""
AGENT = {"python": {"path": "/data/agent.py"}, "maxTurns": 2, "maxTokens": 16}
SANDBOXES: dict[str, Any] = {
    "rollout": {"replicas": 1, "sampling": {"maxTokens": 8}, "agent": AGENT},
    "environments": [{"name": "python", "template": {"image": "python:3.12-slim"}}],
}
POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ClusterRole")


@pytest.fixture(scope="module")
def kube(plane: ControlPlane) -> Iterator[Kube]:
    """Two jobs as the operator makes them, in a namespace under the restricted standard, with the chart's policy."""
    found = Kube(plane.kubeconfig, NAMESPACE, str(BIN))
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    found.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
    found.apply(*(o for o in yaml.safe_load_all(helm().stdout) if o and o["kind"] in POLICIES))
    for meta in META.values():
        found.apply(*children(meta))
    found.apply(*children(BOXED, **SANDBOXES))
    yield found


def children(meta: RLJobMeta, **changes: Any) -> list[dict[str, Any]]:
    """With the pods that a controller would make of the StatefulSets, once the gang is on its nodes."""
    job = make_job(scheduling={"backend": "none"}, **changes).having(job=meta, fresh_token="secret").with_pods()
    snapshot = job.snapshot()
    found = render(snapshot, snapshot.status)
    return found + [pod for o in found if o["kind"] == "StatefulSet" for pod in pods(o)]


def pods(stateful_set: dict[str, Any]) -> Iterator[dict[str, Any]]:
    template, meta = stateful_set["spec"]["template"], stateful_set["metadata"]
    for i in range(stateful_set["spec"]["replicas"]):
        own = template["metadata"] | {"name": f"{meta['name']}-{i}", "namespace": NAMESPACE}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": own, "spec": template["spec"]}


def test_a_pods_token_reads_its_control_and_its_gangs_reports_and_writes_its_own_report_only(
    kube: Kube, tmp_path: Path
) -> None:
    pod, peer, token = "demo-trainer-0", "demo-trainer-1", names.token("demo", META["demo"].uid)
    intruder = as_pod(kube, pod, tmp_path)
    all_trials = list(trials("demo", pod, peer, "other", token))
    for trial in all_trials:  # rights and the policy take effect some time after they are written
        if trial.allowed:
            wait_for(str(trial), partial(came_out, intruder, trial, "allowed"), 180)
    theirs = next(t for t in all_trials if t.command[:3] == ("patch", "configmap", names.report(peer)))
    wait_for("the admission policy", partial(came_out, intruder, theirs, "403"), 180)
    for trial in all_trials:
        assert outcome(intruder, trial) == ("allowed" if trial.allowed else "403"), trial


def test_the_policy_leaves_configmaps_alone_that_are_of_no_job(kube: Kube) -> None:
    """A label of ours alone selects an object for the policy, whose expressions must hold for it, too."""
    kube.kubectl("create", "configmap", "notes")
    kube.kubectl("label", "configmap", "notes", "rljob.dev/role=trainer")
    kube.kubectl("label", "configmap", "notes", "team=a")


def came_out(kube: Kube, trial: Trial, expected: str) -> bool:
    return outcome(kube, trial) == expected


def test_pods_of_both_roles_are_admitted_where_the_restricted_standard_is_enforced(kube: Kube) -> None:
    found = {p["metadata"]["name"] for p in kube.list("pod", names.selector("demo"))}
    assert found == {"demo-trainer-0", "demo-trainer-1", "demo-rollout-0"}


def test_a_sandbox_is_admitted_there_too_and_whoever_had_a_token_of_its_account_could_do_nothing(
    kube: Kube, tmp_path: Path
) -> None:
    pod, peer = names.pod("boxed", "sandbox0", 0), names.pod("boxed", "trainer", 0)
    assert kube.get("pod", pod)["spec"]["automountServiceAccountToken"] is False
    assert kube.get("networkpolicy", names.sandboxes("boxed"))["spec"]["policyTypes"] == ["Egress"]
    intruder = as_pod(kube, pod, tmp_path)
    for trial in trials("boxed", pod, peer, "other", names.token("boxed", BOXED.uid)):
        assert outcome(intruder, trial) == "403", trial


def test_the_pod_of_kubectl_rljob_shell_is_admitted_too(kube: Kube) -> None:
    """As the plugin makes it, field by field."""
    claim = {"name": "data", "mountPath": "/data", "source": {"persistentVolumeClaim": {"claimName": "data"}}}
    metadata = {"name": "demo", "namespace": NAMESPACE, "uid": META["demo"].uid}
    job = Job({"metadata": metadata, "spec": raw_spec(volumes=[claim], podSecurity={"supplementalGroups": [5000]})})
    assert job.spec
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    kube.apply(account)  # which a controller makes where there are controllers
    pod = pod_access.manifest(job, job.spec, {})
    kube.kubectl("create", "--validate=strict", "-f", "-", stdin=json.dumps(pod))
    (made,) = kube.list("pod", f"{pod_access.LABEL}=demo")
    assert made["spec"]["securityContext"] == pod["spec"]["securityContext"]


def test_a_pod_that_the_standard_forbids_is_not_admitted(kube: Kube) -> None:
    """So the test before this one shows something."""
    pod = {"containers": [{"name": "c", "image": "i"}]}
    meta = {"name": "forbidden", "namespace": NAMESPACE}
    with pytest.raises(CommandFailed, match='violates PodSecurity "restricted'):
        kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod})


def test_a_user_who_may_edit_a_namespace_makes_jobs_there_but_does_not_write_their_status(
    kube: Kube, tmp_path: Path
) -> None:
    """The aggregated roles themselves are bound, since no controller aggregates here."""
    kube.kubectl("create", "serviceaccount", "author")
    for role in ("view", "edit"):
        bound = (f"--clusterrole=rljob-system-rljob-{role}", f"--serviceaccount={NAMESPACE}:author")
        kube.kubectl("create", "rolebinding", f"author-{role}", *bound)
    for question in (
        ("create", "rljobs.rljob.dev"),
        ("patch", "rljobs.rljob.dev/scale"),
        ("get", "rljobs.rljob.dev/status"),
    ):
        wait_for(
            " ".join(question), partial(can, kube, *question), 180
        )  # bindings take effect some time after they are written
    assert not can(kube, "update", "rljobs.rljob.dev/status") and not can(kube, "get", "secrets")


def can(kube: Kube, verb: str, resource: str) -> bool:
    user = f"--as=system:serviceaccount:{NAMESPACE}:author"
    kind, _, part = resource.partition("/")
    command = ["kubectl", "auth", "can-i", verb, kind, f"--subresource={part}", user, "-n", NAMESPACE]
    done = subprocess.run(command, capture_output=True, text=True, env=kube.environment, timeout=60)
    return done.stdout.strip() == "yes"
