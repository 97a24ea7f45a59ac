"""RLJobs, JobSets, LeaderWorkerSets and plain StatefulSets in turn on one control plane: what each takes of time and of requests.

    python -m benchmarks.peers [crowd] [gang] [loss] [--kinds RLJob JobSet] [--nodes 200] [--crowd 100] [--each 4] [--gang 64] [--small 16]
                               [--repeats 3] [--seconds 300] [--qps 500] [--tree DIRECTORY]

As benchmarks.scale, with both other controllers alongside ours, each at 500 requests a second, their webhooks on loopback. A pod is lost in the way
that each kind looks for: ours and a StatefulSet's is deleted by force, LeaderWorkerSet's is deleted, JobSet's fails. `--each`: pods of a job of the
crowd; `--seconds`: within which all pods have to be bound; `--qps`: requests a second of each of Kubernetes' own controllers, one of which is the
garbage collector. Prints a Markdown table, and each figure as it comes to standard error. Compiles the controllers.
"""

import argparse
import asyncio
import re
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import yaml

from benchmarks import load
from benchmarks.scale import Bench
from e2e.cluster.binaries import BIN, JOBSET, KWOK, LWS, Component, build, is_built
from e2e.cluster.steps import REPOSITORY
from e2e.control_plane import ControlPlane, free_ports
from e2e.controllers import certificates, configuration, install_crd, install_hooks, source
from rljob_operator.cache.cluster import CHILD_KINDS
from rljob_operator.kube.api import KINDS, Object
from rljob_operator.watch.events import OURS

JOBSETS, LWSETS = "jobset.x-k8s.io/v1alpha2", "leaderworkerset.x-k8s.io/v1"
KINDS |= {
    "Job": ("/apis/batch/v1", "jobs"),
    "JobSet": (f"/apis/{JOBSETS}", "jobsets"),
    "LeaderWorkerSet": (f"/apis/{LWSETS}", "leaderworkersets"),
    "Service": ("/api/v1", "services"),
}
OWNED = {
    "RLJob": ("ConfigMap", *CHILD_KINDS),
    "JobSet": ("Job", "Service"),
    "LeaderWorkerSet": ("StatefulSet", "Service"),
    "StatefulSet": (),
}
"""By kind, what goes with its objects besides pods."""
LABELS = {"jobset": "jobset.sigs.k8s.io/jobset-name", "lws": "leaderworkerset.sigs.k8s.io/name"}
"""Of the pods that their webhooks look at, as their installation patches the manifests."""
UNCOUNTED = {"leases", "nodes", "events"}
"""Kinds of requests that are not for one job or another."""
RECREATED = {"JobSet", "LeaderWorkerSet"}
"""Kinds that make all pods of a gang anew when one is lost. The others replace that one."""
PEERS = {
    "JobSet": (JOBSET, Path("config", "components"), "config.jobset.x-k8s.io/v1alpha1"),
    "LeaderWorkerSet": (LWS, Path("config"), "config.lws.x-k8s.io/v1alpha1"),
}
"""Controllers by kind: component, directory of its manifests, and the version of its configuration."""
WHOLE_SECONDS = 60
"""Within which a gang has to be whole again."""
Make = Callable[[str, str, int], Object]
"""From namespace, name and number of pods."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("phases", nargs="*", help="what is measured: crowd, gang, loss. Otherwise all of them")
    parser.add_argument("--kinds", nargs="+", choices=MAKERS, default=[*MAKERS], help="otherwise all")
    sizes = {"--nodes": 200, "--crowd": 100, "--each": 4, "--gang": 64, "--small": 16}
    limits = {"--repeats": 3, "--seconds": 300, "--qps": 500}
    for name, default in (sizes | limits).items():
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--tree", type=Path, default=REPOSITORY, help="whose operator is measured")
    args = parser.parse_args()
    peers = [peer for kind, peer in PEERS.items() if kind in args.kinds]
    for component in (KWOK, *(component for component, *_ in peers)):
        if not is_built(component):
            build(component)
    with (
        tempfile.TemporaryDirectory() as directory,
        ControlPlane(Path(directory), managers=True, qps=args.qps) as plane,
    ):
        plane.install_crd()
        for peer in peers:
            start(plane, *peer)
        asyncio.run(measure(plane, args))


def start(plane: ControlPlane, component: Component, manifests: Path, version: str) -> None:
    """One of the peers."""
    name, (hook, health) = component.name, free_ports(2)
    where, keys = source(component, f"sigs.k8s.io/{name}") / manifests, certificates(plane.directory / f"{name}-keys")
    for crd in (where / "crd" / "bases").glob("*.yaml"):
        install_crd(plane, crd)
    connection = {"clientConnection": {"qps": 500, "burst": 500}}
    config = {"apiVersion": version, "kind": "Configuration"} | configuration(hook, health, keys) | connection
    file = plane.directory / f"{name}.yaml"
    file.write_text(yaml.safe_dump(config))
    plane.spawn(name, "env", f"KUBECONFIG={plane.kubeconfig}", BIN / name, f"--config={file}")
    plane.until(name, lambda: urllib.request.urlopen(f"http://127.0.0.1:{health}/readyz", timeout=2).status == 200)
    hooks, authority = where / "webhook" / "manifests.yaml", (keys / "tls.crt").read_bytes()
    install_hooks(plane, name, hooks, hook, authority, label=LABELS[name])


def rljob(namespace: str, name: str, pods: int) -> Object:
    return load.job(namespace, name, {"trainer": pods - 1, "rollout": 1}, "1")


def job_set(namespace: str, name: str, pods: int) -> Object:
    """Two kinds of pods, as a job of ours has; any pod that fails restarts them all."""
    replicated = [_replicated("trainer", pods - 1), _replicated("rollout", 1)]
    spec = {"failurePolicy": {"maxRestarts": 100}, "replicatedJobs": replicated}
    return {"apiVersion": JOBSETS, "kind": "JobSet", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def _replicated(name: str, pods: int) -> Object:
    template = {"spec": _template(name)["spec"] | {"restartPolicy": "Never"}}
    indexed = {"completionMode": "Indexed", "parallelism": pods, "completions": pods, "backoffLimit": 0}
    return {"name": name, "replicas": 1, "template": {"spec": indexed | {"template": template}}}


def leader_worker_set(namespace: str, name: str, pods: int) -> Object:
    template = {
        "size": pods,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "workerTemplate": {"spec": _template(name)["spec"]},
    }
    spec = {"replicas": 1, "leaderWorkerTemplate": template}
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": LWSETS, "kind": "LeaderWorkerSet", "metadata": meta, "spec": spec}


def _template(name: str) -> Object:
    """The container of benchmarks.scale's plain StatefulSets."""
    found: Object = load.stateful_set("", name, 1)["spec"]["template"]
    return found


