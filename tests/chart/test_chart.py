"""What the chart installs."""

import pytest
import yaml

from chart.chart import (
    HELM,
    NO_HELM,
    ROOT,
    container,
    helm,
    normal,
    render,
)
from chart.settings import EVERYTHING, SELECTOR

pytestmark = pytest.mark.skipif(HELM is None, reason=NO_HELM)
CRD = ("CustomResourceDefinition", "rljobs.rljob.dev")


def test_helm_finds_nothing_wrong() -> None:
    result = helm(*EVERYTHING, verb=("lint", "--strict"))
    assert result.returncode == 0, result.stdout


def test_the_chart_installs_these_objects() -> None:
    assert sorted(render()) == [
        ("ClusterRole", "rljob"),
        ("ClusterRole", "rljob-system-rljob-edit"),
        ("ClusterRole", "rljob-system-rljob-nodes"),
        ("ClusterRole", "rljob-system-rljob-view"),
        ("ClusterRoleBinding", "rljob"),
        ("ClusterRoleBinding", "rljob-system-rljob-nodes"),
        ("ConfigMap", "rljob-job-policy"),
        CRD,
        ("Deployment", "rljob"),
        ("Role", "rljob-job-policy"),
        ("Role", "rljob-lease"),
        ("RoleBinding", "rljob-job-policy"),
        ("RoleBinding", "rljob-lease"),
        ("Service", "rljob"),
        ("ServiceAccount", "rljob"),
        ("ValidatingAdmissionPolicy", "rljob-system-rljob-advice"),
        ("ValidatingAdmissionPolicy", "rljob-system-rljob-own-objects"),
        ("ValidatingAdmissionPolicy", "rljob-system-rljob-own-report"),
        ("ValidatingAdmissionPolicyBinding", "rljob-system-rljob-advice"),
        ("ValidatingAdmissionPolicyBinding", "rljob-system-rljob-own-objects"),
        ("ValidatingAdmissionPolicyBinding", "rljob-system-rljob-own-report"),
    ]


def test_on_request_it_installs_these_too() -> None:
    assert sorted(render(*EVERYTHING).keys() - render().keys()) == [
        ("ConfigMap", "rljob-dashboard-jobs"),
        ("ConfigMap", "rljob-dashboard-operator"),
        ("NetworkPolicy", "rljob"),
        ("PodDisruptionBudget", "rljob"),
        ("PrometheusRule", "rljob"),
        ("ServiceMonitor", "rljob"),
    ]


def test_operators_of_two_namespaces_share_no_object_but_the_crd() -> None:
    cluster_wide = [
        name for kind, name in render("watchNamespaces={team}") if kind.startswith(("Cluster", "Validating"))
    ]
    assert cluster_wide
    assert [name for name in cluster_wide if not name.startswith("rljob-system-")] == []


def test_the_crd_is_the_generated_one_and_is_kept() -> None:
    generated = yaml.safe_load((ROOT / "crds" / "rljob.yaml").read_text())
    crd = render()[CRD]
    assert normal(crd["spec"]) == normal(generated["spec"])
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "annotations" not in render("crds.keep=false")[CRD]["metadata"]
    assert CRD not in render("crds.enabled=false")


