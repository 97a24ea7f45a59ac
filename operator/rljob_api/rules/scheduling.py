"""Rules about backends, queues, topology levels, affinities, and how many pods a job may have."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from rljob_api.backends import LABELED, readers_of
from rljob_api.base import KubernetesObject
from rljob_api.rules.engine import Check, Rule, Violation, field, present, size
from rljob_api.rules.fields import kubernetes_violations
from rljob_api.rules.pods import templates
from rljob_api.sizing.layout import server_nodes
from rljob_api.spec import RLJobSpec
from rljob_api.spec.agent import EnvironmentPool
from rljob_api.spec.common import MOST_PODS, MOST_SERVER_PODS
from rljob_api.spec.processes import Servers, Workers

QUEUED, LEVELED, PRIORITIZED, PREEMPTING = (
    readers_of(name) for name in ("queue", "topologyLevels", "priority", "preemptionPolicy")
)
BACKEND = field("scheduling.backend")
LABEL_VALUE = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"

OBJECT_RULES = (
    Rule(
        "scheduling.queue",
        BACKEND.is_in(QUEUED).implies(present("scheduling.queue")),
        "{0} takes no job without a queue",
        "name one",
        (BACKEND,),
        "unset",
    ),
    Rule(
        "scheduling.queue",
        present("scheduling.queue").implies(BACKEND.is_in(QUEUED)),
        "{0} has no queues",
        f"remove it, or set spec.scheduling.backend to {' or '.join(QUEUED)}",
        (BACKEND,),
        "set",
    ),
    Rule(
        "scheduling.queue",
        (present("scheduling.queue") & BACKEND.is_in(LABELED)).implies(field("scheduling.queue").matches(LABEL_VALUE)),
        "is no label value, which {0} needs",
        "name a queue of at most 63 letters, digits, `-`, `_` and `.`",
        (BACKEND,),
    ),
    Rule(
        "scheduling.topologyLevels",
        BACKEND.is_in(LEVELED) | size("scheduling.topologyLevels").equals(0),
        "{0} does not read labels of nodes",
        f"remove them, or set spec.scheduling.backend to {' or '.join(LEVELED)}",
        (BACKEND,),
        "set",
    ),
    Rule(
        "scheduling.priority",
        BACKEND.is_in(PRIORITIZED) | field("scheduling.priority").equals(0),
        f"{{0}} does not read it: it orders the jobs of the {' or '.join(PRIORITIZED)} backend",
        "remove it; spec.trainer.template.priorityClassName is for the others",
        (BACKEND,),
    ),
    Rule(
        "scheduling.preemptionPolicy",
        BACKEND.is_in(PREEMPTING) | field("scheduling.preemptionPolicy").equals("PreemptLowerPriority"),
        f"{{0}} does not read it: it is for jobs of the {' or '.join(PREEMPTING)} backend",
        "remove it; the PriorityClass of spec.trainer.template.priorityClassName has such a field for the others",
        (BACKEND,),
    ),
)

SCHEDULING, BACKEND_FIELD = "spec.scheduling", "spec.scheduling.backend"
HOST = "kubernetes.io/hostname"
OPERATORS = ("Gt", "Lt", "In", "NotIn", "Exists", "DoesNotExist")
NOT_PLANNED = ("podAffinity", "podAntiAffinity")


def level_violations(spec: RLJobSpec) -> Iterator[Violation]:
    levels = spec.scheduling.topology_levels
    for i, level in enumerate(levels):
        if level in levels[:i]:
            yield Violation(f"{SCHEDULING}.topologyLevels[{i}]", level, "is named twice", "keep one of them")
        if level == HOST and spec.scheduling.facts.assigns_nodes:
            yield Violation(
                f"{SCHEDULING}.topologyLevels[{i}]", level, "the node itself is always the last level", "take it out"
            )


QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def queue_label_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Kueue's label on pods that another backend places: Kueue would hold each of them for itself, and the gang would never be whole."""
    if spec.scheduling.backend == "kueue":
        return
    for at, template in templates(spec):
        if queue := template.labels.get(QUEUE_LABEL):
            rule = f"would have Kueue hold each pod for itself, with {BACKEND_FIELD} = {spec.scheduling.backend}"
            fix = f"remove it, and set spec.scheduling: {{backend: kueue, queue: {queue}}}"
            yield Violation(f"{at}.template.labels.{QUEUE_LABEL}", queue, rule, fix)


def required_level_violations(spec: RLJobSpec) -> Iterator[Violation]:
    level, levels = spec.scheduling.required_level, spec.scheduling.topology_levels
    if level is not None and level not in levels:
        rule = f"is none of {SCHEDULING}.topologyLevels = {', '.join(levels) or '[]'}"
        yield Violation(f"{SCHEDULING}.requiredLevel", level, rule, "name one of them, or add it there")


