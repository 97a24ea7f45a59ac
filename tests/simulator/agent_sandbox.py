"""What the controllers of kubernetes-sigs/agent-sandbox, and the garbage collector, make of pools and claims in a FakeCluster.

After its source at 2fd412d55e (2026-08-22), whose API is that of release 0.5.6: sandboxwarmpool_controller.go (`reconcilePool`, `buildSandboxCR`),
sandboxclaim_controller.go (`completeAdoption`), and sandbox_controller.go (`reconcilePod`).
"""

from itertools import count

from rljob_operator.kube.api import Object
from simulator.cluster import FakeCluster
from simulator.objects import copied, merge

SUFFIXES = count(1)
WAITS = {"agents.x-k8s.io/warm-pool-sandbox": "true"}
"""Label of a pod that nobody has claimed; its value there is a hash of the pool's name."""


def sync_agent_sandbox(cluster: FakeCluster) -> None:
    for claim in _all(cluster, "SandboxClaim"):
        if "deletionTimestamp" in claim["metadata"]:
            _end(cluster, claim)
    owners = {o["metadata"]["uid"] for kind in ("SandboxWarmPool", "SandboxClaim") for o in _all(cluster, kind)}
    for sandbox in _all(cluster, "Sandbox"):
        if sandbox["owner"] not in owners:
            cluster.remove(sandbox)
    for pool in _all(cluster, "SandboxWarmPool"):
        for _ in range(pool["spec"]["replicas"] - len(_owned(cluster, pool))):
            _add_sandbox(cluster, pool)
    for claim in _all(cluster, "SandboxClaim"):
        if "deletionTimestamp" not in claim["metadata"] and not _owned(cluster, claim):
            _adopt(cluster, claim)
    for sandbox in _all(cluster, "Sandbox"):
        if _pod(cluster, sandbox) is None:
            _add_pod(cluster, sandbox)


def _end(cluster: FakeCluster, claim: Object) -> None:
    """It is deleted after its sandbox, and that after its pod."""
    owned = _owned(cluster, claim)
    pods = [pod for sandbox in owned if (pod := _pod(cluster, sandbox))]
    for pod in pods:
        if "deletionTimestamp" not in pod["metadata"]:
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            cluster.touch(pod)
    if not pods:
        for one in (*owned, claim):
            cluster.remove(one)


def _add_sandbox(cluster: FakeCluster, pool: Object, claim: Object | None = None) -> None:
    """For the pool, or for a claim that has found none there."""
    meta, owner = pool["metadata"], claim or pool
    key = ("SandboxTemplate", meta["namespace"], pool["spec"]["sandboxTemplateRef"]["name"])
    if key in cluster.objects:
        name = claim["metadata"]["name"] if claim else f"{meta['name']}-{next(SUFFIXES):05x}"
        sandbox = {"kind": "Sandbox", "metadata": {"name": name, "namespace": meta["namespace"]}}
        template = copied(cluster.objects[key]["spec"]["podTemplate"])
        cluster.put(sandbox | {"owner": owner["metadata"]["uid"], "template": template})


def _add_pod(cluster: FakeCluster, sandbox: Object) -> None:
    meta, template = sandbox["metadata"], copied(sandbox["template"])
    owner = {"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "controller": True}
    owner |= {key: meta[key] for key in ("name", "uid")}
    own = {"name": meta["name"], "namespace": meta["namespace"], "ownerReferences": [owner]}
    waits = {"labels": template["metadata"]["labels"] | ({} if "claimed" in sandbox else WAITS)}
    pod = cluster.put({"kind": "Pod", "metadata": template["metadata"] | own | waits, "spec": template["spec"]})
    pod["status"] = {"phase": "Pending"}


def _adopt(cluster: FakeCluster, claim: Object) -> None:
    """The oldest that waits, if there is one. The claim's labels and annotations are written into its pod."""
    where = ("SandboxWarmPool", claim["metadata"]["namespace"], claim["spec"]["warmPoolRef"]["name"])
    pool = cluster.objects.get(where)
    if pool is None:
        return
    waits = _owned(cluster, pool)
    if not waits:
        _add_sandbox(cluster, pool, claim)
    for sandbox in waits[:1] or _owned(cluster, claim):
        sandbox |= {"owner": claim["metadata"]["uid"], "claimed": True}
        merge(sandbox["template"]["metadata"], claim["spec"]["additionalPodMetadata"])
        if pod := _pod(cluster, sandbox):
            pod["metadata"]["labels"] = {k: v for k, v in pod["metadata"]["labels"].items() if k not in WAITS}
            merge(pod["metadata"], claim["spec"]["additionalPodMetadata"])
            cluster.touch(pod)


def _all(cluster: FakeCluster, kind: str) -> list[Object]:
    return [obj for key, obj in cluster.objects.items() if key[0] == kind]


def _owned(cluster: FakeCluster, owner: Object) -> list[Object]:
    return [sandbox for sandbox in _all(cluster, "Sandbox") if sandbox["owner"] == owner["metadata"]["uid"]]


def _pod(cluster: FakeCluster, sandbox: Object) -> Object | None:
    return cluster.objects.get(("Pod", sandbox["metadata"]["namespace"], sandbox["metadata"]["name"]))


def waiting(cluster: FakeCluster) -> list[Object]:
    """Pods that nobody has claimed."""
    return [pod for pod in _all(cluster, "Pod") if WAITS.items() <= pod["metadata"]["labels"].items()]
