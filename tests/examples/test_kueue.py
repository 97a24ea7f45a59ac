"""examples/kueue: the job finds its queue, the queue its nodes, and the gang fits into the quota."""

from pathlib import Path
from typing import Any

import yaml

from rljob_api import names
from rljob_api.quantity import Thousandths, add, parse
from rljob_api.spec import RLJobSpec
from rljob_operator.render.template import pod_template
from rljob_operator.schedulers.kueue import POD_INDEX
from rljob_placement.gang import Gang
from simulator.makers import META

EXAMPLE = Path(__file__).parents[2] / "examples" / "kueue"
QUEUES = list(yaml.safe_load_all((EXAMPLE / "queues.yaml").read_text()))
JOB = yaml.safe_load((EXAMPLE / "rljob.yaml").read_text())
SPEC, SPEC_NAME = RLJobSpec.model_validate(JOB["spec"]), JOB["metadata"]["name"]


def named(kind: str, name: str, namespace: str | None = None) -> dict[str, Any]:
    """The spec of the only such object."""
    (found,) = (
        o
        for o in QUEUES
        if (o["kind"], o["metadata"]["name"], o["metadata"].get("namespace")) == (kind, name, namespace)
    )
    spec: dict[str, Any] = found["spec"]
    return spec


def quota_of_the_job() -> dict[str, Any]:
    """The resource group of the cluster queue behind the job's queue."""
    assert SPEC.scheduling.queue
    local = named("LocalQueue", SPEC.scheduling.queue, JOB["metadata"]["namespace"])
    queue = named("ClusterQueue", local["clusterQueue"])
    assert queue["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": JOB["metadata"]["namespace"]}
    (group,) = queue["resourceGroups"]
    return group


def test_every_queue_leads_to_nodes() -> None:
    for local in (o for o in QUEUES if o["kind"] == "LocalQueue"):
        for group in named("ClusterQueue", local["spec"]["clusterQueue"])["resourceGroups"]:
            for flavor in group["flavors"]:
                assert {r["name"] for r in flavor["resources"]} == set(group["coveredResources"])
                assert named("Topology", named("ResourceFlavor", flavor["name"])["topologyName"])["levels"]


def test_the_jobs_levels_are_those_of_its_nodes() -> None:
    (flavor,) = quota_of_the_job()["flavors"]
    levels = named("Topology", named("ResourceFlavor", flavor["name"])["topologyName"])["levels"]
    assert {level["nodeLabel"] for level in levels} >= set(SPEC.scheduling.topology_levels) != set()
    annotations = pod_template(META, SPEC, names.ROLE_TRAINER)["metadata"]["annotations"]
    assert annotations["kueue.x-k8s.io/podset-preferred-topology"] == "example.com/rack"
    assert annotations["kueue.x-k8s.io/pod-group-pod-index-label"] == POD_INDEX


def test_the_whole_gang_fits_into_the_teams_own_quota() -> None:
    """A resource that the queue does not cover would keep the job from being admitted."""
    gang, wanted = Gang.of(SPEC), Thousandths()
    for demand, count in ((gang.trainer, gang.trainers), (gang.rollout, SPEC.rollout.replicas)):
        wanted = add(wanted, {k: v * count for k, v in demand.requests.items() if k != "pods"})
    (flavor,) = quota_of_the_job()["flavors"]
    quota = {r["name"]: parse(str(r["nominalQuota"])) for r in flavor["resources"]}
    assert wanted.keys() <= quota.keys()
    assert {name: amount for name, amount in wanted.items() if amount > quota[name]} == {}
    assert wanted["nvidia.com/gpu"] == quota["nvidia.com/gpu"], "two nodes, all of it"


def test_the_workload_of_a_job_for_another_cluster_counts_the_gpus_of_its_pods() -> None:
    workload = yaml.safe_load((EXAMPLE / "workload.yaml").read_text())
    (owner,) = workload["metadata"]["ownerReferences"]
    assert (owner["apiVersion"], owner["kind"], owner["name"]) == (JOB["apiVersion"], JOB["kind"], SPEC_NAME)
    counted = {s["name"]: (s["count"], s["template"]["spec"]["containers"]) for s in workload["spec"]["podSets"]}
    assert counted.keys() == SPEC.pod_counts.keys()
    for role, (count, (container,)) in counted.items():
        wanted = SPEC.container_resources(role)["limits"]["nvidia.com/gpu"]
        assert (count, str(container["resources"]["limits"]["nvidia.com/gpu"])) == (SPEC.pod_counts[role], wanted)
    manager = list(yaml.safe_load_all((EXAMPLE / "multikueue.yaml").read_text()))
    (queue,) = (o for o in manager if o["kind"] == "LocalQueue")
    assert workload["spec"]["queueName"] == queue["metadata"]["name"]
    assert workload["metadata"]["namespace"] == queue["metadata"]["namespace"]
