"""Children of a job: who controls one, whether it is as it should be, and why one could not be written, in terms of the job's spec."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rljob_api import names, quantity, reasons
from rljob_api.status import RLJobMeta
from rljob_operator.kube.api import ApiError, Object

REFUSALS = (400, 403, 422)
"""Status codes with which the API server, or an admission policy, refuses an object however often it is sent."""
OF_TEMPLATES = {
    "spec.template.spec.tolerations": "tolerations",
    "spec.template.spec.nodeSelector": "nodeSelector",
    "spec.template.spec.affinity": "affinity",
    "spec.template.spec.priorityClassName": "priorityClassName",
    "spec.template.spec.containers[0].image": "image",
    "spec.template.spec.containers[0].resources": "resources",
    "spec.template.metadata.labels": "labels",
    "spec.template.labels": "labels",
    "spec.template.metadata.annotations": "annotations",
    "spec.template.annotations": "annotations",
}
"""Fields of a StatefulSet, and the field of the role's template that each comes from."""

AMOUNT = "amount"
AMOUNTS, QUANTITIES = ("requests", "limits"), ("sizeLimit", "divisor", AMOUNT)
"""Fields of pods that hold quantities, by resource name or one each."""


def controls(job: RLJobMeta, live: Mapping[str, Any]) -> bool:
    """Whether the job, by its uid, is the controller of a live object (metav1.IsControlledBy)."""
    owners = live["metadata"].get("ownerReferences", [])
    return any(o.get("controller") and o["uid"] == job.uid for o in owners)


def covers(live: Any, wanted: Any, field: str = "") -> bool:
    """Whether a live object has all that is wanted. What the API server or others have added does not count, nor does the form in which the API
    server writes a value: it leaves out what is empty, and has its own way to write a quantity. `field`: the key of both, if any."""
    if live == wanted:  # far faster than to compare each part
        return True
    if live is None:
        return not wanted
    if isinstance(wanted, dict):
        inner = AMOUNT if field in AMOUNTS else ""
        return isinstance(live, Mapping) and all(covers(live.get(k), v, inner or k) for k, v in wanted.items())
    if isinstance(wanted, list):
        same = isinstance(live, list) and len(live) == len(wanted)
        return same and all(covers(a, b) for a, b in zip(live, wanted, strict=True))
    return field in QUANTITIES and quantity.same(live, wanted)


@dataclass(frozen=True, slots=True)
class ChildProblem:
    """Why a child could not be written. `reason`: of the condition Admitted."""

    reason: str
    message: str


def conflict(child: Object, why: str) -> ChildProblem:
    """The problem of a child whose name another object has."""
    name = child["metadata"]["name"]
    return ChildProblem(reasons.CHILD_CONFLICT, f"{child['kind']} {name} exists and {why}; delete it or rename the job")


def refusal(child: Object, error: ApiError) -> ChildProblem:
    """The problem of a child that the API server refuses, with the fields of the job's spec where they are known."""
    said = "; ".join(
        f"{_field(child, field)}: {text}" if field else text for field, text in error.causes or (("", str(error)),)
    )
    return ChildProblem(
        reasons.CHILD_REFUSED, f"the API server refuses {child['kind']} {child['metadata']['name']}: {said}"
    )


def _field(child: Object, field: str) -> str:
    role = (child["metadata"].get("labels") or {}).get(names.LABEL_ROLE, "")
    for start, own in OF_TEMPLATES.items() if role and child["kind"] == "StatefulSet" else ():
        if re.match(re.escape(start) + r"(?![A-Za-z])", field):
            return f"spec.{_section(role)}.template.{own}{field[len(start) :]}"
    return field


def _section(role: str) -> str:
    if role in (*names.ROLES, *names.MODEL_ROLES):
        return role
    place = role.removeprefix(names.ROLE_REWARD)
    return f"rewards[{place}].model" if names.is_model_role(role) else f"pools[{role}]"
