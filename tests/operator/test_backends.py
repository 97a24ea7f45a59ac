"""What kueue, volcano, kai and Kubernetes' own gangs are given, against facts of those projects.

Kueue v0.19.2 (main at ff69552e79, 2026-08-23): apis/kueue/v1beta2/topology_types.go, pkg/controller/constants/constants.go,
pkg/controller/jobs/pod/constants/constants.go and the checks of pkg/controller/jobs/pod/pod_webhook.go.
Volcano 1.15.0 (master at ed72c7c815, 2026-08-20): installer/helm/chart/volcano/crd/bases/scheduling.volcano.sh_podgroups.yaml,
staging/src/volcano.sh/apis/pkg/apis/{scheduling/v1beta1,batch/v1alpha1}/labels.go.
KAI 0.15.0: docs/batch/README.md ("External PodGroups"), pkg/apis/scheduling/v2alpha2/podgroup_types.go.
Kubernetes 1.37.2: staging/src/k8s.io/api/scheduling/v1beta1/types.go; tests/apiserver/test_native_gangs.py has the real scheduler.
"""

import re
from typing import Any, get_args

import pytest

from api.specs import make_spec
from rljob_api import names
from rljob_api.backends import BACKENDS, BackendName
from rljob_operator.cache.cluster import ClusterCache
from rljob_operator.kube import api
from rljob_operator.kube.api import kind_of
from rljob_operator.reconcile.reconciler import Reconciler
from rljob_operator.render import scheduler_objects
from rljob_operator.render.template import pod_template, stateful_set
from rljob_operator.schedulers import SCHEDULERS
from simulator.cluster import FakeCluster
from simulator.counted import counted
from simulator.makers import META
from simulator.objects import job_object
from simulator.world import NAMESPACE