def size_violations(
    spec: RLJobSpec, most: int = MOST_PODS, rule: str = "a job may have", fix: str = "lower it"
) -> Iterator[Violation]:
    """A job with more than `most` pods, by its largest part. `rule`: who says so; `fix`: what to do."""
    pods = {spec.field_of(role): count for role, count in {**spec.pod_counts, **spec.gang_sizes}.items()}
    pods[f"{SCHEDULING}.spareNodes"] = spec.scheduling.spare_nodes
    yield from _beyond(spec, pods, most, f"{rule} at most {most} pods", fix)


def server_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Pods of servers of several pods. The status and the control message have an entry for each, and an object of Kubernetes has 1 MiB at most. A
    job that has too many pods anyway breaks the rule above."""
    if any(size_violations(spec)):
        return
    pods = {spec.field_of(role): count for role, count in spec.pod_counts.items() if server_nodes(spec, role) > 1}
    rule = f"servers of several pods may have at most {MOST_SERVER_PODS} pods together"
    yield from _beyond(spec, pods, MOST_SERVER_PODS, rule, "lower it, or the number of pods of each server")


def _beyond(spec: RLJobSpec, pods: dict[str, int], most: int, rule: str, fix: str) -> Iterator[Violation]:
    """More than `most` pods, by the largest part. `pods`: their numbers, by the part that they are of."""
    total = sum(pods.values())
    if total > most:
        part = max(pods, key=lambda part: pods[part])
        others = ", ".join(f"{other} {pods[other]}" for other in pods if other != part and pods[other])
        together = f"with {others} that makes {total} pods; " if others else ""
        yield Violation(*_counted(spec, part, pods[part]), f"{together}{rule}", fix)


def _counted(spec: RLJobSpec, part: str, pods: int) -> tuple[str, str]:
    """Path and value of the field that a number of pods comes from."""
    if part.endswith(".spareNodes"):
        return part, str(pods)
    (section,) = (given for role, given in spec.pods.items() if spec.field_of(role) == part)
    if isinstance(section, Workers | EnvironmentPool):
        return f"{part}.replicas", str(pods)
    if not isinstance(section, Servers):
        return f"{part}.nodes", str(pods)
    return f"{part}.replicas", f"{pods // section.nodes} of {section.nodes} pods" if section.nodes > 1 else str(pods)


MOST_TERMS, MOST_COMPARED = 16, 1024
"""Terms of a node affinity, expressions of each, and values of each of these, at most: a plan compares all of them with all nodes."""


class _Compared(KubernetesObject):
    """A node's label against a number."""

    key: str
    operator: Literal["Gt", "Lt"]
    values: Annotated[
        list[Annotated[str, StringConstraints(pattern=r"^-?[0-9]+$", max_length=20)]],
        Field(min_length=1, max_length=1),
    ]


class _Listed(KubernetesObject):
    key: str
    operator: Literal["In", "NotIn"]
    values: Annotated[list[str], Field(min_length=1, max_length=MOST_COMPARED)]


class _Present(KubernetesObject):
    key: str
    operator: Literal["Exists", "DoesNotExist"]
    values: Annotated[list[str], Field(max_length=0)] | None = None


_Expression = Annotated[_Compared | _Listed | _Present, Field(discriminator="operator")]


class _Term(KubernetesObject):
    match_expressions: Annotated[list[_Expression], Field(max_length=MOST_TERMS)] | None = None
    match_fields: Annotated[list[_Expression], Field(max_length=MOST_TERMS)] | None = None


class _Required(KubernetesObject):
    node_selector_terms: Annotated[list[_Term], Field(min_length=1, max_length=MOST_TERMS)]


class _Preferred(KubernetesObject):
    weight: int
    preference: _Term


class _NodeAffinity(KubernetesObject):
    required_during_scheduling_ignored_during_execution: _Required | None = None
    preferred_during_scheduling_ignored_during_execution: list[_Preferred] | None = None


class _Affinity(KubernetesObject):
    node_affinity: _NodeAffinity | None = None
    pod_affinity: dict[str, Any] | None = None
    pod_anti_affinity: dict[str, Any] | None = None


def node_affinity_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Node affinities have to be well-formed. The API server only checks that when pods are created, and plans read them before."""
    for where, template in templates(spec):
        field = f"{where}.template.affinity"
        yield from kubernetes_violations(field, _Affinity, template.affinity or {}, "affinity", OPERATORS)


def affinity_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Affinities that the builtin backend does not take into account, so that the cluster's scheduler would refuse its nodes."""
    if not spec.scheduling.facts.assigns_nodes:
        return
    for where, template in templates(spec):
        for kind in NOT_PLANNED:
            if (template.affinity or {}).get(kind):
                yield Violation(
                    f"{where}.template.affinity.{kind}",
                    "set",
                    "the backend builtin does not plan by other pods",
                    f"take it out, use {SCHEDULING}.topologyLevels, or choose the backend none",
                )


RULES: tuple[Check, ...] = (
    *OBJECT_RULES,
    level_violations,
    queue_label_violations,
    required_level_violations,
    node_affinity_violations,
    affinity_violations,
    size_violations,
    server_violations,
)
