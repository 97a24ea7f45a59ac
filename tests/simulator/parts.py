"""Supervisors in the pods of servers of several pods: each runs its part while its boot is listed, and only all parts of a generation answer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from rljob_api import names
from rljob_api.protocol import Control, Failure, Report
from rljob_api.server_group import ServerGroup
from rljob_operator.kube.api import Object

PATIENCE = 3
"""Turns for which the head of a server waits for the other parts before it fails."""


@dataclass
class Part:
    """PID 1 of one pod."""

    pod: str
    pod_uid: str
    boot_id: str
    generation: int = 0
    """The one whose part runs; 0: none."""
    ready: bool = False
    """For its kubelet: a head answers, and a follower has met its head."""
    lonely: int = 0
    failure: Failure | None = None
    failed_generation: int = 0
    dark: bool = False
    """Its node is switched off."""

    def fail(
        self, time: float, message: str = "its engine ended", kind: Literal["killed", "collective"] = "killed"
    ) -> None:
        self.failure = Failure(kind=kind, exception="ServerLost", message=message, time=time)
        self.generation, self.ready, self.failed_generation = -abs(self.generation), False, abs(self.generation)

    def report(self) -> str:
        return Report(
            pod=self.pod,
            pod_uid=self.pod_uid,
            boot_id=self.boot_id,
            failure=self.failure,
            failed_generation=self.failed_generation,
        ).dump_json()


def is_part(pod: Object) -> bool:
    return names.ANNOTATION_NODES in pod["metadata"].get("annotations", {})


def boot(pods: Iterable[Object], known: Mapping[str, Part]) -> dict[str, Part]:
    """By uid."""
    running = (p["metadata"] for p in pods if is_part(p) and p["status"].get("phase") == "Running")
    return {m["uid"]: known.get(m["uid"]) or Part(m["name"], m["uid"], f"boot-of-{m['uid']}") for m in running}


def run(control: Control | None, parts: Mapping[str, Part], now: float) -> None:
    groups = control.servers if control else []
    listed = {part.boot_id: group for group in groups for part in group.parts}
    for part in parts.values():
        group = listed.get(part.boot_id)
        if part.dark:
            continue
        if group is None:
            part.generation = part.lonely = 0
        elif abs(part.generation) != group.generation:
            part.generation, part.lonely = group.generation, 0
        part.ready = False
    for group in groups:
        _meet(group, parts, now)


def _meet(group: ServerGroup, parts: Mapping[str, Part], now: float) -> None:
    """The head answers once all parts of its generation run; one that misses others for some time fails. Followers outlive their head."""
    found = [parts.get(part.pod_uid) for part in group.parts]
    there = [p for p, part in zip(found, group.parts, strict=True) if p and p.boot_id == part.boot_id and not p.dark]
    head = found[0]
    if head is None or head not in there or head.generation != group.generation:
        return
    if len(there) == len(found) and all(p.generation == group.generation for p in there):
        for part in there:
            part.ready, part.lonely, part.failure = True, 0, None
        return
    head.lonely += 1
    if head.lonely > PATIENCE:
        head.fail(now, "it lost its peers", "collective")
