"""What kopf is used for: watches that reconnect. Every event only says which job to look at; no handler decides, returns or writes anything."""

from collections.abc import Mapping
from typing import Any

import kopf

from rljob_api import names
from rljob_operator.queue import Queue

WATCHED_CHILDREN = ("pods", "configmaps", "statefulsets")


def registry(queue: Queue) -> kopf.OperatorRegistry:
    found = kopf.OperatorRegistry()

    @kopf.on.login(registry=found)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=found)
    async def job(*, namespace: str | None, name: str, **_: Any) -> None:
        queue.add((namespace or "", name))

    async def child(*, namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        queue.add((namespace or "", labels[names.LABEL_JOB]))

    for plural in WATCHED_CHILDREN:
        kopf.on.event(plural, id=plural, labels={names.LABEL_JOB: kopf.PRESENT}, registry=found)(child)
    return found


def settings() -> kopf.OperatorSettings:
    """Bounded requests, watches narrowed on the server, and no traces of kopf in any object."""
    found = kopf.OperatorSettings()
    found.posting.enabled = False
    found.scanning.disabled = True
    found.peering.standalone = True
    found.networking.request_timeout = 30
    found.networking.connect_timeout = 10
    found.watching.connect_timeout = 10
    found.watching.server_timeout = 300
    found.watching.client_timeout = 330
    for plural in WATCHED_CHILDREN:
        found.watching.label_selectors[plural] = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
    return found
