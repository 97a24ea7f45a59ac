"""What each scheduling backend takes and needs."""

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError

from rljob_api.base import Wire
from rljob_api.spec import RLJobSpec
from rljob_api.validation.pods import templates
from rljob_api.validation.violation import Violation

SCHEDULING = "spec.scheduling"
HOST = "kubernetes.io/hostname"
QUEUED = ("kueue", "volcano")
OPERATORS = ("Gt", "Lt", "In", "NotIn", "Exists", "DoesNotExist")
NOT_PLANNED = ("podAffinity", "podAntiAffinity")


def backend_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """A field that a backend does not read is refused there, so that nobody believes in it."""
    s = spec.scheduling
    if s.backend in QUEUED and not s.queue:
        yield Violation(
            f"{SCHEDULING}.queue", "unset", f"the backend {s.backend} takes no job without a queue", "name one"
        )
    if s.backend not in QUEUED and s.queue:
        yield Violation(
            f"{SCHEDULING}.queue",
            s.queue,
            f"the backend {s.backend} has no queues",
            "take it out, or choose kueue or volcano",
        )
    if s.backend not in ("builtin", "kueue") and s.topology_levels:
        yield Violation(
            f"{SCHEDULING}.topologyLevels",
            ", ".join(s.topology_levels),
            f"the backend {s.backend} does not read node labels",
            "take them out, or choose builtin or kueue",
        )
    if s.backend != "builtin" and s.priority:
        yield Violation(
            f"{SCHEDULING}.priority",
            str(s.priority),
            f"orders jobs of the backend builtin, and this job's is {s.backend}",
            "take it out; spec.trainer.template.priorityClassName is for the others",
        )


def level_violations(spec: RLJobSpec) -> Iterator[Violation]:
    levels = spec.scheduling.topology_levels
    for i, level in enumerate(levels):
        if level in levels[:i]:
            yield Violation(f"{SCHEDULING}.topologyLevels[{i}]", level, "is named twice", "keep one of them")
        if level == HOST and spec.scheduling.backend == "builtin":
            yield Violation(
                f"{SCHEDULING}.topologyLevels[{i}]", level, "the node itself is always the last level", "take it out"
            )


class _Compared(Wire):
    """A node's label against a number."""

    key: str
    operator: Literal["Gt", "Lt"]
    values: Annotated[list[Annotated[str, StringConstraints(pattern=r"^-?[0-9]+$")]], Field(min_length=1, max_length=1)]


class _Listed(Wire):
    key: str
    operator: Literal["In", "NotIn"]
    values: Annotated[list[str], Field(min_length=1)]


class _Present(Wire):
    key: str
    operator: Literal["Exists", "DoesNotExist"]


_Expression = Annotated[_Compared | _Listed | _Present, Field(discriminator="operator")]


class _Term(Wire):
    match_expressions: list[_Expression] = []
    match_fields: list[_Expression] = []


class _Required(Wire):
    node_selector_terms: Annotated[list[_Term], Field(min_length=1)]


class _NodeAffinity(Wire):
    required_during_scheduling_ignored_during_execution: _Required | None = None


class _Affinity(Wire):
    """As much of a Kubernetes affinity as is planned by."""

    node_affinity: _NodeAffinity | None = None


def node_affinity_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """The API server looks into a template only when pods are made of it; plans read it before."""
    for role, template in templates(spec):
        try:
            _Affinity.model_validate(template.affinity or {})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            keys = [p for p in first["loc"] if p not in OPERATORS]
            path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in keys)
            field = f"spec.{role}.template.affinity{path}"
            yield Violation(
                field, str(first["input"]), first["msg"], "see `kubectl explain pod.spec.affinity.nodeAffinity`"
            )


def affinity_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """What builtin would plan against the scheduler's will."""
    if spec.scheduling.backend != "builtin":
        return
    for role, template in templates(spec):
        for kind in NOT_PLANNED:
            if (template.affinity or {}).get(kind):
                yield Violation(
                    f"spec.{role}.template.affinity.{kind}",
                    "set",
                    "the backend builtin does not plan by other pods",
                    f"take it out, use {SCHEDULING}.topologyLevels, or choose the backend none",
                )


RULES: tuple[Callable[[RLJobSpec], Iterable[Violation]], ...] = (
    backend_violations,
    level_violations,
    node_affinity_violations,
    affinity_violations,
)
