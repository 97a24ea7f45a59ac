"""What StatefulSet controller, garbage collector, scheduler and kubelet make of the objects in a FakeCluster."""

from collections import Counter

from rljob_api import names
from rljob_operator.kube.api import Object
from simulator.agent_sandbox import sync_agent_sandbox
from simulator.cluster import FakeCluster
from simulator.objects import copied


def sync_stateful_sets(cluster: FakeCluster) -> None:
    """Pods that are missing are made, and run at once unless they are gated; those that are too many go at once, as do failed ones, which are
    replaced, and those of a set that is gone (the garbage collector's work)."""
    sync_agent_sandbox(cluster)
    sets = {o["metadata"]["uid"] for key, o in cluster.objects.items() if key[0] in ("StatefulSet", "Sandbox")}
    for key, pod in list(cluster.objects.items()):
        if key[0] == "Pod" and (owner := owner_of(pod)) and owner not in sets:
            cluster.remove(pod)
    owned: dict[str, list[Object]] = {}
    for key, pod in cluster.objects.items():
        if key[0] == "Pod":
            owned.setdefault(owner_of(pod), []).append(pod)
    for (kind, namespace, name), sts in list(cluster.objects.items()):
        if kind != "StatefulSet" or namespace is None:
            continue
        size = sts["spec"]["replicas"]
        _adopt(cluster, sts, owned)
        for ordinal in range(size):
            pod = cluster.objects.get(("Pod", namespace, f"{name}-{ordinal}"))
            if pod and pod.get("status", {}).get("phase") == "Failed" and not pod["metadata"].get("finalizers"):
                cluster.remove(pod)
            if ("Pod", namespace, f"{name}-{ordinal}") not in cluster.objects:
                _start_pod(cluster, sts, ordinal)
        for pod in owned.get(sts["metadata"]["uid"], ()):
            if int(pod["metadata"]["name"].rpartition("-")[2]) >= size:
                cluster.remove(pod)
    _schedule(cluster)


def _owner(sts: Object) -> Object:
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "controller": True}
    return owner | {key: sts["metadata"][key] for key in ("name", "uid")}


def _adopt(cluster: FakeCluster, sts: Object, owned: dict[str, list[Object]]) -> None:
    """Pods of its selector and names that have no controller, such as those of a set that was deleted with `--cascade=orphan`. `owned`: pods by
    controller."""
    wanted = sts["spec"]["selector"]["matchLabels"].items()
    named = {f"{sts['metadata']['name']}-{ordinal}" for ordinal in range(sts["spec"]["replicas"])}
    for pod in owned.get("", ()):
        if pod["metadata"]["name"] in named and wanted <= pod["metadata"].get("labels", {}).items():
            cluster.touch(pod)
            pod["metadata"]["ownerReferences"] = [_owner(sts)]
            owned.setdefault(sts["metadata"]["uid"], []).append(pod)


def _start_pod(cluster: FakeCluster, sts: Object, ordinal: int) -> None:
    owner = _owner(sts)
    meta = {
        "name": f"{owner['name']}-{ordinal}",
        "namespace": sts["metadata"]["namespace"],
        "ownerReferences": [owner],
    }
    template = copied(sts["spec"]["template"])
    pod = cluster.put({"kind": "Pod", "metadata": template["metadata"] | meta, "spec": template["spec"]})
    pod["status"] = {"phase": "Pending"}


def _schedule(cluster: FakeCluster) -> None:
    """Pods that nothing holds back, onto the node that they are pinned to, if it is there and has capacity, or onto the first that takes them."""
    for (kind, _, _), pod in list(cluster.objects.items()):
        waits = pod.get("status", {}).get("phase") == "Pending" and "deletionTimestamp" not in pod["metadata"]
        free = kind == "Pod" and waits and not pod["spec"].get("schedulingGates")
        node = (pod["spec"].get("nodeName") or pinned_to(pod) or _first(cluster, pod)) if free else ""
        if free and ("Node", None, node) in cluster.objects and node not in cluster.full:
            _run_pod(cluster, pod, node)


def _first(cluster: FakeCluster, pod: Object) -> str:
    """A node for a pod that is not pinned, by kube-scheduler's rules of names, cordons and numbers of pods; empty: none takes it."""
    taken = Counter(p["spec"].get("nodeName") for (kind, _, _), p in cluster.objects.items() if kind == "Pod")
    for (kind, _, name), node in list(cluster.objects.items()):
        open_ = kind == "Node" and not node.get("spec", {}).get("unschedulable") and name not in _named(pod, "NotIn")
        if open_ and taken[name] < int(node["status"]["allocatable"]["pods"]):
            return name
    return ""


def _run_pod(cluster: FakeCluster, pod: Object, node: str) -> None:
    """As the kubelet: not before the Secret is there, whose value the containers keep."""
    pod["spec"]["nodeName"] = node
    name = secret_of(pod)
    secret = cluster.objects.get(("Secret", pod["metadata"]["namespace"], name))
    if name and secret is None:
        _await_secret(cluster, pod, name)
        return
    cluster.touch(pod)
    pod["status"] = {
        "token": secret["stringData"][names.TOKEN_KEY] if secret else "",
        "account": account_of(cluster, pod),
        "phase": "Running",
        "podIP": f"10.0.0.{cluster.version}",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": c["name"], "state": {"running": {}}} for c in pod["spec"]["containers"]],
    }


def _await_secret(cluster: FakeCluster, pod: Object, name: str) -> None:
    why = {"reason": "CreateContainerConfigError", "message": f'secret "{name}" not found'}
    states = [{"name": c["name"], "state": {"waiting": why}} for c in pod["spec"]["containers"]]
    if pod["status"].get("containerStatuses") != states:
        cluster.touch(pod)
        pod["status"] = {"phase": "Pending", "containerStatuses": states}


def owner_of(obj: Object) -> str:
    """Uid of its controller; empty: it has none."""
    owners = obj["metadata"].get("ownerReferences", [])
    return next((o["uid"] for o in owners if o.get("controller")), "")


def account_of(cluster: FakeCluster, pod: Object) -> str:
    """Uid of the ServiceAccount to which its token is bound when it starts now; empty: there is none."""
    key = ("ServiceAccount", pod["metadata"]["namespace"], pod["spec"].get("serviceAccountName", ""))
    found = cluster.objects.get(key)
    return str(found["metadata"]["uid"]) if found else ""


def secret_of(pod: Object) -> str:
    """That its environment takes a value from; empty: none."""
    env = [entry for c in pod["spec"]["containers"] for entry in c.get("env", [])]
    refs = (entry.get("valueFrom", {}).get("secretKeyRef", {}) for entry in env)
    return next((str(ref["name"]) for ref in refs if ref), "")


def pinned_to(pod: Object) -> str:
    """The node that its affinity asks for by name; empty: none."""
    return next(iter(_named(pod, "In")), "")


def _named(pod: Object, operator: str) -> set[str]:
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    fields = (field for term in terms for field in term.get("matchFields", []) if field["operator"] == operator)
    return {value for field in fields for value in field["values"]}
