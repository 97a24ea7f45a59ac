"""Children of a job: what marks them as its own, whether one is as it should be, and why one could not be written, in terms of the job's spec."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

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
    for owner in live["metadata"].get("ownerReferences", ()):
        if owner.get("controller"):  # there is one at most
            return bool(owner["uid"] == job.uid)
    return False


def covers(live: Any, wanted: Any, field: str = "") -> bool:
    """Whether a live object has all that is wanted. What the API server or others have added does not count, nor does the form in which the API
    server writes a value: it leaves out what is empty, and has its own way to write a quantity. `field`: the key of both, if any."""
    if live == wanted:  # far faster than to compare each part
        return True
    if live is None:
        return not wanted
    if isinstance(wanted, dict):
        return isinstance(live, Mapping) and _covers_keys(live, wanted, AMOUNT if field in AMOUNTS else "")
    if isinstance(wanted, list):
        same = isinstance(live, list) and len(live) == len(wanted)
        return same and all(covers(a, b) for a, b in zip(live, wanted, strict=True))
    return field in QUANTITIES and quantity.same(live, wanted)


def _covers_keys(live: Mapping[str, Any], wanted: Mapping[str, Any], inner: str) -> bool:
    """Whether each key that is wanted is covered. `inner`: the field that they count as; empty: each is its own."""
    for key, value in wanted.items():  # a pass compares hundreds: a loop takes two thirds of a generator's time
        there = live.get(key)
        if there != value and not covers(there, value, inner or key):
            return False
    return True


Verb = Literal["write", "ungate", "delete"]
MOST_NAMED, MOST_CAUSES = 3, 5
"""Objects that are named as refused for one cause, and causes that are said."""
ENDING = re.compile(r"namespace (\S+) (because it )?is being terminated")
"""What the API server says of a new object in a namespace that is being deleted."""


@dataclass(frozen=True, slots=True)
class ChildProblem:
    """Why a child could not be written, or a pod not be let go or deleted."""

    reason: str
    """Of the condition Admitted."""
    message: str
    verb: Verb = "write"
    refused: str = ""
    """The object that the API server refuses, as a message names it; empty: something else is wrong."""
    cause: str = ""
    """Why it refuses it."""


def conflict(child: Object, why: str) -> ChildProblem:
    """The problem of a child whose name another object has."""
    name = child["metadata"]["name"]
    return ChildProblem(reasons.CHILD_CONFLICT, f"{child['kind']} {name} exists and {why}; delete it or rename the job")


def refusal(verb: Verb, obj: Object, error: ApiError) -> ChildProblem:
    """The problem of an object that the API server refuses, with the fields of the job's spec where they are known."""
    said = "; ".join(
        f"{_field(obj, field)}: {text}" if field else text for field, text in error.causes or (("", str(error)),)
    )
    name = f"{obj['kind']} {obj['metadata']['name']}"
    return refused(verb, f"the deletion of {name}" if verb == "delete" else name, _cause(obj, said))


def refused(verb: Verb, what: str, cause: str) -> ChildProblem:
    return ChildProblem(reasons.CHILD_REFUSED, _sentence([what], cause), verb, what, cause)


def _cause(obj: Object, said: str) -> str:
    """What the API server says, without the object's name, which differs where the cause is the same."""
    if ending := ENDING.search(said):
        return f"namespace {ending[1]} is being deleted, and the job with it; create it in another namespace"
    return re.sub(rf'^\S+ "{re.escape(obj["metadata"]["name"])}" is forbidden: ', "", said)


def sentences(problems: Iterable[ChildProblem]) -> list[str]:
    """One for each cause."""
    others, by_cause = list[str](), dict[str, list[str]]()
    for problem in problems:
        if problem.refused:
            by_cause.setdefault(problem.cause, []).append(problem.refused)
        else:
            others.append(problem.message)
    said = [*others, *(_sentence(names, cause) for cause, names in by_cause.items())]
    return said[:MOST_CAUSES] + ["and more"] * (len(said) > MOST_CAUSES)


def _sentence(refused: list[str], cause: str) -> str:
    more = f" and {len(refused) - MOST_NAMED} more" if len(refused) > MOST_NAMED else ""
    return f"the API server refuses {', '.join(refused[:MOST_NAMED])}{more}: {cause}"


def _field(child: Object, field: str) -> str:
    role = (child["metadata"].get("labels") or {}).get(names.LABEL_ROLE, "")
    for start, own in OF_TEMPLATES.items() if role and child["kind"] == "StatefulSet" else ():
        if re.match(re.escape(start) + r"(?![A-Za-z])", field):
            return f"spec.{_section(role)}.template.{own}{field[len(start) :]}"
    return field


def _section(role: str) -> str:
    if role in (*names.ROLES, *names.MODEL_ROLES):
        return role
    if names.is_worker_role(role) and role != names.ROLE_WORKER:
        return f"rewards[{names.scorer_index(role)}].workers"
    if role in (names.ROLE_WORKER, names.ROLE_GATEWAY):
        return {names.ROLE_WORKER: "rollout.agent.workers", names.ROLE_GATEWAY: "service"}[role]
    if names.is_sandbox_role(role):
        return f"environments[{role.removeprefix(names.ROLE_SANDBOX)}]"
    place = role.removeprefix(names.ROLE_REWARD)
    return f"rewards[{place}].model" if names.is_model_role(role) else f"pools[{role}]"


def metadata(job: RLJobMeta, name: str, role: str | None = None) -> dict[str, Any]:
    """Labels, and this job, by its uid, as the controller: children of another job of the same name are not ours."""
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": names.labels(job.name, role),
        "ownerReferences": [owner],
    }
