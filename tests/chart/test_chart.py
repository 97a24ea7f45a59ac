"""The chart, rendered by Helm."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_operator.render.rbac import access
from simulator.makers import META

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "rljob"
CACHED = Path(os.environ.get("RLJOB_CACHE", Path.home() / ".cache" / "rljob")) / "bin"
HELM = shutil.which("helm", path=f"{CACHED}{os.pathsep}{os.environ['PATH']}")
pytestmark = pytest.mark.skipif(HELM is None, reason="helm is neither on PATH nor built: `make cluster-up` builds it")

Objects = dict[tuple[str, str], dict[str, Any]]


def helm(*sets: str) -> subprocess.CompletedProcess[str]:
    assert HELM
    # a Helm that was built from source believes in a very old cluster
    command = [HELM, "template", "rljob", str(CHART), "--namespace", "rljob-system", "--kube-version", "1.34.0"]
    return subprocess.run(
        [*command, *(a for s in sets for a in ("--set", s))], capture_output=True, text=True, timeout=60
    )


def render(*sets: str) -> Objects:
    result = helm(*sets)
    assert result.returncode == 0, result.stderr
    return {(o["kind"], o["metadata"]["name"]): o for o in yaml.safe_load_all(result.stdout) if o}


def rules(role: dict[str, Any]) -> set[tuple[str, str, str]]:
    """(group, resource, verb)"""
    return {
        (g, r, v) for rule in role["rules"] for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]
    }


def normal(value: Any) -> Any:
    """Helm writes 0.000001 as `1e-06`, which is a number in Go's YAML and a text in Python's."""
    if isinstance(value, dict):
        return {k: normal(v) for k, v in value.items()}
    if isinstance(value, list):
        return [normal(v) for v in value]
    return float(value) if isinstance(value, str) and re.fullmatch(r"\de-\d+", value) else value


def test_the_chart_installs_these_objects() -> None:
    assert sorted(render()) == [
        ("ClusterRole", "rljob"),
        ("ClusterRole", "rljob-system-rljob-nodes"),
        ("ClusterRoleBinding", "rljob"),
        ("ClusterRoleBinding", "rljob-system-rljob-nodes"),
        ("CustomResourceDefinition", "rljobs.rljob.dev"),
        ("Deployment", "rljob"),
        ("Role", "rljob-lease"),
        ("RoleBinding", "rljob-lease"),
        ("ServiceAccount", "rljob"),
        ("ValidatingAdmissionPolicy", "rljob-own-report"),
        ("ValidatingAdmissionPolicyBinding", "rljob-own-report"),
    ]


def test_the_crd_is_the_generated_one_and_is_kept() -> None:
    generated = yaml.safe_load((ROOT / "crds" / "rljob.yaml").read_text())
    crd = render()[("CustomResourceDefinition", "rljobs.rljob.dev")]
    assert normal(crd["spec"]) == normal(generated["spec"])
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "annotations" not in render("crds.keep=false")[("CustomResourceDefinition", "rljobs.rljob.dev")]["metadata"]
    assert ("CustomResourceDefinition", "rljobs.rljob.dev") not in render("crds.enabled=false")


def test_the_operator_is_one_restricted_pod_that_takes_a_lease() -> None:
    spec = render("image.repository=example/operator", "image.tag=1.2")[("Deployment", "rljob")]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    pod = spec["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["image"] == "example/operator:1.2"
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "health"}
    assert container["args"] == [
        "--identity=$(POD_NAME)",
        "--lease-namespace=$(POD_NAMESPACE)",
        "--progress-interval=30",
        "--log-level=INFO",
    ]


def test_secrets_are_created_and_never_read() -> None:
    granted = rules(render()[("ClusterRole", "rljob")])
    assert {verb for _, resource, verb in granted if resource == "secrets"} == {"create"}
    assert all("*" not in rule for rule in granted)


def test_the_operator_holds_what_it_grants_to_jobs() -> None:
    held = rules(render()[("ClusterRole", "rljob")])
    granted = next(o for o in access(META, ["report"]) if o["kind"] == "Role")
    assert rules(granted) <= held


def test_a_namespaced_installation_has_a_role_in_that_namespace_and_only_reads_nodes_and_pods_elsewhere() -> None:
    everywhere, scoped = render(), render("watchNamespace=research")
    role = scoped[("Role", "rljob")]
    assert role["metadata"]["namespace"] == "research"
    assert role["rules"] == everywhere[("ClusterRole", "rljob")]["rules"]
    assert [name for kind, name in scoped if kind == "ClusterRole"] == ["rljob-system-rljob-nodes"]
    assert rules(scoped[("ClusterRole", "rljob-system-rljob-nodes")]) == {
        ("", resource, verb) for resource in ("nodes", "pods") for verb in ("get", "list", "watch")
    } - {("", "pods", "get")}
    container = scoped[("Deployment", "rljob")]["spec"]["template"]["spec"]["containers"][0]
    assert "--namespace=research" in container["args"]


def test_a_key_that_does_not_exist_is_refused() -> None:
    result = helm("replicas=2")
    assert result.returncode != 0
    assert "additional properties 'replicas' not allowed" in result.stderr


def test_common_labels_reach_every_object() -> None:
    for child in render("commonLabels.team=a").values():
        assert child["metadata"]["labels"]["team"] == "a"


def test_every_value_is_described_and_every_described_value_is_in_the_schema() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    keys = [i for i, line in enumerate(lines) if line and not line.startswith((" ", "#"))]
    sections = ("image:", "crds:", "serviceAccount:", "rbac:", "admissionPolicy:")
    for i in keys:
        assert lines[i] in sections or lines[i - 1].startswith("# --"), lines[i]
    properties = yaml.safe_load((CHART / "values.schema.json").read_text())["properties"]
    assert {line.split(":")[0] for i, line in enumerate(lines) if i in keys} == set(properties) - {"global"}
