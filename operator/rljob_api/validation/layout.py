"""The parallel layout, recomputation, overlap and the token budget, against each other and against the machine.

Rules are megatron-core's own (core/parallel_state.py, core/model_parallel_config.py, core/transformer/transformer_config.py of 0.19.2, and those of
megatron.training/arguments.py, which the package does not contain), checked before a process exists.
"""

from collections.abc import Iterator

from rljob_api import names
from rljob_api.sizing.layout import Layout
from rljob_api.spec import RLJobSpec
from rljob_api.spec.gang import Recompute
from rljob_api.validation.result import Violation

PARALLELISM = "spec.trainer.parallelism"
RECOMPUTE = "spec.trainer.recompute"
COMPILED = ("layernorm", "moe_act")
"""Modules whose recomputation passes a tensor's memory on, by a C++ extension that is compiled where Transformer Engine is installed
(core/tensor_parallel/random.py, CheckpointWithoutOutput)."""
NOT_OURS = {"mla_up_proj": "multi-latent attention", "shared_experts": "shared experts"}
"""Modules of megatron-core that no supported model has."""


def layout_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Ranks against the parallel sizes."""
    layout, t = Layout.of(spec, names.ROLE_TRAINER), spec.trainer
    ranks = f"nodes x processesPerNode = {t.nodes} x {t.processes_per_node} = {layout.world} ranks"
    if (layout.expert > 1 or t.parallelism.expert_tensor) and layout.world % layout.expert_model:
        sizes = {"expertTensor": layout.expert_tensor, "expert": layout.expert, "pipeline": layout.pipeline}
        yield _indivisible(ranks, sizes, layout.expert_model)
    if t.device == "gpu" and t.processes_per_node % layout.tensor:
        fix = "raise spec.trainer.processesPerNode to a multiple of it, or lower tensor and raise pipeline"
        yield _scattered("tensor", layout.tensor, "tensor-parallel ranks", t.processes_per_node, fix)
    elif t.device == "gpu" and t.processes_per_node % layout.expert_tensor:
        fix = "lower it and raise expert"
        yield _scattered("expertTensor", layout.expert_tensor, "ranks that share an expert", t.processes_per_node, fix)
    if t.device == "gpu" and layout.context > 1 and spec.model.dtype == "float32":
        rule = "Transformer Engine's attention over context-parallel ranks computes in bfloat16 only"
        yield Violation(
            f"{PARALLELISM}.context", str(layout.context), rule, "set spec.model.dtype: bfloat16, or context: 1"
        )
    yield from _expert_violations(spec, layout)


def _expert_violations(spec: RLJobSpec, layout: Layout) -> Iterator[Violation]:
    if layout.expert > 1 and layout.tensor > 1 and not spec.trainer.parallelism.sequence:
        yield Violation(
            f"{PARALLELISM}.sequence",
            "false",
            f"with expert = {layout.expert} and tensor = {layout.tensor}, tokens are exchanged from sequence-parallel ranks",
            "set true, or tensor or expert to 1",
        )
    if spec.trainer.device == "cpu" and layout.expert > 1 and layout.expert_tensor > 1:
        yield Violation(
            f"{PARALLELISM}.expertTensor",
            str(layout.expert_tensor),
            f"on CPU, gloo cannot do the uneven reduce-scatter of cut experts that expert = {layout.expert} needs",
            "set expertTensor 1, or expert 1",
        )


def _scattered(name: str, size: int, who: str, ranks: int, fix: str) -> Violation:
    rule = f"{who} exchange every layer's activations and must share a node, which has {ranks} rank{'' if ranks == 1 else 's'}"
    return Violation(f"{PARALLELISM}.{name}", str(size), rule, fix)


def _indivisible(ranks: str, sizes: dict[str, int], product: int) -> Violation:
    names = " x ".join(sizes)
    return Violation(
        PARALLELISM,
        " x ".join(f"{name} {size}" for name, size in sizes.items()),
        f"{ranks} is not divisible by {names} = {product}",
        f"make spec.trainer.nodes x spec.trainer.processesPerNode a multiple of {product}, or lower one of them",
    )


def recompute_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Settings of recomputation that the chosen granularity does not read, and modules that cannot be recomputed."""
    r, unset = spec.trainer.recompute, Recompute()
    if r.granularity != "selective" and r.modules != unset.modules:
        yield _not_read("modules", ", ".join(r.modules), r.granularity, "selective")
    if r.granularity != "full" and r.method != unset.method:
        yield _not_read("method", r.method, r.granularity, "full")
    if r.granularity != "full" and r.layers != unset.layers:
        yield _not_read("layers", str(r.layers), r.granularity, "full")
    if r.granularity == "selective" and not r.modules:
        yield Violation(
            f"{RECOMPUTE}.modules", "[]", "selective recomputes nothing", "name a module, or set granularity none"
        )
    for module in r.modules:
        if module in NOT_OURS:
            yield unfit_module(module, f"no supported model has {NOT_OURS[module]}")
        elif module in COMPILED and spec.trainer.device == "cpu":
            yield unfit_module(module, "device cpu has none of what it needs: Transformer Engine and a C++ compiler")


def unfit_module(module: str, rule: str) -> Violation:
    """The violation of a module that cannot be recomputed here."""
    return Violation(f"{RECOMPUTE}.modules", module, rule, "remove it from the list")


def _not_read(key: str, value: str, granularity: str, reader: str) -> Violation:
    return Violation(
        f"{RECOMPUTE}.{key}", value, f"granularity {granularity} does not read it", f"remove it, or set {reader}"
    )


RULES = (layout_violations, recompute_violations)