KUEUE_LABELS = {"kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/pod-group-name"}
KUEUE_ANNOTATIONS = {
    "kueue.x-k8s.io/pod-group-total-count": r"[1-9]\d*",
    "kueue.x-k8s.io/pod-group-serving": "true",
    "kueue.x-k8s.io/podset-preferred-topology": r"[-A-Za-z0-9_./]+",
    "kueue.x-k8s.io/podset-required-topology": r"[-A-Za-z0-9_./]+",
    "kueue.x-k8s.io/podset-slice-required-topology": r"[-A-Za-z0-9_./]+",
    "kueue.x-k8s.io/podset-slice-size": r"[1-9]\d*",
    "kueue.x-k8s.io/pod-group-pod-index-label": "apps\\.kubernetes\\.io/pod-index",
}
QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
POD_GROUP = {
    "minMember": lambda v: isinstance(v, int) and v >= 0,
    "minTaskMember": lambda v: all(isinstance(n, int) for n in v.values()),
    "minResources": lambda v: all(re.fullmatch(QUANTITY, q) for q in v.values()),
    "queue": lambda v: bool(re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", v)),
    "priorityClassName": lambda v: len(v) <= 253,
}
"""Fields of PodGroup.spec that we use, and what the CRD wants of them."""
NATIVE = {"backend": "native"}


def gpu_spec(**scheduling: Any) -> Any:
    trainer = {
        "device": "gpu",
        "nodes": 4,
        "processesPerNode": 8,
        "template": {"resources": {"requests": {"cpu": "1500m"}}, "priorityClassName": "high"},
    }
    return make_spec(trainer=trainer, rollout={"replicas": 3, "minReplicas": 2}, scheduling=scheduling)


def template(spec: Any, role: str) -> dict[str, Any]:
    return pod_template(META, spec, role)


def test_kueue_gets_one_pod_group_over_both_sets_with_its_topology() -> None:
    spec = gpu_spec(backend="kueue", queue="team", topologyLevels=["block", "rack"])
    for role in names.ROLES:
        meta = template(spec, role)["metadata"]
        ours = {k: v for k, v in meta["labels"].items() if "kueue" in k}
        assert ours == {"kueue.x-k8s.io/queue-name": "team", "kueue.x-k8s.io/pod-group-name": "demo-gang"}
        assert ours.keys() <= KUEUE_LABELS
        notes = {k: v for k, v in meta["annotations"].items() if "kueue" in k}
        assert notes["kueue.x-k8s.io/pod-group-total-count"] == "7", "of both roles: the group is admitted whole"
        assert notes["kueue.x-k8s.io/podset-preferred-topology"] == "rack", "narrow first, then wider"
        assert all(re.fullmatch(KUEUE_ANNOTATIONS[k], v) for k, v in notes.items())


def test_a_level_that_is_required_replaces_the_one_that_kueue_prefers() -> None:
    levels = ["block", "rack"]
    spec = gpu_spec(backend="kueue", queue="team", topologyLevels=levels, requiredLevel="block")
    for role in names.ROLES:
        notes = {k: v for k, v in template(spec, role)["metadata"]["annotations"].items() if "kueue" in k}
        assert notes["kueue.x-k8s.io/podset-required-topology"] == "block"
        assert "kueue.x-k8s.io/podset-preferred-topology" not in notes, "Kueue takes one of them"
        assert all(re.fullmatch(KUEUE_ANNOTATIONS[k], v) for k, v in notes.items())


def test_servers_of_several_pods_are_slices_of_kueues_pod_set() -> None:
    spec = gpu_spec(backend="kueue", queue="team", topologyLevels=["block", "rack"])
    whole = {"nodes": 2, "tensorParallel": 8, "pipelineParallel": 2}
    spec = spec.model_copy(update={"rollout": make_spec(rollout={"replicas": 3, "minReplicas": 2} | whole).rollout})
    notes = {role: template(spec, role)["metadata"]["annotations"] for role in names.ROLES}
    assert {note["kueue.x-k8s.io/pod-group-total-count"] for note in notes.values()} == {"10"}
    assert notes["rollout"]["kueue.x-k8s.io/podset-slice-size"] == "2"
    assert notes["rollout"]["kueue.x-k8s.io/podset-slice-required-topology"] == "rack"
    assert not any("slice" in key for key in notes["trainer"])
    assert all(
        re.fullmatch(KUEUE_ANNOTATIONS[k], v) for note in notes.values() for k, v in note.items() if "kueue" in k
    )


@pytest.mark.parametrize("backend", SCHEDULERS)
def test_every_scheduler_counts_the_pods_of_whole_servers(backend: BackendName) -> None:
    queue = {"queue": "team"} if "queue" in BACKENDS[backend].fields else {}
    whole = {"nodes": 2, "tensorParallel": 2, "replicas": 4, "minReplicas": 2}
    spec = make_spec(scheduling={"backend": backend} | queue, rollout=whole)
    groups = SCHEDULERS[backend].objects(META, spec)
    assert not groups or counted(backend, groups) == {"trainer": 1, "rollout": 4}
    made = template(spec, "rollout")
    assert {"name": names.GATE} in made["spec"]["schedulingGates"], "they are released server by server"
    assert made["metadata"]["annotations"][names.ANNOTATION_NODES] == "2"
    assert not template(spec, "trainer")["spec"].get("schedulingGates") or backend == "builtin"


def test_spares_belong_to_kueues_group_and_not_to_the_minimum_of_volcanos() -> None:
    """Kueue admits all pods that there will be, Volcano starts the gang without those that it can do without."""
    spec = gpu_spec(backend="kueue", queue="team", spareNodes=2)
    notes = template(spec, names.ROLE_TRAINER)["metadata"]["annotations"]
    assert notes["kueue.x-k8s.io/pod-group-total-count"] == "9"
    (group,) = scheduler_objects(META, gpu_spec(backend="volcano", queue="team", spareNodes=2))
    assert group["spec"]["minTaskMember"] == {"trainer": 4, "rollout": 2}
    assert group["spec"]["minMember"] == 6


def test_a_set_itself_is_no_workload_of_kueue() -> None:
    """Its queue label would make each set a gang of its own, which may only be scaled between 0 and all."""
    spec = gpu_spec(backend="kueue", queue="team")
    made = stateful_set(META, names.ROLE_TRAINER, 4, pod_template(META, spec, names.ROLE_TRAINER))
    assert not any("kueue" in key for key in made["metadata"]["labels"])
    assert "schedulingGates" not in made["spec"]["template"]["spec"], "Kueue's webhook adds its own"
    assert "podset-preferred-topology" not in str(made), "without levels nothing is said about topology"


def test_volcano_gets_one_pod_group_with_a_minimum_of_each_role() -> None:
    spec = gpu_spec(backend="volcano", queue="team")
    (group,) = scheduler_objects(META, spec)
    assert (group["apiVersion"], group["kind"]) == ("scheduling.volcano.sh/v1beta1", "PodGroup")
    assert group["metadata"]["name"] == "demo-gang"
    assert group["metadata"]["ownerReferences"][0]["uid"] == META.uid
    assert group["spec"] == {
        "minMember": 6,
        "minTaskMember": {"trainer": 4, "rollout": 2},
        "minResources": {"nvidia.com/gpu": "34", "cpu": "6"},
        "queue": "team",
        "priorityClassName": "high",
    }
    assert all(POD_GROUP[key](value) for key, value in group["spec"].items())
    for role in names.ROLES:
        made = template(spec, role)
        assert made["spec"]["schedulerName"] == "volcano"
        assert made["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "demo-gang"
        assert made["metadata"]["annotations"]["volcano.sh/task-spec"] == role


def test_kai_gets_one_pod_group_with_a_subgroup_for_each_role_and_makes_none_of_its_own() -> None:
    spec = gpu_spec(backend="kai", queue="team", spareNodes=2)
    (group,) = scheduler_objects(META, spec)
    assert (group["apiVersion"], group["kind"]) == ("scheduling.run.ai/v2alpha2", "PodGroup")
    assert group["metadata"]["name"] == "demo-gang"
    assert group["spec"] == {
        "minMember": 6,
        "subGroups": [{"name": "trainer", "minMember": 4}, {"name": "rollout", "minMember": 2}],
        "queue": "team",
        "priorityClassName": "high",
    }
    for role in names.ROLES:
        made = template(spec, role)
        assert made["spec"]["schedulerName"] == "kai-scheduler"
        assert (
            made["metadata"]["labels"].items()
            >= {
                "kai.scheduler/queue": "team",
                "kai.scheduler/subgroup-name": role,
            }.items()
        )
        skip = {"pod-group-name": "demo-gang", "kai.scheduler/skip-podgrouper": "true"}
        assert made["metadata"]["annotations"].items() >= skip.items()


def test_kubernetes_gets_a_pod_group_for_each_role_and_no_rollout_stands_in_for_a_trainer() -> None:
    spec = gpu_spec(backend="native", spareNodes=2)
    groups = {group["metadata"]["name"]: group for group in scheduler_objects(META, spec)}
    (trainers, rollouts) = groups
    assert {(group["apiVersion"], group["kind"]) for group in groups.values()} == {
        ("scheduling.k8s.io/v1beta1", "PodGroup")
    }
    assert groups[trainers]["spec"] == {
        "schedulingPolicy": {"gang": {"minCount": 4}},
        "disruptionMode": {"all": {}},
        "priorityClassName": "high",
    }, "without the spares; a gang is of no use without one of its pods"
    assert groups[rollouts]["spec"] == {
        "schedulingPolicy": {"gang": {"minCount": 2}},
        "disruptionMode": {"single": {}},
    }
    for role, name in zip(names.ROLES, groups, strict=True):
        made = template(spec, role)["spec"]
        assert made["schedulingGroup"] == {"podGroupName": name}
        assert "schedulerName" not in made


def test_a_pod_group_of_kubernetes_changes_its_count_and_is_another_one_when_what_it_may_not_change_changes() -> None:
    def name(**changes: Any) -> list[str]:
        return [g["metadata"]["name"] for g in scheduler_objects(META, make_spec(scheduling=NATIVE, **changes))]

    assert name() == name(trainer={"nodes": 3, "device": "cpu"}) == name(rollout={"replicas": 5, "minReplicas": 5})
    urgent = {"template": {"priorityClassName": "urgent"}}
    (trainer, rollout), (other, same) = name(), name(trainer=urgent)
    assert same == rollout and other != trainer and other.startswith("demo-trainer-")


def test_rollouts_that_may_all_be_missing_are_in_no_group_of_kubernetes() -> None:
    spec = make_spec(scheduling=NATIVE, rollout={"replicas": 2, "minReplicas": 0})
    (group,) = scheduler_objects(META, spec)
    assert group["metadata"]["name"].startswith("demo-trainer-")
    assert "schedulingGroup" not in template(spec, names.ROLE_ROLLOUT)["spec"]


@pytest.mark.parametrize("backend", ["builtin", "none", "kueue"])
def test_only_backends_with_groups_have_objects_of_their_own(backend: str) -> None:
    assert scheduler_objects(META, gpu_spec(backend=backend)) == []


def test_builtin_gates_its_pods_and_none_does_nothing() -> None:
    gated = template(gpu_spec(backend="builtin"), names.ROLE_TRAINER)["spec"]
    assert gated["schedulingGates"] == [{"name": names.GATE}]
    assert "schedulingGates" not in template(gpu_spec(backend="none"), names.ROLE_TRAINER)["spec"]


def test_every_backend_has_a_row_and_a_scheduler_that_makes_what_the_row_says() -> None:
    assert get_args(BackendName) == tuple(BACKENDS) == tuple(SCHEDULERS)
    for name, backend in BACKENDS.items():
        spec = gpu_spec(backend=name, **({"queue": "team"} if "queue" in backend.fields else {}))
        assert {kind_of(obj) for obj in scheduler_objects(META, spec)} == set(map(str, backend.kinds))


def test_kinds_of_one_name_are_told_apart_by_their_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """KAI and Kubernetes itself have a PodGroup, too."""
    monkeypatch.setitem(api.KINDS, "PodGroup.scheduling.run.ai", ("/apis/scheduling.run.ai/v2alpha2", "podgroups"))
    groups = {"scheduling.run.ai/v2alpha2": "KAI's", "scheduling.volcano.sh/v1beta1": "Volcano's"}
    cluster = FakeCluster()
    for version, whose in groups.items():
        meta = {"name": "demo-gang", "namespace": NAMESPACE}
        obj = cluster.put({"apiVersion": version, "kind": "PodGroup", "metadata": meta, "spec": {"whose": whose}})
        assert api.path(kind_of(obj), NAMESPACE) == f"/apis/{version}/namespaces/{NAMESPACE}/podgroups"
    kinds = [kind for kind, _, _ in cluster.objects if kind != "Node"]
    assert kinds == ["PodGroup.scheduling.run.ai", "PodGroup.scheduling.volcano.sh"]


async def test_a_pod_group_is_made_before_the_pods_and_only_once() -> None:
    cluster, cache = FakeCluster(), ClusterCache(lambda: 0.0)
    raw = {"backend": "volcano", "queue": "team"}
    cache.put(cluster.put(job_object("demo", make_spec(scheduling=raw).dump())))
    for _ in range(2):
        await Reconciler(cluster, cache, 30, clock=lambda: 1000.0, timer=lambda: 1000.0)((NAMESPACE, "demo"))
    made = [w for w in cluster.writes if w.startswith("create")]
    assert made.count("create PodGroup demo-gang") == 1
    assert made.index("create PodGroup demo-gang") < made.index("create StatefulSet demo-trainer")