MAKERS: dict[str, Make] = {
    "StatefulSet": load.stateful_set,
    "RLJob": rljob,
    "JobSet": job_set,
    "LeaderWorkerSet": leader_worker_set,
}


async def measure(plane: ControlPlane, args: argparse.Namespace) -> None:
    bench = Peers(plane, args)
    await bench.start()
    for kind in args.kinds:  # the garbage collector looks for kinds that are new to it every 30 s only
        await bench.life(kind, 1, 4)
    print(f"| what | {' | '.join(args.kinds)} |\n| --- |{' --- |' * len(args.kinds)}", flush=True)
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(args.repeats):
        for kind in args.kinds:
            for what, figure in (await bench.figures(kind)).items():
                print(f"{kind}: {what} {figure:.2f}", file=sys.stderr, flush=True)
                found[what][kind].append(figure)
    for what, by_kind in found.items():
        print(f"| {what} | {' | '.join(_figures(by_kind[kind]) for kind in args.kinds)} |", flush=True)
    await bench.end()


def _figures(found: Sequence[float]) -> str:
    return f"{median(found):.2f} ({min(found):.2f} to {max(found):.2f})" if found else ""


class Peers(Bench):
    """One control plane with all controllers."""

    _runs = 0

    def __init__(self, plane: ControlPlane, args: argparse.Namespace) -> None:
        super().__init__(plane, args)
        fast = source(KWOK, "sigs.k8s.io/kwok") / "kustomize" / "stage" / "pod" / "fast"
        self.stages = (fast / "pod-ready.yaml", fast / "pod-delete.yaml")  # JobSet's pods do not end either

    async def figures(self, kind: str) -> dict[str, float]:
        """Of one turn."""
        phases = {"crowd": self.time_crowd, "gang": self.time_gang, "loss": self.time_loss}
        found = dict[str, float]()
        for phase in self.args.phases or phases:
            found |= await phases[phase](kind)
        return found

    async def time_crowd(self, kind: str) -> dict[str, float]:
        count, each, before = self.args.crowd, self.args.each, self.writes_of_all()
        bound, gone = await self.life(kind, count, each)
        writes = (self.writes_of_all() - before) / count
        what = f"{count} jobs of {each} pods"
        return {f"{what}: bound, s": bound, f"{what}: deleted, s": gone, "writes of all programs for a job": writes}

    async def time_gang(self, kind: str) -> dict[str, float]:
        bound, gone = await self.life(kind, 1, self.args.gang)
        return {f"a gang of {self.args.gang}: bound, s": bound, f"a gang of {self.args.gang}: deleted, s": gone}

    async def time_loss(self, kind: str) -> dict[str, float]:
        """Of the last pod of a gang, until the gang is whole again, and how many of its pods are new then."""
        pods, namespace = self.args.small, await self.namespace(kind)
        version = (await self.api.listing("Pod", namespace)).version
        await self.api.create(MAKERS[kind](namespace, "lossy", pods))
        await self.bound(namespace, pods, version)
        before = {pod["metadata"]["uid"]: pod for pod in (await self.api.listing("Pod", namespace)).objects}
        start, lost = time.monotonic(), max(before.values(), key=lambda pod: str(pod["metadata"]["name"]))
        await self.lose(kind, lost)
        found = await self.whole(namespace, set(before) if kind in RECREATED else {lost["metadata"]["uid"]}, pods)
        seconds = time.monotonic() - start
        await self.clear(kind, namespace)
        what = f"a lost pod of {pods}"
        return {f"{what}: whole again, s": seconds, f"{what}: pods made anew": len(found - set(before))}

    async def lose(self, kind: str, pod: Object) -> None:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        where = f"/api/v1/namespaces/{namespace}/pods/{name}"
        if kind == "JobSet":
            failed, merge = {"status": {"phase": "Failed"}}, "application/merge-patch+json"
            await self.api._request("PATCH", "Pod", f"{where}/status", failed, content=merge)
        else:
            force = kind != "LeaderWorkerSet"  # which acts on a pod that it sees with a deletionTimestamp
            await self.api.delete("Pod", namespace, name, pod["metadata"]["uid"], force=force)

    async def whole(self, namespace: str, gone: set[str], pods: int) -> set[str]:
        """The pods' uids, as soon as those that must be gone are, and so many are bound."""
        alive = found = list[Object]()
        try:
            async with asyncio.timeout(WHOLE_SECONDS):
                while not len(alive) == len(found) == pods:
                    found = (await self.api.listing("Pod", namespace)).objects
                    alive = [pod for pod in found if pod["metadata"]["uid"] not in gone and _is_alive(pod)]
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise SystemExit(
                f"{namespace}: {len(found)} pods, {len(alive)} of them new or spared and bound, "
                f"not {pods} within {WHOLE_SECONDS} s"
            ) from None
        return {pod["metadata"]["uid"] for pod in alive}

    async def life(self, kind: str, count: int, pods: int) -> tuple[float, float]:
        """Seconds until all are bound, and from their deletion until nothing is left."""
        namespace = await self.namespace(kind)
        version = (await self.api.listing("Pod", namespace)).version
        start = time.monotonic()
        async with asyncio.timeout(self.args.seconds):
            bound = asyncio.create_task(self.bound(namespace, count * pods, version))
            await load.together([self.api.create(MAKERS[kind](namespace, f"j{i}", pods)) for i in range(count)])
            await bound
        seconds = time.monotonic() - start
        return seconds, await self.clear(kind, namespace)

    async def namespace(self, kind: str) -> str:
        """A new one."""
        self._runs += 1
        name = f"{kind.lower()}-{self._runs}"
        await self.api._request("POST", "Namespace", "/api/v1/namespaces", {"metadata": {"name": name}})
        return name

    async def clear(self, kind: str, namespace: str) -> float:
        start = time.monotonic()
        for obj in (await self.api.listing(kind, namespace)).objects:
            await self.api.delete(kind, namespace, obj["metadata"]["name"], obj["metadata"]["uid"])
        for one in (kind, "Pod", *OWNED[kind]):
            ours = OURS if kind == "RLJob" and one in OWNED[kind] else ""
            while await self.holds(one, namespace, ours):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        return time.monotonic() - start

    def writes_of_all(self) -> float:
        """Writes that the API server has answered."""
        text = self.plane.call("GET", "/metrics")
        found = re.findall(r"^apiserver_request_total\{(.+)\} (\S+)$", text, re.MULTILINE)
        return sum(float(n) for labels, n in found if _is_counted(dict(re.findall(r'(\w+)="([^"]*)"', labels))))


def _is_counted(labels: dict[str, str]) -> bool:
    writes = labels["verb"] in ("POST", "PUT", "PATCH", "APPLY", "DELETE")
    return writes and labels.get("resource") not in UNCOUNTED


def _is_alive(pod: Object) -> bool:
    failed = pod["status"]["phase"] == "Failed"
    return bool(pod["spec"].get("nodeName")) and "deletionTimestamp" not in pod["metadata"] and not failed


if __name__ == "__main__":
    main()
