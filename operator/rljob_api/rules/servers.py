"""What one vLLM server consists of, in `spec.rollout` and in each of `spec.pools`: its pods, and how its model is cut over their GPUs."""

from collections.abc import Iterator

from rljob_api.rules.engine import COLOCATED, Check, Expression, Rule, Violation, field, present
from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import MOST_PROCESSES
from rljob_api.spec.servers import Servers

INTERRUPT = field("rollout.interrupt")
SIZES = ("tensorParallel", "pipelineParallel")


def _rules(section: str = "", items: str = "") -> Iterator[Rule]:
    """About the fields of Servers in a section of the spec, or in each item of a list."""
    nodes, experts = field(f"{section}nodes"), field(f"{section}expertParallel")
    facts = tuple(field(f"{section}{name}").named(name) for name in SIZES)
    tensor, pipeline = facts
    gpus, sizes = tensor * pipeline, "{0} and {1}"

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
        "expertParallel",
        experts.implies(tensor > 1),
        "experts are spread over tensorParallel GPUs, and {0} is one",
        f"remove it, or raise {{{section}tensorParallel}}",
    )


STAGES = field("rollout.pipelineParallel")
WITHOUT_STAGES = {
    "vLLM returns the experts of tokens from servers of one stage only": field(
        "algorithm.rolloutCorrection.routerReplay"
    ).equals("rollout"),
    "requests that are kept while a policy is applied are proven on servers of one stage only": INTERRUPT.equals(
        "keep"
    ),
    "adapters that are sent alone are proven on servers of one stage only": present("model.lora")
    & field("model.lora.sync").equals("adapters"),
}
"""What a server that is cut into pipeline stages cannot do, and when a job needs it."""

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
        for name in ("nodes", "pipelineParallel")
    ),
    *(
        Rule(
            "rollout.pipelineParallel",
            ~needed | STAGES.equals(1),
            problem,
            "set spec.rollout.tensorParallel in its place",
        )
        for problem, needed in WITHOUT_STAGES.items()
    ),
)


def experts_on_cpus(spec: RLJobSpec) -> Iterator[Violation]:
    """Experts that are spread over one process are refused above."""
    for role, settings in spec.pods.items():
        spreads = isinstance(settings, Servers) and settings.expert_parallel and settings.tensor_parallel > 1
        if spreads and spec.trainer.device == "cpu":
            why = "vLLM's kernel for CPUs computes with all experts of the model, of which a worker then holds a part only"
            yield Violation(f"{spec.field_of(role)}.expertParallel", "true", why, "remove it")


RULES: tuple[Check, ...] = (*OBJECT_RULES, experts_on_cpus)
