"""Two operators with one lease, of which the leader changes while users create, suspend, resume and delete jobs: what is lost or done twice, and
when the successor acts.

    python -m benchmarks.replicas [--steady 30] [--cycled 20] [--short 10] [--rounds 3] [--seed 0]

A real kube-apiserver, controller manager and scheduler on loopback; kubelets and launchers are of benchmarks/kubelets.py. `--steady`: jobs that
nobody touches; `--cycled`: jobs that are suspended and resumed again and again; `--short`: jobs that are deleted at any time after their creation,
each followed by another one. In each round the leader is killed (SIGKILL), both operators are replaced as by a rolling update, and the leader
is frozen for longer than its lease (SIGSTOP). Prints Markdown, and what is wrong at the end; then the exit code is 1.
"""

import argparse
import asyncio
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import kopf

from benchmarks.history import Expected, History
from benchmarks.kubelets import MERGE, Kubelets
from benchmarks.load import job
from benchmarks.scale import SMALL
from e2e.control_plane import TOKEN, ControlPlane, free_ports
from rljob_api import names
from rljob_api.status import JobStatus
from rljob_operator.kube import leader_election
from rljob_operator.kube.api import path
from rljob_operator.kube.client import KubernetesApi, RateLimiter
from rljob_operator.kube.credentials import Credentials

NAMESPACE = "users"
MOST_SECONDS = 300
"""For any one thing that is waited for."""
PAUSE = (0.0, 8.0)
"""Seconds between two actions of a user, from and to."""
FROZEN_SECONDS = leader_election.LEASE_DURATION + 10
ROOM = {"cpu": "64", "memory": "512Gi", "pods": "110"}
LABELS = {"block": "b", "rack": "r"}
NODES = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("--steady", 30), ("--cycled", 20), ("--short", 10), ("--rounds", 3), ("--seed", 0)):
        parser.add_argument(name, type=int, default=default)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        faults = run(Path(directory), args)
    print("\n".join(["", *faults] if faults else ["", "Nothing was lost or done twice."]))
    return int(bool(faults))


def run(directory: Path, args: argparse.Namespace) -> list[str]:
    """What was lost or done twice."""
    with ControlPlane(directory, managers=True, controllers="*,-node-lifecycle-controller") as plane:
        plane.install_crd()
        plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        return asyncio.run(measure(plane, args))


async def measure(plane: ControlPlane, args: argparse.Namespace) -> list[str]:
    account = kopf.ConnectionInfo(server=plane.url, insecure=True, token=TOKEN)
    credentials = Credentials(lambda: account)
    api, history = KubernetesApi(credentials, RateLimiter(5000, 5000)), History()
    replicas, users = Replicas(plane, api), Users(api, history, Random(args.seed))
    for number in range(NODES):
        await add_node(api, f"n{number}")
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(history.watch(api, credentials, plane.url, NAMESPACE))
        serving = group.create_task(Kubelets(api, NAMESPACE).run())
        await replicas.begin()
        await users.begin(args)
        await Switches(replicas, users).run(args.rounds)
        await users.end()
        watching.cancel()
        serving.cancel()
    faults = [*history.faults(users.expected, sum(SMALL.values())), *await foreign(api)]
    await api.close()
    return faults


async def add_node(api: KubernetesApi, name: str) -> None:
    status = {"allocatable": ROOM, "capacity": ROOM, "conditions": [{"type": "Ready", "status": "True"}]}
    await api._request(
        "POST", "Node", "/api/v1/nodes", {"metadata": {"name": name, "labels": LABELS}, "status": status}
    )
    untainted = {"spec": {"taints": None}}  # admission says not-ready, which a controller would take away
    await api._request("PATCH", "Node", f"/api/v1/nodes/{name}", untainted, content=MERGE)


async def foreign(api: KubernetesApi) -> list[str]:
    """Statuses that an operator found changed by another one."""
    events = (await api.listing("Event", NAMESPACE)).objects
    return [f"{e['involvedObject']['name']}: {e['message']}" for e in events if e["reason"] == "ForeignStatus"]


