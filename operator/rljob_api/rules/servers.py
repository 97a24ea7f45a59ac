"""What one vLLM server consists of, in `spec.rollout` and in each of `spec.pools`: its pods, and how its model is cut over their GPUs."""

from collections.abc import Iterator

from rljob_api.rules.engine import COLOCATED, Check, Expression, Rule, field
from rljob_api.spec.common import MOST_PROCESSES

SIZES = ("tensorParallel", "pipelineParallel", "dataParallel")


def _rules(section: str = "", items: str = "") -> Iterator[Rule]:
    """About the fields of Servers in a section of the spec, or in each item of a list."""
    nodes, experts = field(f"{section}nodes"), field(f"{section}expertParallel")
    facts = tuple(field(f"{section}{name}").named(name) for name in SIZES)
    tensor, pipeline, data = facts
    gpus, sizes = tensor * pipeline * data, "{0}, {1} and {2}"

    def rule(name: str, holds: Expression, problem: str, fix: str) -> Rule:
        return Rule(f"{section}{name}", holds, problem, fix, facts, items=items)

    yield rule(
        "nodes",
        nodes.divides(gpus),
        f"the GPUs of a server, the product of {sizes}, cannot be shared equally by so many pods",
        "choose a divisor of that product",
    )
    yield rule(
        "nodes",
        gpus <= nodes * MOST_PROCESSES,
        f"a pod would have more than {MOST_PROCESSES} of the GPUs of a server, which are the product of {sizes}",
        "raise it, or lower one of them",
    )
    yield rule(
        "dataParallel",
        data.divides(nodes) | nodes.divides(data),
        "vLLM gives every pod whole copies, or every copy whole pods",
        f"choose a divisor or a multiple of {{{section}nodes}}",
    )
    yield rule(
        "dataParallel",
        data.equals(1) | experts,
        "copies that share no experts are servers of their own",
        f"set {{{section}expertParallel}}, or more of {{{section}replicas}} in its place",
    )
    yield rule(
        "expertParallel",
        experts.implies(tensor * data > 1),
        f"experts are spread over tensorParallel x dataParallel GPUs, and {sizes} leave one",
        "remove it, or raise one of the two",
    )


OBJECT_RULES = (
    *_rules("rollout."),
    *_rules(items="pools"),
    *(
        Rule(
            f"rollout.{name}",
            COLOCATED.implies(field(f"rollout.{name}").equals(1)),
            "a colocated server is on GPUs of one trainer pod, over which tensorParallel alone cuts it",
            "remove it, or set spec.rollout.placement: separate",
        )
        for name in ("nodes", "pipelineParallel", "dataParallel")
    ),
)

RULES: tuple[Check, ...] = OBJECT_RULES
