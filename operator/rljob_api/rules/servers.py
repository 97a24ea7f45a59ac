"""What one vLLM server consists of, in `spec.rollout` and in each of `spec.pools`: its pods, and how its model is cut over their GPUs."""

from collections.abc import Iterator

from rljob_api.rules.engine import COLOCATED, Check, Expression, Rule, Violation, field, present
from rljob_api.sizing.server_arguments import CACHE, SHARE
from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import MOST_PROCESSES
from rljob_api.type_errors import as_written

INTERRUPT = field("rollout.interrupt")
SIZES = ("tensorParallel", "pipelineParallel", "dataParallel")


def _rules(section: str = "", items: str = "") -> Iterator[Rule]:
    """About the fields of Servers in a section of the spec, or in each item of a list."""
    nodes, experts = field(f"{section}nodes"), field(f"{section}expertParallel")
    facts = tuple(field(f"{section}{name}").named(name) for name in SIZES)
    tensor, pipeline, copies = facts
    gpus, sizes = tensor * pipeline * copies, "{0}, {1} and {2}"

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
        "nodes",
        copies.equals(1) | nodes.divides(copies),
        "each pod of a server with data-parallel copies has as many whole ones as the others, and {2} is not divisible by it",
        f"choose a divisor of {{{section}dataParallel}}",
    )
    yield rule(
        "dataParallel",
        copies.equals(1) | pipeline.equals(1),
        "data-parallel copies are proven on servers of one stage only, and {1} makes more",
        f"set {{{section}tensorParallel}} in place of {{{section}pipelineParallel}}",
    )
    yield rule(
        "dataParallel",
        copies.equals(1) | experts,
        "data-parallel copies are proven with whole experts on each GPU only",
        f"set {{{section}expertParallel}}: true",
    )
    yield rule(
        "expertParallel",
        experts.implies(tensor * copies > 1),
        "experts are spread over the GPUs of a stage, and {0} and {2} give it one",
        f"remove it, or raise {{{section}tensorParallel}} or {{{section}dataParallel}}",
    )


REPLAYED = field("algorithm.rolloutCorrection.routerReplay").equals("rollout")
KEPT = INTERRUPT.equals("keep")
ADAPTERS = present("model.lora") & field("model.lora.sync").equals("adapters")
WITHOUT_STAGES = {
    "vLLM returns the experts of tokens from servers of one stage only": REPLAYED,
    "requests that are kept while a policy is applied are proven on servers of one stage only": KEPT,
    "adapters that are sent alone are proven on servers of one stage only": ADAPTERS,
}
"""What a server that is cut into pipeline stages cannot do, and when a job needs it."""
WITHOUT_COPIES = {
    "that vLLM returns the experts of tokens is proven on servers without data-parallel copies only": REPLAYED,
    "requests that are kept while a policy is applied are proven on servers without data-parallel copies only": KEPT,
    "adapters that are sent alone are proven on servers without data-parallel copies only": ADAPTERS,
}
"""The same of one with data-parallel copies."""

SHARING = field("rollout.serversPerGpu")
TENSOR, COPIES = (field(f"rollout.{name}").named(name) for name in ("tensorParallel", "dataParallel"))

OBJECT_RULES = (
    *_rules("rollout."),
    *_rules(items="pools"),
    *(
        Rule(
            f"rollout.{name}",
            COLOCATED.implies(field(f"rollout.{name}").equals(1)),
            "a colocated server is on GPUs of one trainer pod, over which tensorParallel and dataParallel alone cut it",
            "remove it, or set spec.rollout.placement: separate",
        )
        for name in ("nodes", "pipelineParallel")
    ),
    *(
        Rule(
            f"rollout.{name}",
            ~needed | field(f"rollout.{name}").equals(1),
            problem,
            f"set spec.rollout.{instead} in its place",
        )
        for name, instead, without in (
            ("pipelineParallel", "tensorParallel", WITHOUT_STAGES),
            ("dataParallel", "replicas", WITHOUT_COPIES),
        )
        for problem, needed in without.items()
    ),
    Rule(
        "rollout.serversPerGpu",
        SHARING.equals(1) | COLOCATED,
        "only colocated servers share a GPU; separate ones have GPUs of their own",
        "remove it, or set spec.rollout.placement: colocated",
    ),
    Rule(
        "rollout.serversPerGpu",
        COLOCATED.implies(SHARING.equals(1) | (TENSOR * COPIES).equals(1)),
        "only servers on one GPU each share it, and the GPUs of a server are {0} times {1}",
        "remove it, or set both to 1",
        (TENSOR, COPIES),
    ),
)


def sharing_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Servers of the same GPU start at the same time: none can measure what is free, and vLLM's profiling fails. So each has a cache of a given size,
    and no share."""
    servers, given = spec.rollout.servers_per_gpu, spec.rollout.vllm_args
    if servers == 1 or spec.rollout.placement != "colocated" or spec.trainer.device != "gpu":
        return
    if given.get(CACHE) is None:
        rule = (
            f"{servers} servers on each GPU start at the same time, so that none can measure what is free for its cache"
        )
        yield Violation(f"spec.rollout.vllmArgs.{CACHE}", "unset", rule, "set the bytes of each server's cache")
    if SHARE in given:
        rule = f"with {servers} servers on each GPU, {CACHE} says what each takes"
        yield Violation(f"spec.rollout.vllmArgs.{SHARE}", as_written(given[SHARE]), rule, "remove it")


RULES: tuple[Check, ...] = (*OBJECT_RULES, sharing_violations)
