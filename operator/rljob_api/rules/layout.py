"""The parallel layout, recomputation, overlap and offloading of ranks, against each other and against the machine.

Rules are megatron-core's own (core/parallel_state.py, core/model_parallel_config.py, core/transformer/transformer_config.py of 0.19.2, and those of
megatron.training/arguments.py, which the package does not contain), checked before a process exists.
"""

from collections.abc import Iterator

from rljob_api.rules.engine import CONTEXT, PIPELINE, SIZES, TENSOR, Check, Rule, Violation, field
from rljob_api.rules.ranks import Ranks, of_the_trainer
from rljob_api.sizing.layout import Layout
from rljob_api.spec.processes import Recompute

RANKS = (field("trainer.nodes") * field("trainer.processesPerNode")).named("nodes x processesPerNode")
RANKS_OF_A_COPY = (TENSOR * PIPELINE * CONTEXT).named("tensor x pipeline x context")
UPDATES = (field("train.miniBatches") * field("train.epochsPerStep")).named("miniBatches x epochsPerStep")

OBJECT_RULES = (
    Rule(
        SIZES,
        RANKS_OF_A_COPY.divides(RANKS),
        "{0} is not divisible by {1}",
        "make {trainer.nodes} x {trainer.processesPerNode} a multiple of it, or lower one of the sizes",
        (RANKS, RANKS_OF_A_COPY),
        lambda spec: f"tensor {TENSOR.of(spec)} x pipeline {PIPELINE.of(spec)} x context {CONTEXT.of(spec)}",
    ),
    Rule(
        f"{SIZES}.virtualPipeline",
        (field(f"{SIZES}.virtualPipeline") > 1).implies(PIPELINE > 1),
        "parts of a stage can only be interleaved between stages, and there is one stage",
        "raise pipeline, or remove it",
    ),
    Rule(
        "trainer.overlap.paramGather",
        field("trainer.overlap.paramGather").implies(field("trainer.overlap.gradReduce")),
        "parameters are gathered into the buckets from which gradients are reduced",
        "set {trainer.overlap.gradReduce}: true, or remove it",
    ),
    Rule(
        "trainer.overlap.paramGather",
        field("trainer.overlap.paramGather").implies(UPDATES > 1),
        "parameters are gathered during the forward pass of the next update, and {0} leaves one update in a step",
        "remove it, or raise spec.train.miniBatches",
        (UPDATES,),
    ),
    Rule(
        "trainer.offload.optimizer",
        field("trainer.offload.update").implies(~field("trainer.offload.optimizer")),
        "with {trainer.offload.update} optimizer states are never on the GPU, from where they could be moved",
        "remove it, or {trainer.offload.update}",
    ),
)

MODULES = "trainer.recompute.modules"
COMPILED = ("layernorm", "moe_act")
"""Modules whose recomputation passes a tensor's memory on, by a C++ extension that is compiled where Transformer Engine is installed
(core/tensor_parallel/random.py, CheckpointWithoutOutput)."""
NOT_OURS = {"mla_up_proj": "multi-latent attention", "shared_experts": "shared experts"}
"""Modules of megatron-core that no supported model has."""


def layout_violations(ranks: Ranks) -> Iterator[Violation]:
    """Ranks against the parallel sizes."""
    layout, t = ranks.layout, ranks.spec.trainer
    count = f"nodes x processesPerNode = {t.nodes} x {t.processes_per_node} = {layout.world} ranks"
    if (layout.expert > 1 or t.parallelism.expert_tensor) and layout.world % layout.expert_model:
        sizes = {"expertTensor": layout.expert_tensor, "expert": layout.expert, "pipeline": layout.pipeline}
        yield _indivisible(ranks, count, sizes, layout.expert_model)
    if t.device == "gpu" and t.processes_per_node % layout.tensor:
        fix = f"raise {ranks.at('trainer.processesPerNode')} to a multiple of it, or lower tensor and raise pipeline"
        yield _scattered(ranks, "tensor", layout.tensor, "tensor-parallel ranks", t.processes_per_node, fix)
    elif t.device == "gpu" and t.processes_per_node % layout.expert_tensor:
        fix = "lower it and raise expert"
        yield _scattered(
            ranks, "expertTensor", layout.expert_tensor, "ranks that share an expert", t.processes_per_node, fix
        )
    if t.device == "gpu" and layout.context > 1 and ranks.spec.model.dtype == "float32":
        rule = "Transformer Engine's attention over context-parallel ranks computes in bfloat16 only"
        yield Violation(
            ranks.at(f"{SIZES}.context"), str(layout.context), rule, "set spec.model.dtype: bfloat16, or context: 1"
        )
    yield from _expert_violations(ranks, layout)


