"""All that a namespace has had of jobs, as watches of a real API server show it: what was made twice, and what is left of a job that is gone."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from benchmarks.load import Object
from rljob_api import names
from rljob_api.protocol import Control
from rljob_api.status import JobStatus
from rljob_operator.kube.api import path
from rljob_operator.kube.client import KubernetesApi
from rljob_operator.kube.credentials import Credentials

LASTING = ("ConfigMap", "ServiceAccount", "Role", "RoleBinding", "NetworkPolicy")
"""Kinds whose objects are made once, and stay as long as their job."""
CHILDREN = ("Pod", "StatefulSet", *LASTING)


@dataclass
class Expected:
    """Of a job by its name, which no other job has."""

    lives: int = 1
    """How often it has had pods: once, and once more for each resume."""
    deleted: bool = False


@dataclass
class History:
    """`watch` fills it."""

    jobs: dict[str, JobStatus] = field(default_factory=dict)
    """Those that exist."""
    made: dict[tuple[str, str], dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    """Names of all children that a job has had of a kind, by job and kind, and by uid."""
    left: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    """Children that exist, by job and uid."""
    twice: list[str] = field(default_factory=list)
    """Attempts that were published with other members than before, or after a later one."""
    _published: dict[str, Control] = field(default_factory=dict)

    async def watch(self, api: KubernetesApi, credentials: Credentials, url: str, namespace: str) -> None:
        """Until cancelled, from an empty namespace on."""
        async with asyncio.TaskGroup() as group:
            for kind in (names.KIND, *CHILDREN):
                version = (await api.listing(kind, namespace)).version
                group.create_task(self._follow(credentials, url + path(kind, namespace), version))

    async def _follow(self, credentials: Credentials, url: str, version: str) -> None:
        query = {"watch": "1", "resourceVersion": version}
        async with credentials.session(1) as session:
            while True:  # the server ends the watch of a client that reads too slowly
                async with session.get(url, params=query) as response:
                    async for line in response.content:
                        event = json.loads(line)
                        query["resourceVersion"] = event["object"]["metadata"]["resourceVersion"]
                        self.see(event["object"], gone=event["type"] == "DELETED")

    def see(self, obj: Object, *, gone: bool) -> None:
        if obj["kind"] == names.KIND:
            self._see_job(obj, gone=gone)
            return
        job = obj["metadata"].get("labels", {}).get(names.LABEL_JOB)
        if job:
            self._see_child(job, obj, gone=gone)

    def _see_job(self, obj: Object, *, gone: bool) -> None:
        name = obj["metadata"]["name"]
        if gone:
            self.jobs.pop(name, None)
        else:
            self.jobs[name] = JobStatus.model_validate(obj.get("status", {}))

    def _see_child(self, job: str, obj: Object, *, gone: bool) -> None:
        uid, kind, name = obj["metadata"]["uid"], obj["kind"], obj["metadata"]["name"]
        self.made[job, kind][uid] = name
        if gone:
            self.left[job].pop(uid, None)
            return
        self.left[job][uid] = f"{kind} {name}"
        text = obj.get("data", {}).get(names.CONTROL_KEY) if kind == "ConfigMap" else None
        if text:
            self._see_control(job, Control.model_validate_json(text))

    def _see_control(self, job: str, new: Control) -> None:
        old = self._published.get(job)
        self._published[job] = new
        if old and new.attempt < old.attempt:
            self.twice.append(f"{job}: attempt {new.attempt} was published after attempt {old.attempt}")
        if old and new.attempt == old.attempt and new.members != old.members:
            self.twice.append(f"{job}: attempt {new.attempt} was published with other members")

    def faults(self, expected: Mapping[str, Expected], pods: int) -> Iterator[str]:
        """What was lost or done twice, of jobs of so many pods."""
        yield from self.twice
        yield from self._made_again()
        for job, one in expected.items():
            yield from self._of_deleted(job) if one.deleted else self._of_living(job, one.lives)
            made = len(self.made[job, "Pod"])
            if made > pods * one.lives or (made < pods * one.lives and not one.deleted):
                yield f"{job}: {made} pods were made, not {pods * one.lives}"
        for job in self.left.keys() - expected.keys():
            yield f"{job}: nobody has created it"

    def _made_again(self) -> Iterator[str]:
        for job, kind in self.made:
            times = Counter(self.made[job, kind].values()) if kind in LASTING else Counter[str]()
            yield from (f"{job}: {kind} {name} was made {n} times" for name, n in times.items() if n > 1)

    def _of_deleted(self, job: str) -> Iterator[str]:
        if job in self.jobs:
            yield f"{job} was deleted and is there"
        for child in self.left[job].values():
            yield f"{job} is gone and its {child} is left"

    def _of_living(self, job: str, lives: int) -> Iterator[str]:
        status = self.jobs.get(job, JobStatus())
        attempts = status.attempt.number if status.attempt else 0
        found = (status.state, attempts, status.restarts.counted, status.restarts.uncounted, status.lost_steps)
        if found != ("Running", lives, 0, 0, 0):
            yield f"{job}: {found} and not (Running, {lives}, 0, 0, 0): state, attempt, restarts of two kinds, lost steps"
        if len(self.made[job, "StatefulSet"]) > 2 * lives:
            yield f"{job}: {len(self.made[job, 'StatefulSet'])} StatefulSets were made, not {2 * lives}"
