"""What the operator, its users and its pods may do."""

import pytest

from chart.chart import (
    HELM,
    NO_HELM,
    container,
    documents,
    render,
    rules,
)
from rljob_operator.cache.cluster import CHILD_KINDS, SANDBOX_KINDS
from rljob_operator.kube.api import KINDS
from rljob_operator.render.access import access
from rljob_placement.devices import KINDS as DEVICE_KINDS
from simulator.makers import META

pytestmark = pytest.mark.skipif(HELM is None, reason=NO_HELM)


def test_secrets_are_created_and_never_read() -> None:
    granted = rules(render()[("ClusterRole", "rljob")])
    assert {verb for _, resource, verb in granted if resource == "secrets"} == {"create"}
    assert all("*" not in rule for rule in granted)


def test_the_operator_holds_what_it_grants_to_jobs() -> None:
    held = rules(render()[("ClusterRole", "rljob")])
    granted = next(o for o in access(META, ["report"], {}) if o["kind"] == "Role")
    assert rules(granted) <= held


def test_the_operator_may_do_with_children_what_it_does() -> None:
    held = rules(render()[("ClusterRole", "rljob")])
    for kind in (*CHILD_KINDS, "ConfigMap"):
        prefix, plural = KINDS[kind]
        group = prefix.removeprefix("/apis/").split("/")[0] if prefix.startswith("/apis/") else ""
        assert held >= {(group, plural, verb) for verb in ("get", "list", "watch", "create", "patch", "delete")}, kind


def test_the_operator_holds_these_rights_and_no_others() -> None:
    held: dict[tuple[str, str], list[str]] = {}
    for group, resource, verb in sorted(rules(render()[("ClusterRole", "rljob")])):
        held.setdefault((group, resource), []).append(verb)
    children = "create delete get list patch watch"
    assert {what: " ".join(verbs) for what, verbs in held.items()} == {
        ("rljob.dev", "rljobs"): "get list watch",
        ("rljob.dev", "rljobs/status"): "update",
        ("rljob.dev", "rljobs/finalizers"): "update",
        ("", "pods"): "delete get list patch watch",
        ("", "secrets"): "create",
        ("", "events"): "create list patch",
        ("scheduling.volcano.sh", "podgroups"): "create delete get patch",
        ("scheduling.k8s.io", "podgroups"): "create delete get patch",
        ("scheduling.run.ai", "podgroups"): "create delete get patch",
        ("", "configmaps"): children,
        ("", "serviceaccounts"): children,
        ("", "services"): children,
        ("apps", "statefulsets"): children,
        ("rbac.authorization.k8s.io", "roles"): children,
        ("rbac.authorization.k8s.io", "rolebindings"): children,
        ("networking.k8s.io", "networkpolicies"): children,
    }


def test_agent_sandboxs_objects_are_written_only_where_the_administrator_says_so() -> None:
    held = rules(render("jobs.agentSandbox=true")[("ClusterRole", "rljob")])
    more = held - rules(render()[("ClusterRole", "rljob")])
    kinds = {KINDS[kind][1] for kind in SANDBOX_KINDS}
    verbs = ("get", "list", "watch", "create", "patch", "delete")
    assert more == {("extensions.agents.x-k8s.io", plural, verb) for plural in kinds for verb in verbs}


def test_a_namespaced_installation_has_a_role_in_each_namespace_and_only_reads_nodes_and_pods_elsewhere() -> None:
    everywhere, scoped = render(), documents("watchNamespaces={research,exams}", "rbac.aggregate=false")
    roles = [o for o in scoped if (o["kind"], o["metadata"]["name"]) == ("Role", "rljob")]
    assert [role["metadata"]["namespace"] for role in roles] == ["research", "exams"]
    assert all(role["rules"] == everywhere[("ClusterRole", "rljob")]["rules"] for role in roles)
    (cluster_role,) = (o for o in scoped if o["kind"] == "ClusterRole")
    assert rules(cluster_role) == {
        ("", "nodes", "get"),
        ("", "nodes", "list"),
        ("", "nodes", "watch"),
        ("", "pods", "list"),
        ("", "pods", "watch"),
        ("nvsentinel.nvidia.com", "drainrequests", "list"),
        ("nodemaintenance.medik8s.io", "nodemaintenances", "list"),
        *(("resource.k8s.io", plural, "list") for plural in DEVICE_KINDS),
    }
    arguments = container(render("watchNamespaces={research,exams}"))["args"]
    assert arguments[-2:] == ["--namespace=research", "--namespace=exams"]


def test_users_of_a_namespace_get_its_jobs_by_the_clusters_own_roles_but_not_their_status() -> None:
    view, edit = (render()[("ClusterRole", f"rljob-system-rljob-{name}")] for name in ("view", "edit"))
    aggregated = "rbac.authorization.k8s.io/aggregate-to-"
    assert [sorted(k for k in o["metadata"]["labels"] if k.startswith(aggregated)) for o in (view, edit)] == [
        [aggregated + "admin", aggregated + "edit", aggregated + "view"],
        [aggregated + "admin", aggregated + "edit"],
    ]
    assert {verb for _, _, verb in rules(view)} == {"get", "list", "watch"}
    assert {resource for _, resource, _ in rules(edit)} == {"rljobs", "rljobs/scale"}