def _expert_violations(ranks: Ranks, layout: Layout) -> Iterator[Violation]:
    if layout.expert > 1 and layout.tensor > 1 and not ranks.spec.trainer.parallelism.sequence:
        yield Violation(
            ranks.at(f"{SIZES}.sequence"),
            "false",
            f"with expert = {layout.expert} and tensor = {layout.tensor}, tokens are exchanged from sequence-parallel ranks",
            "set true, or tensor or expert to 1",
        )
    if ranks.spec.trainer.device == "cpu" and layout.expert > 1 and layout.expert_tensor > 1:
        yield Violation(
            ranks.at(f"{SIZES}.expertTensor"),
            str(layout.expert_tensor),
            f"on CPU, gloo cannot do the uneven reduce-scatter of cut experts that expert = {layout.expert} needs",
            "set expertTensor 1, or expert 1",
        )


def _scattered(ranks: Ranks, name: str, size: int, who: str, count: int, fix: str) -> Violation:
    rule = f"{who} exchange every layer's activations and must share a node, which has {count} rank{'' if count == 1 else 's'}"
    return Violation(ranks.at(f"{SIZES}.{name}"), str(size), rule, fix)


def _indivisible(ranks: Ranks, count: str, sizes: dict[str, int], product: int) -> Violation:
    names, (nodes, processes) = " x ".join(sizes), (ranks.at(f"trainer.{n}") for n in ("nodes", "processesPerNode"))
    return Violation(
        ranks.at(SIZES),
        " x ".join(f"{name} {size}" for name, size in sizes.items()),
        f"{count} is not divisible by {names} = {product}",
        f"make {nodes} x {processes} a multiple of {product}, or lower one of them",
    )


def recompute_violations(ranks: Ranks) -> Iterator[Violation]:
    """Settings of recomputation that the chosen granularity does not read, and modules that cannot be recomputed."""
    r, unset = ranks.spec.trainer.recompute, Recompute()
    if r.granularity != "selective" and r.modules != unset.modules:
        yield _not_read(ranks, "modules", ", ".join(r.modules), r.granularity, "selective")
    if r.granularity != "full" and r.method != unset.method:
        yield _not_read(ranks, "method", r.method, r.granularity, "full")
    if r.granularity != "full" and r.layers != unset.layers:
        yield _not_read(ranks, "layers", str(r.layers), r.granularity, "full")
    if r.granularity == "selective" and not r.modules:
        yield Violation(
            ranks.at(MODULES), "[]", "selective recomputes nothing", "name a module, or set granularity none"
        )
    for module in r.modules:
        if module in NOT_OURS:
            yield unfit_module(ranks, module, f"no supported model has {NOT_OURS[module]}")
        elif module in COMPILED and ranks.spec.trainer.device == "cpu":
            yield unfit_module(
                ranks, module, "device cpu has none of what it needs: Transformer Engine and a C++ compiler"
            )


def unfit_module(ranks: Ranks, module: str, rule: str) -> Violation:
    """The violation of a module that cannot be recomputed here."""
    return Violation(ranks.at(MODULES), module, rule, "remove it from the list")


def _not_read(ranks: Ranks, key: str, value: str, granularity: str, reader: str) -> Violation:
    return Violation(
        ranks.at(f"trainer.recompute.{key}"),
        value,
        f"granularity {granularity} does not read it",
        f"remove it, or set {reader}",
    )


RANKS_CHECKS = (layout_violations, recompute_violations)
RULES: tuple[Check, ...] = (*OBJECT_RULES, *of_the_trainer(*RANKS_CHECKS))
