"""What each scheduling backend takes and needs."""

from collections.abc import Callable, Iterable, Iterator

from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Template
from rljob_api.violation import Violation

SCHEDULING = "spec.scheduling"
HOST = "kubernetes.io/hostname"
QUEUED = ("kueue", "volcano")
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


def affinity_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """What builtin would plan against the scheduler's will."""
    if spec.scheduling.backend != "builtin":
        return
    templates: tuple[tuple[str, Template], ...] = (
        ("trainer", spec.trainer.template),
        ("rollout", spec.rollout.template),
    )
    for role, template in templates:
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
    affinity_violations,
)
