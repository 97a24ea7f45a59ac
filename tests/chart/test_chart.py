"""What the chart installs."""

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
    ROOT,
    container,
    documents,
    helm,
    normal,
    render,
    rules,
)
from rljob_api import names
from rljob_api.policy import JobPolicy
from rljob_operator.cache.cluster import CHILD_KINDS
from rljob_operator.kube.api import KINDS
from rljob_operator.render.access import access
from rljob_placement.devices import KINDS as DEVICE_KINDS
from simulator.makers import META, make_job

pytestmark = pytest.mark.skipif(HELM is None, reason=NO_HELM)
EVERYTHING = (
    "networkPolicy.enabled=true",
    "metrics.serviceMonitor.enabled=true",
    "metrics.prometheusRule.enabled=true",
    "dashboards.enabled=true",
    "podDisruptionBudget.enabled=true",
)
CRD = ("CustomResourceDefinition", "rljobs.rljob.dev")
SELECTOR = {"app.kubernetes.io/name": "rljob-operator", "app.kubernetes.io/instance": "rljob"}


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
        ("ValidatingAdmissionPolicy", "rljob-system-rljob-own-objects"),
        ("ValidatingAdmissionPolicy", "rljob-system-rljob-own-report"),
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


def job_policy(*sets: str) -> JobPolicy:
    """As the operator reads it, and the plugin."""
    data = render(*sets)[("ConfigMap", names.JOB_POLICY)]["data"]
    return JobPolicy.model_validate_json(data[names.JOB_POLICY_KEY])


def test_the_operator_reads_the_job_policy_and_restarts_when_it_changes() -> None:
    templates = [
        render(*sets)[("Deployment", "rljob")]["spec"]["template"] for sets in ((), ("jobs.defaults.image=x",))
    ]
    assert len({t["metadata"]["annotations"]["rljob.dev/job-policy"] for t in templates}) == 2
    pod = templates[0]["spec"]
    (volume,) = (v["name"] for v in pod["volumes"] if v.get("configMap") == {"name": names.JOB_POLICY})
    (mount,) = (m for m in pod["containers"][0]["volumeMounts"] if m["name"] == volume)
    assert f"--job-policy={mount['mountPath']}/{names.JOB_POLICY_KEY}" in pod["containers"][0]["args"]


def test_every_user_may_read_the_job_policy_and_nothing_else_of_the_operators() -> None:
    objects = render()
    (rule,) = objects[("Role", names.JOB_POLICY)]["rules"]
    assert (rule["resources"], rule["resourceNames"], rule["verbs"]) == (["configmaps"], [names.JOB_POLICY], ["get"])
    (subject,) = objects[("RoleBinding", names.JOB_POLICY)]["subjects"]
    assert (subject["kind"], subject["name"]) == ("Group", "system:authenticated")


def test_defaults_of_jobs_reach_the_operator_and_misspelt_ones_are_refused() -> None:
    found = job_policy("jobs.defaults.image=trainer:1", "jobs.defaults.scheduling.topologyLevels={block,rack}")
    assert found.defaults.image == "trainer:1"
    assert found.defaults.scheduling.topology_levels == ["block", "rack"]
    refused = helm("jobs.defaults.imagePullSecret=x")
    assert refused.returncode != 0
    assert "imagePullSecret" in refused.stderr


def test_the_defaults_of_job_pods_are_the_operators_own() -> None:
    assert job_policy().completed(make_job().spec) == JobPolicy().completed(make_job().spec)
    assert job_policy().leave_nodes == JobPolicy().leave_nodes
    assert job_policy().limits == JobPolicy(limits={"userIds": {"minimum": 1}}).limits


def test_the_administrator_sets_user_groups_runtime_and_limits_of_job_pods() -> None:
    found = job_policy(
        "jobs.podSecurity.runAsUser=1234567890",
        "jobs.podSecurity.supplementalGroups={5000}",
        "jobs.runtimeClassName=nvidia",
        "jobs.limits.groupIds.maximum=6000",
        "jobs.limits.runtimeClassNames={nvidia}",
    )
    assert found.pod_security.run_as_user == 1234567890
    assert found.pod_security.supplemental_groups == [5000]
    assert found.runtime_class_name == "nvidia"
    assert (found.limits.group_ids.maximum, found.limits.runtime_class_names) == (6000, ["nvidia"])


def test_the_administrator_annotates_the_account_of_pods_and_patches_them() -> None:
    found = job_policy(
        "jobs.serviceAccount.annotations.example\\.com/role=rl",
        "jobs.podPatch.all.spec.hostNetwork=true",
        "jobs.podPatch.models.spec.containers[0].name=trainer",
        "jobs.podPatch.models.spec.containers[0].resources.claims[0].name=nic",
    )
    assert found.service_account.annotations == {"example.com/role": "rl"}
    assert found.pod_patch.all == {"spec": {"hostNetwork": True}}
    (container,) = found.pod_patch.models["spec"]["containers"]
    assert container == {"name": "trainer", "resources": {"claims": [{"name": "nic"}]}}


def test_the_administrator_says_which_nodes_jobs_leave() -> None:
    found = job_policy("jobs.leaveNodes.cordoned=false", "jobs.leaveNodes.taints={example.com/sick}").leave_nodes
    assert (found.cordoned, found.taints) == (False, ["example.com/sick"])
    refused = helm("jobs.leaveNodes.conditions={Ready=Perhaps}")
    assert refused.returncode != 0 and "conditions" in refused.stderr


def test_the_operator_may_list_the_requests_for_nodes_that_the_administrator_names_and_no_others() -> None:
    def listed(*values: str) -> set[tuple[str, str]]:
        role = render(*values)[("ClusterRole", "rljob-system-rljob-nodes")]
        return {(group, resource) for group, resource, _ in rules(role) if group not in ("", "resource.k8s.io")}

    drains, maintenances = (
        ("nvsentinel.nvidia.com", "drainrequests"),
        ("nodemaintenance.medik8s.io", "nodemaintenances"),
    )
    assert listed() == {drains, maintenances}
    assert listed("jobs.leaveNodes.requests={repairs.v1.fleet.example.com}") == {("fleet.example.com", "repairs")}
    assert listed("jobs.leaveNodes.requests=null") == listed("jobs=null") == set()
    assert job_policy("jobs.leaveNodes.requests={repairs.v1.fleet.example.com}").leave_nodes.requests == [
        "repairs.v1.fleet.example.com"
    ]
    refused = helm("jobs.leaveNodes.requests={drainrequests}")
    assert refused.returncode != 0 and "requests" in refused.stderr


def test_a_field_that_is_null_is_left_to_the_platform() -> None:
    found = job_policy(*(f"jobs.podSecurity.{field}=null" for field in ("runAsUser", "runAsGroup", "fsGroup")))
    given = found.pod_security
    assert (given.run_as_user, given.run_as_group, given.fs_group) == (None, None, None)
    assert given.fs_group_change_policy == "OnRootMismatch"


def test_settings_of_jobs_that_are_null_are_the_defaults() -> None:
    found = render("jobs=null")
    assert job_policy("jobs=null").completed(make_job().spec) == job_policy().completed(make_job().spec)
    assert "--network-policies" in container(found)["args"], "no job loses its protection by what is not there"
    assert "--network-policies" in container(render("jobs.networkPolicy=null"))["args"]
    assert "--no-network-policies" in container(render("jobs.networkPolicy=false"))["args"]


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