class Replicas:
    """The operator's processes. Each has a name of its own, as the pods of a Deployment."""

    def __init__(self, plane: ControlPlane, api: KubernetesApi) -> None:
        self._plane, self._api = plane, api
        self.processes = dict[str, subprocess.Popen[bytes]]()
        self._started = 0

    async def begin(self) -> None:
        await self.start()
        await self.start()
        await self.new_leader("")

    async def start(self) -> None:
        """Another one, which is ready then."""
        self._started += 1
        name, (port,) = f"operator-{self._started}", free_ports(1)
        who = ("--identity", name, "--health-port", str(port), "--progress-interval", "5")
        command = ("env", f"KUBECONFIG={self._plane.kubeconfig}", sys.executable, "-m", "rljob_operator", *who)
        self.processes[name] = self._plane.spawn(name, *command)
        await within(f"{name} to be ready", self._ready(port))

    async def _ready(self, port: int) -> None:
        while not await asyncio.to_thread(is_ready, port):  # noqa: ASYNC110
            await asyncio.sleep(0.2)

    async def leader(self) -> str:
        lease = await self._api.get("Lease", "default", leader_election.NAME)
        return str(lease["spec"].get("holderIdentity", ""))

    async def new_leader(self, old: str) -> None:
        """Returns when another one holds the lease."""
        await within(f"another leader than {old or 'none'}", self._leads_other_than(old))

    async def _leads_other_than(self, old: str) -> None:
        while await self.leader() in ("", old):  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def ended(self, name: str) -> None:
        """Returns when one that was asked to end has done so."""
        process = self.processes.pop(name)
        if await asyncio.to_thread(process.wait, timeout=60) != 0:
            raise SystemExit(f"{name} did not end as it should")


async def within(what: str, wait: Awaitable[None], seconds: float = MOST_SECONDS) -> None:
    """Raises TimeoutError, which says what did not come."""
    try:
        async with asyncio.timeout(seconds):
            await wait
    except TimeoutError:
        raise TimeoutError(f"waited for {what}: not within {seconds:g} s") from None


def is_ready(port: int) -> bool:
    with suppress(OSError):
        return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5).status == 200)
    return False


class Users:
    """What they do, and what should be there afterwards."""

    def __init__(self, api: KubernetesApi, history: History, random: Random) -> None:
        self._api, self._history, self._random = api, history, random
        self.expected = dict[str, Expected]()
        self.did = Counter[str]()
        self._over = asyncio.Event()
        self._work = list[asyncio.Task[None]]()

    async def begin(self, args: argparse.Namespace) -> None:
        """Returns when all jobs run that are not short."""
        lasting = [f"steady-{i}" for i in range(args.steady)] + [f"cycled-{i}" for i in range(args.cycled)]
        await asyncio.gather(*map(self.create, lasting))
        await asyncio.gather(*map(self.until_running, lasting))
        self._work += [asyncio.create_task(self._cycle(name)) for name in lasting[args.steady :]]
        self._work += [asyncio.create_task(self._replace(f"short-{i}")) for i in range(args.short)]

    async def end(self) -> None:
        """Returns when everything has come to rest."""
        self._over.set()
        await asyncio.gather(*self._work)
        for name, one in self.expected.items():
            await (self._until_gone if one.deleted else self.until_running)(name)

    async def create(self, name: str) -> None:
        await self._api.create(job(NAMESPACE, name, SMALL, "0"))
        self.expected[name] = Expected()
        self.did["created"] += 1

    async def delete(self, name: str) -> None:
        found = await self._api.get(names.KIND, NAMESPACE, name)
        await self._api.delete(names.KIND, NAMESPACE, name, found["metadata"]["uid"])
        self.expected[name].deleted = True
        self.did["deleted"] += 1

    async def until_running(self, name: str) -> None:
        await self._until_state(name, "Running")

    async def until_written(self, name: str) -> None:
        """By an operator."""
        await self._until(f"a status of {name}", lambda: bool(self.status(name).message))

    def status(self, name: str) -> JobStatus:
        return self._history.jobs.get(name, JobStatus())

    async def _cycle(self, name: str) -> None:
        while not self._over.is_set():
            await self._pause()
            await self._suspend(name, suspend=True)
            await self._until_state(name, "Suspended")
            await self._pause()
            await self._suspend(name, suspend=False)
            self.expected[name].lives += 1
            await self.until_running(name)

    async def _replace(self, prefix: str) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            await self.create(f"{prefix}-{number}")
            await self._pause()
            await self.delete(f"{prefix}-{number}")

    async def _suspend(self, name: str, *, suspend: bool) -> None:
        change = {"spec": {"suspend": suspend}}
        await self._api._request("PATCH", names.KIND, f"{path(names.KIND, NAMESPACE)}/{name}", change, content=MERGE)
        self.did["suspended" if suspend else "resumed"] += 1

    async def _until_gone(self, name: str) -> None:
        await self._until(f"the end of {name}", lambda: name not in self._history.jobs and not self._history.left[name])

    async def _until_state(self, name: str, state: str) -> None:
        await self._until(f"{name} to be {state}", lambda: self.status(name).state == state)

    async def _until(self, what: str, ready: Callable[[], bool]) -> None:
        await within(what, _true(ready))

    async def _pause(self) -> None:
        await asyncio.sleep(self._random.uniform(*PAUSE))


