"""Names, labels and annotations, whatever a release and its values are called."""

import subprocess
from typing import Any

import pytest
import yaml

from chart.chart import (
    CHART,
    HELM,
    IMAGE,
    KUBERNETES_VERSION,
    NO_HELM,
    documents,
    helm,
    render,
)
from chart.settings import EVERYTHING, SELECTOR

pytestmark = pytest.mark.skipif(HELM is None, reason=NO_HELM)


def test_common_labels_reach_every_object() -> None:
    for child in render(*EVERYTHING, "commonLabels.team=a").values():
        assert child["metadata"]["labels"]["team"] == "a"


def test_labels_and_annotations_that_are_null_are_none() -> None:
    """As in a values file in which they are commented out below their key."""
    for key in ("commonLabels", "podAnnotations", "podLabels"):
        assert documents(*EVERYTHING, f"{key}=null") == documents(*EVERYTHING), key


def test_a_selected_object_is_selected_by_what_its_labels_say() -> None:
    pod = render("podLabels.team=a")[("Deployment", "rljob")]["spec"]["template"]["metadata"]["labels"]
    assert SELECTOR.items() <= pod.items()
    assert pod["team"] == "a"


NUMERIC = ("serviceAccount.name=20260101", "priorityClassName=1e5", "dashboards.namespace=20260101")


def test_names_and_namespaces_that_look_like_numbers_stay_text() -> None:
    """`20260101`, `1e5` and `2026-01-01` are names to Kubernetes, and numbers and a date to YAML."""
    command = ("2026-01-01", "--namespace", "20260101")
    result = helm_strings(*NUMERIC, "watchNamespaces={1e5,true}", *EVERYTHING, flags=command)
    assert result.returncode == 0, result.stderr
    for found in filter(None, yaml.safe_load_all(result.stdout)):
        meta = found["metadata"]
        texts = [meta["name"], meta.get("namespace", ""), *meta["labels"].values()]
        texts += [s[key] for s in found.get("subjects", []) for key in ("name", "namespace") if key in s]
        if found["kind"] == "Deployment":
            pod = found["spec"]["template"]
            texts += [*pod["metadata"]["labels"].values(), pod["spec"]["priorityClassName"]]
            texts += [pod["spec"]["serviceAccountName"], *found["spec"]["selector"]["matchLabels"].values()]
        assert all(isinstance(text, str) for text in texts), texts


@pytest.mark.parametrize(
    ("release", "name"),
    [
        ("rljob", "rljob"),
        ("my-rljob", "my-rljob"),
        ("mine", "mine-rljob"),
        ("2mine", "rljob-2mine"),
        ("2rljob", "rljob-2rljob"),
        ("mine.eu", "mine-eu-rljob"),
    ],
)
def test_objects_have_a_name_that_a_service_can_have_whatever_the_release_is_called(release: str, name: str) -> None:
    result = helm_strings(flags=(release, "--namespace", "research"))
    assert result.returncode == 0, result.stderr
    objects = [o for o in yaml.safe_load_all(result.stdout) if o]
    assert [o["metadata"]["name"] for o in objects if o["kind"] in ("Service", "Deployment")] == [name, name]


def test_no_label_or_annotation_of_the_users_hides_one_of_the_charts() -> None:
    taken = {"app.kubernetes.io/name": "mine", "team": "a"}
    sets = [f"{where}.{key.replace('.', chr(92) + '.')}={value}" for where in LABELS for key, value in taken.items()]
    sets += ["commonLabels.team=common", "podAnnotations.rljob\\.dev/job-policy=mine"]
    result = helm(*EVERYTHING, *sets)
    assert result.returncode == 0, result.stderr
    objects = {(o["kind"], o["metadata"]["name"]): o for o in yaml.load_all(result.stdout, Unique) if o}
    pod = objects[("Deployment", "rljob")]["spec"]["template"]["metadata"]
    assert SELECTOR.items() <= pod["labels"].items() and pod["labels"]["team"] == "a"
    assert len(pod["annotations"]["rljob.dev/job-policy"]) == 64
    assert objects[("ServiceMonitor", "rljob")]["metadata"]["labels"]["team"] == "a"
    assert objects[("Service", "rljob")]["metadata"]["labels"]["team"] == "common"


@pytest.mark.parametrize(
    "name",
    [
        "nameOverride=My_Operator",
        "nameOverride=1operator",
        "fullnameOverride=My_Operator",
        "fullnameOverride=1operator",
    ],
)
def test_a_name_that_no_object_can_have_is_refused(name: str) -> None:
    assert "does not match pattern" in helm(name).stderr


LABELS = ("podLabels", "metrics.serviceMonitor.labels", "metrics.prometheusRule.labels", "dashboards.labels")


class Unique(yaml.SafeLoader):
    """Refuses an object with a key that stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key) for key, _ in node.value]
        assert len(keys) == len(set(keys)), keys
        return super().construct_mapping(node, deep)


def helm_strings(*sets: str, flags: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """As `helm`, with values that are text."""
    texts = [argument for s in sets if not s.endswith("=true") for argument in ("--set-string", s)]
    switches = [argument for s in sets if s.endswith("=true") for argument in ("--set", s)]
    command = [
        str(HELM),
        "template",
        flags[0],
        str(CHART),
        "--kube-version",
        KUBERNETES_VERSION,
        *flags[1:],
        *IMAGE,
        *texts,
        *switches,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)