def test_the_operator_is_one_restricted_pod_that_takes_a_lease() -> None:
    spec = render("image.repository=example/operator", "image.tag=1.2")[("Deployment", "rljob")]["spec"]
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert (spec["replicas"], spec["strategy"]) == (1, rolling)
    pod = spec["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (found,) = pod["containers"]
    assert found["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert found["image"] == "example/operator:1.2"
    for probe in ("livenessProbe", "readinessProbe"):
        assert found[probe]["httpGet"] == {"path": "/healthz", "port": "health"}
    assert found["args"] == [
        "--identity=$(POD_NAME)",
        "--lease-namespace=$(POD_NAMESPACE)",
        "--progress-interval=30",
        "--log-level=INFO",
        "--log-format=text",
        "--qps=300",
        "--burst=600",
        "--network-policies",
        "--job-policy=/etc/rljob/policy.json",
    ]


def test_the_operator_is_not_ready_before_it_is_restarted_and_its_metrics_stay_in_reach() -> None:
    objects = render()
    (found,) = objects[("Deployment", "rljob")]["spec"]["template"]["spec"]["containers"]
    ready, alive = (
        p["periodSeconds"] * p["failureThreshold"] for p in (found["readinessProbe"], found["livenessProbe"])
    )
    assert ready < alive
    assert objects[("Service", "rljob")]["spec"]["publishNotReadyAddresses"] is True


def test_large_numbers_reach_the_operator_as_it_reads_them() -> None:
    """Helm would write a million of a values file as 1e+06."""
    values = ("--set-json", 'apiRequests={"qps": 1000000, "burst": 2000000}')
    rendered = yaml.safe_load_all(helm(verb=("template", "rljob", *values)).stdout)
    (found,) = (o["spec"]["template"]["spec"]["containers"][0] for o in rendered if o and o["kind"] == "Deployment")
    assert {"--qps=1000000", "--burst=2000000"} <= set(found["args"])


def test_a_digest_takes_the_place_of_the_tag() -> None:
    digest = "sha256:" + "0" * 64
    assert container(render("image.tag=1.2", f"image.digest={digest}"))["image"] == f"rljob-operator@{digest}"


def test_the_operator_reaches_the_api_server_and_dns_and_shows_health_and_metrics() -> None:
    spec = render(*EVERYTHING)[("NetworkPolicy", "rljob")]["spec"]
    assert spec["podSelector"] == {"matchLabels": SELECTOR}
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["ingress"] == [{"ports": [{"protocol": "TCP", "port": "health"}]}]
    out = [(p["protocol"], p["port"]) for rule in spec["egress"] for p in rule["ports"]]
    assert out == [("TCP", 443), ("TCP", 6443), ("UDP", 53), ("TCP", 53)]


def test_prometheus_finds_the_metrics_port() -> None:
    objects = render(*EVERYTHING, "metrics.serviceMonitor.labels.release=prometheus")
    service, monitor = objects[("Service", "rljob")], objects[("ServiceMonitor", "rljob")]
    (port,), (endpoint,) = service["spec"]["ports"], monitor["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["path"]) == (port["name"], "/metrics") == ("metrics", "/metrics")
    assert port["targetPort"] in [p["name"] for p in container(objects)["ports"]]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


def test_a_service_monitor_of_another_namespace_finds_the_operator_and_relabels_what_it_reads() -> None:
    rule = "metrics.serviceMonitor.relabelings[0]"
    dropped = "metrics.serviceMonitor.metricRelabelings[0].action=drop"
    sets = (
        "metrics.serviceMonitor.namespace=monitoring",
        f"{rule}.targetLabel=cluster",
        f"{rule}.replacement=a",
        dropped,
    )
    monitor = render("metrics.serviceMonitor.enabled=true", *sets)[("ServiceMonitor", "rljob")]
    assert monitor["metadata"]["namespace"] == "monitoring"
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["rljob-system"]}
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["relabelings"] == [{"targetLabel": "cluster", "replacement": "a"}]
    assert endpoint["metricRelabelings"] == [{"action": "drop"}]


@pytest.mark.parametrize(
    ("repository", "image"),
    [
        ("registry.invalid/rljob/operator", "mirror.test/team/rljob/operator"),
        ("localhost/operator", "mirror.test/team/operator"),
        ("rljob/operator", "mirror.test/team/rljob/operator"),
        ("operator", "mirror.test/team/operator"),
    ],
)
def test_a_global_registry_takes_the_place_of_the_images_own(repository: str, image: str) -> None:
    found = container(
        render("global.imageRegistry=mirror.test/team/", f"image.repository={repository}", "image.tag=v1")
    )
    assert found["image"] == f"{image}:v1"


def test_an_image_that_nobody_has_published_is_refused_with_what_to_do() -> None:
    result = helm("image.repository=registry.invalid/rljob/operator")
    assert result.returncode != 0
    assert "build the image and push it (docs/quickstart.md), then set image.repository" in result.stderr


def test_pull_secrets_of_a_parent_chart_and_of_this_one_are_used_each_once() -> None:
    sets = ("global.imagePullSecrets[0].name=a", "imagePullSecrets[0].name=b", "imagePullSecrets[1].name=a")
    pod = render(*sets)[("Deployment", "rljob")]["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]
    names = render("global.imagePullSecrets={a,c}", *sets[1:])[("Deployment", "rljob")]["spec"]["template"]["spec"]
    assert names["imagePullSecrets"] == [{"name": "a"}, {"name": "c"}, {"name": "b"}], "parent charts write names alone"
    assert helm("global.imagePullSecrets[0]=7").returncode and helm("imagePullSecrets[0]=a").returncode
    assert "imagePullSecrets" not in render()[("Deployment", "rljob")]["spec"]["template"]["spec"]


def test_a_platform_sets_users_certificates_and_the_format_of_logs() -> None:
    volume, mount = "extraVolumes[0]", "extraVolumeMounts[0]"
    sets = (f"{volume}.name=ca", f"{volume}.configMap.name=ca", f"{mount}.name=ca", f"{mount}.mountPath=/etc/ssl/own")
    users = (
        "podSecurityContext.runAsUser=null",
        "podSecurityContext.runAsGroup=null",
        "securityContext.privileged=false",
    )
    objects = render(*sets, *users, "logFormat=json")
    pod, found = objects[("Deployment", "rljob")]["spec"]["template"]["spec"], container(objects)
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert (
        found["securityContext"]["privileged"] is False and found["securityContext"]["readOnlyRootFilesystem"] is True
    )
    assert {"name": "ca", "configMap": {"name": "ca"}} in pod["volumes"]
    assert {"name": "ca", "mountPath": "/etc/ssl/own"} in found["volumeMounts"]
    assert "--log-format=json" in found["args"]


def test_a_drain_may_move_the_operator_or_not() -> None:
    budget = render("podDisruptionBudget.enabled=true", "podDisruptionBudget.maxUnavailable=0")
    assert budget[("PodDisruptionBudget", "rljob")]["spec"] == {
        "maxUnavailable": 0,
        "selector": {"matchLabels": SELECTOR},
    }
