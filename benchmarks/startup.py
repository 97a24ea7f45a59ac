"""The operator's start in a large cluster: seconds until everything is listed, and its largest memory.

    python -m benchmarks.startup [--pods 15000] [--nodes 1000] [--tree DIRECTORY]

A real kube-apiserver on loopback without controllers; pods lie on nodes from the beginning, and are as large as running ones.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

import kopf

from benchmarks.load import Object, together
from benchmarks.scale import spent
from e2e import kwok
from e2e.cluster.steps import REPOSITORY
from e2e.control_plane import TOKEN, ControlPlane
from rljob_operator.kube.client import KubernetesApi, RateLimiter
from rljob_operator.kube.credentials import Credentials

NAMESPACE = "default"
REST = "x" * 4000
"""As much text as status and managedFields of a running pod have."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=15_000)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument(
        "--tree",
        type=Path,
        default=REPOSITORY,
        help="whose operator is measured: a work tree, perhaps of another commit",
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, ControlPlane(Path(directory)) as plane:
        plane.install_crd(args.tree / "crds" / "rljob.yaml")
        asyncio.run(fill(plane, args.pods, args.nodes))
        print(f"{args.pods} pods on {args.nodes} nodes: {started(plane, args.tree)}")


async def fill(plane: ControlPlane, pods: int, nodes: int) -> None:
    account = kopf.ConnectionInfo(server=plane.url, insecure=True, token=TOKEN)
    api = KubernetesApi(Credentials(lambda: account), RateLimiter(5000, 5000))
    await together([api._request("POST", "Node", "/api/v1/nodes", kwok.node(f"n{i}", {})) for i in range(nodes)])
    await together([api.create(pod(i, f"n{i % nodes}")) for i in range(pods)])
    await api.close()


def pod(i: int, node: str) -> Object:
    container: Object = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    container["env"] = [{"name": f"VARIABLE_{j}", "value": "value"} for j in range(10)]
    meta = {"name": f"p{i}", "namespace": NAMESPACE, "labels": {"app": "other"}, "annotations": {"rest": REST}}
    spec = {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def started(plane: ControlPlane, tree: Path) -> str:
    """What it took until all kinds were listed, and two seconds more."""
    os.environ |= {"KUBECONFIG": str(plane.kubeconfig), "PYTHONPATH": str(tree / "operator")}
    log, begin = plane.directory / "operator.log", time.monotonic()
    process = plane.spawn("operator", sys.executable, "-m", "rljob_operator", "--health-port", "0")
    while "all kinds are listed" not in log.read_text():
        if process.poll() is not None:
            raise RuntimeError(log.read_text()[-2000:])
        time.sleep(0.1)
    seconds = time.monotonic() - begin
    time.sleep(10.0)
    lines = dict(line.split(":") for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
    peak, resident = (int(lines[name].split()[0]) // 1024 for name in ("VmHWM", "VmRSS"))
    cpu = spent(process.pid)
    return f"all listed after {seconds:.1f} s; 10 s later {cpu:.1f} s of processor time, {resident} MiB, at most {peak} MiB"


if __name__ == "__main__":
    main()
