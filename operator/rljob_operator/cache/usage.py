"""What each pod of the cluster takes of its node."""

import logging
from dataclasses import dataclass
from typing import Any

from rljob_api.quantity import Resources, parse
from rljob_operator.kube.api import Object
from rljob_placement.cluster import occupied, requests

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Usage:
    """Node and requests of a pod; empty for one that is on no node or has ended."""

    node: str = ""
    requests: Resources | None = None


def parse_usage(pod: Object) -> Usage:
    """Of a pod with a part that cannot be read the rest counts: to ignore the pod would make its node look empty."""
    try:
        return _usage(pod)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        log.warning("pod %s counts without what cannot be read of it: %s", pod["metadata"]["name"], error)
        return _usage(_readable(pod))


def _usage(pod: Object) -> Usage:
    node = occupied(pod)
    if not isinstance(node, str):
        raise TypeError(f"spec.nodeName is no text: {node!r}")
    return Usage(node, requests(pod["spec"])) if node else Usage()


def _readable(pod: Object) -> Object:
    spec, status = _dict(pod.get("spec")), _dict(pod.get("status"))
    node = spec.get("nodeName")
    kept: Object = {
        kind: [_container(c) for c in spec.get(kind) or [] if isinstance(c, dict)]
        for kind in ("containers", "initContainers")
    }
    whole = {"requests": _quantities(_dict(spec.get("resources")).get("requests"))}
    kept |= {"overhead": _quantities(spec.get("overhead")), "resources": whole}
    return {"spec": kept | {"nodeName": node if isinstance(node, str) else ""}, "status": status}


def _container(container: Object) -> Object:
    resources = _dict(container.get("resources"))
    amounts = {kind: _quantities(resources.get(kind)) for kind in ("requests", "limits")}
    return {"restartPolicy": container.get("restartPolicy"), "resources": amounts}


def _quantities(amounts: Any) -> Object:
    return {name: amount for name, amount in _dict(amounts).items() if _is_quantity(amount)}


def _is_quantity(amount: object) -> bool:
    try:
        parse(amount)
    except ValueError:
        return False
    return True


def _dict(found: Any) -> Object:
    return found if isinstance(found, dict) else {}
