"""What the API server says of unusual values as a manifest is applied: what `plan` says of them."""

import itertools
import json
import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from api.specs import raw_spec
from chart.chart import HELM, NO_HELM, documents
from e2e.control_plane import TOKEN, ControlPlane, unverified
from e2e.kube import wait_for
from rljob_api.rules.advice import WINDOWS, Window, warnings
from simulator.objects import job_object

pytestmark = [pytest.mark.slow, pytest.mark.skipif(HELM is None, reason=NO_HELM)]
MESSAGES = dict(zip(WINDOWS, (w["message"] for w in warnings()), strict=True))
UNUSUAL = {"trainer": {"shmSize": "2Mi"}, "rewards": [{"rule": "exactMatch", "weight": 1e9}]}
ANYTHING = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "anythings.advice.test"},
    "spec": {
        "group": "advice.test",
        "scope": "Cluster",
        "names": {"plural": "anythings", "singular": "anything", "kind": "Anything"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                    }
                },
            }
        ],
    },
}
"""Objects whose spec may be any: an RLJob with an unusual value often breaks a rule, too."""


def said(plane: ControlPlane, path: str, value: Any) -> list[str]:
    """The warnings with which the API server would store it, and those of the policies alone."""
    request = urllib.request.Request(
        f"{plane.url}{path}?dryRun=All",
        data=json.dumps(value).encode(),
        headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, context=unverified(), timeout=60) as response:
        found = response.headers.get_all("Warning") or []
    return [w.partition(": ")[2].removesuffix('"') for w in found if "advice" in w]


def of_job(plane: ControlPlane, spec: dict[str, Any]) -> list[str]:
    where = "/apis/rljob.dev/v1alpha1/namespaces/default/rljobs"
    return said(plane, where, job_object("demo", spec, "default"))


def of_anything(plane: ControlPlane, path: str, value: Any) -> list[str]:
    spec = value
    for name in reversed(re.split(r"\.", path)):
        spec = {name.removesuffix("[]"): [spec] if name.endswith("[]") else spec}
    thing = {"apiVersion": "advice.test/v1", "kind": "Anything", "metadata": {"name": "demo"}, "spec": spec}
    return said(plane, "/apis/advice.test/v1/anythings", thing)


@pytest.fixture(scope="module", autouse=True)
def policies(plane: ControlPlane) -> None:
    """The chart's, and the same for objects that may be anything."""
    plane.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", ANYTHING)
    for document in documents():
        if not document["metadata"]["name"].endswith("-advice"):
            continue
        where = "/apis/admissionregistration.k8s.io/v1/" + (
            "validatingadmissionpolicies"
            if document["kind"].endswith("Policy")
            else "validatingadmissionpolicybindings"
        )
        plane.call("POST", where, document)
        document["metadata"]["name"] += "-anything"
        if "policyName" in document["spec"]:
            document["spec"]["policyName"] += "-anything"
        else:
            (rule,) = document["spec"]["matchConstraints"]["resourceRules"]
            rule |= {"apiGroups": ["advice.test"], "resources": ["anythings"]}
        plane.call("POST", where, document)
    wait_for("the policy", lambda: of_job(plane, raw_spec(**UNUSUAL)), 120)
    wait_for("its copy", lambda: of_anything(plane, "trainer.shmSize", "2Mi"), 120)


def test_a_job_is_stored_with_a_warning_for_each_unusual_value(plane: ControlPlane) -> None:
    assert sorted(of_job(plane, raw_spec(**UNUSUAL))) == sorted(
        MESSAGES[path] for path in ("rewards[].weight", "trainer.shmSize")
    )
    assert of_job(plane, raw_spec()) == []


def values(window: Window) -> Iterator[tuple[Any, bool]]:
    """At both ends of a window and beyond them, with whether it is unusual."""
    if window.is_size:
        yield from ((f"{window.low:.0f}", False), ("1Gi", False), ("63Mi", True), ("900k", True), (2**20, True))
        return
    yield from ((window.low, False), (int(window.low) - 1, True), (window.low - 1e-3, True))
    if window.high < float("inf"):
        yield from ((window.high, False), (int(window.high) + 1, True), (window.high + 1e-3, True))


@pytest.mark.parametrize("path", WINDOWS)
def test_a_value_is_warned_of_outside_of_its_window(plane: ControlPlane, path: str) -> None:
    for value, is_unusual in values(WINDOWS[path]):
        assert of_anything(plane, path, value) == [MESSAGES[path]] * is_unusual, value


def test_what_cannot_be_compared_is_left_to_the_rules(plane: ControlPlane) -> None:
    for path, value in itertools.product(("train.optimizer.beta1", "trainer.shmSize"), ("x", [], {"a": 1}, None, True)):
        assert not of_anything(plane, path, value), value


def test_bounds_of_cispo_are_of_a_weight(plane: ControlPlane) -> None:
    assert not of_job(plane, raw_spec(algorithm={"loss": "cispo", "clip": {"low": 1.0, "high": 5.0}}))
