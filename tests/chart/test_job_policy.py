"""What an administrator sets for all jobs reaches the operator."""

import pytest

from chart.chart import (
    HELM,
    NO_HELM,
    container,
    helm,
    render,
    rules,
)
from rljob_api import names
from rljob_api.policy import JobPolicy
from simulator.makers import make_job

pytestmark = pytest.mark.skipif(HELM is None, reason=NO_HELM)


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
