"""Processor time of the API server for a job that is created and for a write of its status, with this CRD, with another commit's, and without rules.

    git worktree add /tmp/before COMMIT
    python -m benchmarks.admission [--against /tmp/before] [--jobs 300] [--writes 250] [--turns 3]

A real kube-apiserver on loopback for each, by turns, and nothing else in it. Four clients write statuses. Prints JSON lines with milliseconds.
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kopf
import yaml

from benchmarks.load import job, together
from benchmarks.scale import spent
from e2e.cluster.steps import REPOSITORY
from e2e.control_plane import TOKEN, ControlPlane
from rljob_api import names
from rljob_api.schema.sections import RULES
from rljob_operator.kube.client import KubernetesApi, RateLimiter
from rljob_operator.kube.credentials import Credentials

CRD, NAMESPACE = Path("crds", "rljob.yaml"), "admission"
ROLES = {"trainer": 9, "rollout": 1}
CLIENTS = 4


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.admission", description=__doc__)
    parser.add_argument("--against", type=Path, help="work tree of another commit")
    for name, default in (("--jobs", 300), ("--writes", 250), ("--turns", 3)):
        parser.add_argument(name, type=int, default=default)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        bare = Path(directory) / "bare.yaml"
        bare.write_text(yaml.safe_dump(without_rules(yaml.safe_load((REPOSITORY / CRD).read_text()))))
        crds = {"now": REPOSITORY / CRD} | ({"before": args.against / CRD} if args.against else {}) | {"no rules": bare}
        for turn in range(args.turns):
            for what, crd in crds.items():
                with ControlPlane(Path(directory) / f"{what}-{turn}") as plane:
                    plane.install_crd(crd)
                    print(json.dumps({"crd": what} | asyncio.run(measured(plane, args))), flush=True)


def without_rules(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: without_rules(inner) for key, inner in schema.items() if key != RULES}
    return [*map(without_rules, schema)] if isinstance(schema, list) else schema


async def measured(plane: ControlPlane, args: argparse.Namespace) -> dict[str, float]:
    account = kopf.ConnectionInfo(server=plane.url, insecure=True, token=TOKEN)
    api = KubernetesApi(Credentials(lambda: account), RateLimiter(5000, 5000))
    server = server_of(plane)
    await api._request("POST", "Namespace", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    await api.create(job(NAMESPACE, "first", ROLES, "1"))
    marks = [spent(server)]
    await together([api.create(job(NAMESPACE, f"j{i}", ROLES, "1")) for i in range(args.jobs)])
    marks.append(spent(server))
    await asyncio.gather(*(write(api, f"j{i}", args.writes) for i in range(CLIENTS)))
    marks.append(spent(server))
    await api.close()
    created, written = 1000 * (marks[1] - marks[0]) / args.jobs, 1000 * (marks[2] - marks[1]) / CLIENTS / args.writes
    return {"created_ms": round(created, 1), "written_ms": round(written, 1)}


def server_of(plane: ControlPlane) -> int:
    """The API server's process."""
    (found,) = (pid for pid in plane.pids() if "kube-apiserver" in Path(f"/proc/{pid}/cmdline").read_text())
    return found


async def write(api: KubernetesApi, name: str, times: int) -> None:
    obj = await api.get(names.KIND, NAMESPACE, name)
    for status in statuses(name, times):
        obj = await api.replace(obj | {"status": status}, "status")


def statuses(name: str, times: int) -> Iterator[dict[str, Any]]:
    """Of an attempt that steps."""
    members = [
        {"pod": f"{name}-trainer-{i}", "podUid": "u" * 36, "bootId": "b" * 32, "nodeRank": i, "address": "10.0.0.1"}
        for i in range(ROLES["trainer"])
    ]
    for step in range(times):
        progress = {"step": step, "steps": times, "text": f"{step}/{times}"}
        yield {"state": "Running", "attempt": {"number": 1, "members": members}, "progress": progress}


if __name__ == "__main__":
    main()
