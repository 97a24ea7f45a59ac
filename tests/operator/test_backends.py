"""What kueue and volcano are given, against facts of those projects.

Kueue v0.19.2 (main at ff69552e79, 2026-08-23): apis/kueue/v1beta2/topology_types.go, pkg/controller/constants/constants.go,
pkg/controller/jobs/pod/constants/constants.go and the checks of pkg/controller/jobs/pod/pod_webhook.go.
Volcano 1.15.0 (master at ed72c7c815, 2026-08-20): installer/helm/chart/volcano/crd/bases/scheduling.volcano.sh_podgroups.yaml,
staging/src/volcano.sh/apis/pkg/apis/{scheduling/v1beta1,batch/v1alpha1}/labels.go.
"""

import re
from typing import Any

import pytest

from api.specs import make_spec
from rljob_api import names
from rljob_operator.cache.cluster import ClusterCache
from rljob_operator.reconcile.reconciler import Reconciler
from rljob_operator.render import scheduler_objects
from rljob_operator.render.gang import stateful_set
from rljob_operator.render.template import pod_template
from simulator.cluster import FakeCluster
from simulator.makers import META
from simulator.objects import job_object
from simulator.world import NAMESPACE

KUEUE_LABELS = {"kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/pod-group-name"}
KUEUE_ANNOTATIONS = {
    "kueue.x-k8s.io/pod-group-total-count": r"[1-9]\d*",
    "kueue.x-k8s.io/pod-group-serving": "true",
    "kueue.x-k8s.io/podset-preferred-topology": r"[-A-Za-z0-9_./]+",
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


@pytest.mark.parametrize("backend", ["builtin", "none", "kueue"])
def test_only_volcano_has_an_object_of_its_own(backend: str) -> None:
    assert scheduler_objects(META, gpu_spec(backend=backend)) == []


def test_builtin_gates_its_pods_and_none_does_nothing() -> None:
    gated = template(gpu_spec(backend="builtin"), names.ROLE_TRAINER)["spec"]
    assert gated["schedulingGates"] == [{"name": names.GATE}]
    assert "schedulingGates" not in template(gpu_spec(backend="none"), names.ROLE_TRAINER)["spec"]


async def test_a_pod_group_is_made_before_the_pods_and_only_once() -> None:
    cluster, cache = FakeCluster(), ClusterCache(lambda: 0.0)
    raw = {"backend": "volcano", "queue": "team"}
    cache.put(cluster.put(job_object("demo", make_spec(scheduling=raw).dump())))
    for _ in range(2):
        await Reconciler(cluster, cache, 30, clock=lambda: 1000.0)((NAMESPACE, "demo"))
    made = [w for w in cluster.writes if w.startswith("create")]
    assert made.count("create PodGroup demo-gang") == 1
    assert made.index("create PodGroup demo-gang") < made.index("create StatefulSet demo-trainer")
