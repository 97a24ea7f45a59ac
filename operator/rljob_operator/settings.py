"""Settings of kopf, which here watches and delivers events and writes nothing."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import kopf

from rljob_operator.handlers import SELECTORS
from rljob_operator.kube.api import resource


class Backoffs(Iterable[float]):
    """Seconds between kopf's attempts of one request, without an end. If the process ended at every outage, the kubelet would restart it later and
    later; and a namespace that may not be read must not stop the others."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.5, 1.0, 2.0, 4.0, 8.0), itertools.repeat(15.0))


class NoDiffBase(kopf.DiffBaseStorage):
    """Keeps no last-handled state: we reconcile what is there, not what has changed. So kopf writes no annotations and copies no objects."""

    def build(self, *, body: kopf.Body, extra_fields: Any = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        return None


def kopf_settings() -> kopf.OperatorSettings:
    found = kopf.OperatorSettings()
    found.scanning.disabled = True  # it would need rights over all namespaces and CRDs
    found.posting.enabled = False
    found.persistence.diffbase_storage = NoDiffBase()
    found.queueing.idle_timeout = 0.1  # a worker that waits holds the whole object
    found.watching.chunk_size = 500
    found.watching.server_timeout = 300
    found.networking.request_timeout = 20
    found.networking.error_backoffs = Backoffs()
    for kind, selector in SELECTORS.items():
        if selector:
            found.watching.label_selectors[resource(kind)] = selector
    return found