class Switches:
    """Ways in which the leader changes. Each is measured with a job that is created at that moment."""

    def __init__(self, replicas: Replicas, users: Users) -> None:
        self._replicas, self._users, self._count = replicas, users, 0

    async def run(self, rounds: int) -> None:
        print(
            "| the leader is | another one holds the lease after | a job created then is taken up after | and runs after |"
        )
        print("| --- | --- | --- | --- |")
        for _ in range(rounds):
            for way in (self._kill, self._update, self._freeze):
                await way()
        did = self._users.did
        print(f"\n{len(self._users.expected)} jobs; {', '.join(f'{n} {what}' for what, n in did.items())}.", flush=True)

    async def _kill(self) -> None:
        leader = await self._replicas.leader()
        await self._timed("killed", leader, self._replicas.processes.pop(leader).kill)
        await self._replicas.start()

    async def _update(self) -> None:
        """A new one is started and is ready before an old one ends, twice."""
        for name in list(self._replicas.processes):
            await self._replicas.start()
            end = self._replicas.processes[name].terminate
            if name == await self._replicas.leader():
                await self._timed("replaced", name, end)
            else:
                end()
            await self._replicas.ended(name)

    async def _freeze(self) -> None:
        leader = await self._replicas.leader()
        process = self._replicas.processes[leader]
        thaw = asyncio.create_task(_thaw(process))
        await self._timed("frozen", leader, lambda: process.send_signal(signal.SIGSTOP))
        await thaw

    async def _timed(self, how: str, leader: str, act: Callable[[], object]) -> None:
        self._count += 1
        name, start = f"probe-{self._count}", time.monotonic()
        act()
        await self._users.create(name)
        waits = (self._replicas.new_leader(leader), self._users.until_written(name), self._users.until_running(name))
        held, written, runs = await asyncio.gather(*(_seconds(start, wait) for wait in waits))
        print(f"| {how} | {held:.1f} s | {written:.1f} s | {runs:.1f} s |", flush=True)
        await self._users.delete(name)


async def _true(ready: Callable[[], bool]) -> None:
    while not ready():  # noqa: ASYNC110
        await asyncio.sleep(0.1)


async def _thaw(process: subprocess.Popen[bytes]) -> None:
    await asyncio.sleep(FROZEN_SECONDS)
    process.send_signal(signal.SIGCONT)


async def _seconds(start: float, wait: Awaitable[None]) -> float:
    await wait
    return time.monotonic() - start


if __name__ == "__main__":
    sys.exit(main())
