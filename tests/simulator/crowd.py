"""Several jobs that want the same nodes: an operator, a scheduler, and no launchers, since nobody trains."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from api.specs import raw_spec
from rljob_api import names
from rljob_api.status import JobStatus
from simulator.controllers import sync_stateful_sets
from simulator.objects import job_object, node_object
from simulator.site import NAMESPACE, Site


@dataclass
class Crowd(Site):
    """Nodes by name, each with capacity for so many pods."""

    nodes: dict[str, int]
    lingering: bool = False
    """Whether pods that are being deleted use their whole grace period."""

    def __post_init__(self) -> None:
        self.cluster.remove(self.cluster.objects[("Node", None, "node-1")])
        for name, pods in self.nodes.items():
            self.cluster.put(node_object(True, name=name, pods=pods))
        super().__post_init__()

    def apply(self, name: str, trainers: int, rollouts: int = 1, priority: int = 0, **changes: Any) -> None:
        changes = {
            "trainer": {"device": "cpu", "nodes": trainers},
            "rollout": {"replicas": rollouts, "sampling": {"maxTokens": 8}},
            "scheduling": {"backend": "builtin", "priority": priority},
        } | changes
        job = self.cluster.put(job_object(name, raw_spec(**changes)))
        job["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:{len(self.jobs()):02}Z"

    def jobs(self) -> list[str]:
        return [name for kind, _, name in self.cluster.objects if kind == names.KIND]

    def status(self, job: str) -> JobStatus:
        return JobStatus.model_validate(self.cluster.objects[(names.KIND, NAMESPACE, job)].get("status", {}))

    def delete(self, job: str) -> None:
        """With all that it owns."""
        self.cluster.remove(self.cluster.objects[(names.KIND, NAMESPACE, job)])
        self._collect_garbage()

    def _collect_garbage(self) -> None:
        """What belongs to no job goes: an operator that has not heard of a deletion yet may have made it since."""
        jobs = self.jobs()
        for obj in list(self.cluster.objects.values()):
            owner = obj["metadata"].get("labels", {}).get(names.LABEL_JOB)
            if owner and owner not in jobs:
                self.cluster.remove(obj)

    def on_nodes(self, job: str) -> dict[str, str]:
        """Nodes of its pods that are on one, by pod."""
        pods = (p for p in self.cluster.pods(NAMESPACE) if p["metadata"]["labels"][names.LABEL_JOB] == job)
        return {p["metadata"]["name"]: p["spec"]["nodeName"] for p in pods if p["spec"].get("nodeName")}

    def drain(self, name: str) -> None:
        """As kubectl drain: no new pods there, and those that are there are deleted."""
        node = self.cluster.edit("Node", None, name)
        node["spec"] = {"unschedulable": True}
        for pod in self.cluster.pods(NAMESPACE):
            if pod["spec"].get("nodeName") == name:
                meta = self.cluster.edit("Pod", NAMESPACE, pod["metadata"]["name"])["metadata"]
                meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    def uncordon(self, name: str) -> None:
        self.cluster.edit("Node", None, name)["spec"] = {}

    async def turn(self, order: Sequence[str] | None = None) -> None:
        """Every job that is due gets a pass, in any order."""
        self.elapse(1)
        self.feed.deliver()
        await self.offer_capacity()
        known = sorted({*self.jobs(), *(name for namespace, name in self.due if namespace == NAMESPACE)})
        for job in order or self.random.sample(known, len(known)):
            await self.pass_over(job)
        for pod in self.cluster.pods(NAMESPACE):
            if "deletionTimestamp" in pod["metadata"] and not self.lingering:
                self.cluster.remove(pod)
        self._collect_garbage()
        sync_stateful_sets(self.cluster)

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await self.turn()
            self.check()

    def check(self) -> None:
        """No node has more pods than it holds, and no gang waits with part of its assignments: only pods that run stay while others are replaced."""
        self.check_capacity()
        for job in self.jobs():
            raw = self.cluster.objects[(names.KIND, NAMESPACE, job)]["spec"]
            placement = self.status(job).placement
            assigned = placement.assignments if placement else []
            whole = len(assigned) >= raw["trainer"]["nodes"] + 1
            assert whole or {x.pod for x in assigned} <= self.on_nodes(job).keys(), (
                f"{job} waits with {len(assigned)} assignments"
            )

    def check_capacity(self) -> None:
        for node, capacity in self.nodes.items():
            there = [p for p in self.cluster.pods(NAMESPACE) if p["spec"].get("nodeName") == node]
            assert len(there) <= capacity, f"{node} holds {len(there)} of {capacity}"
