"""Gateways in the pods of services: each serves while the control message names its address."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rljob_api import names
from rljob_api.protocol import Control, Report, ServiceReport
from rljob_api.text import http_url
from rljob_operator.kube.api import Object


@dataclass
class Gateway:
    """PID 1 of one pod."""

    pod: str
    pod_uid: str
    boot_id: str
    address: str
    serves: bool = False
    service: ServiceReport = field(default_factory=ServiceReport)
    """What clients have asked for."""
    dark: bool = False
    """Its node is switched off."""

    def report(self) -> str:
        """As PID 1 writes it."""
        return Report(
            pod=self.pod,
            pod_uid=self.pod_uid,
            boot_id=self.boot_id,
            state="running" if self.serves else "idle",
            service=self.service if self.serves else None,
        ).dump_json()


def booted(pods: Iterable[Object], known: Mapping[str, Gateway], control: Control | None) -> dict[str, Gateway]:
    """By uid. What clients have asked for is on the volume, so that the next gateway knows it."""
    found = dict[str, Gateway]()
    asked = max((one.service for one in known.values()), key=lambda s: s.waiting, default=ServiceReport())
    for pod in pods:
        meta = pod["metadata"]
        if meta["labels"].get(names.LABEL_ROLE) == names.ROLE_GATEWAY and pod["status"].get("phase") == "Running":
            uid, url = meta["uid"], http_url(pod["status"]["podIP"], names.GATEWAY_WORK_PORT)
            one = known.get(uid) or Gateway(meta["name"], uid, f"boot-of-{uid}", url, service=asked)
            one.serves = one.serves if one.dark else control is not None and control.gateway == url
            found[uid] = one
    return found
