"""Megatron's ranks: their parallel layout, recomputation, overlap and offloading, against each other and against the machine.

Rules are megatron-core's own (core/parallel_state.py, core/model_parallel_config.py, core/transformer/transformer_config.py of 0.19.2, and those of
megatron.training/arguments.py, which the package does not contain), checked before a process exists. They judge the trainer's ranks, or those of the
gang of another model, and a message names the section that users wrote.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rljob_api import names
from rljob_api.base import Model
from rljob_api.rules.engine import SIZES, Check, Rule, Violation, field
from rljob_api.rules.fields import names_of
from rljob_api.sizing.layout import Layout
from rljob_api.spec import RLJobSpec
from rljob_api.spec.processes import Recompute
from rljob_api.spec.roles import RankSettings, TrainerSpec

TOKENS = "train.tokensPerMicroBatch"
"""The one setting of ranks that the trainer has outside its section."""


@dataclass(frozen=True, slots=True)
class JudgedRanks:
    """Megatron's ranks, which a rule judges: the trainer's, or those of another model's gang."""

    spec: RLJobSpec
    """Of the job."""
    settings: RankSettings
    """Of these ranks."""
    role: str
    """Of the model that they hold."""
    section: str
    """Path of the section that users write these settings in, such as `spec.rewards[0].model`."""
    fields: frozenset[str]
    """Names of the fields that the section has."""

    @staticmethod
    def of(spec: RLJobSpec, role: str) -> "JudgedRanks":
        gang = spec.gangs.get(role)
        section: type[Model] = type(gang) if gang else TrainerSpec
        return JudgedRanks(spec, spec.ranks_of(role), role, spec.field_of(role), frozenset(names_of(section)))

    @property
    def layout(self) -> Layout:
        return Layout.of(self.spec, self.role)

    def at(self, path: str) -> str:
        """Where users write, for these ranks, what the trainer's read at a path of the spec."""
        section, _, field = path.partition(".")
        own = section == names.ROLE_TRAINER or path == TOKENS
        return f"{self.section}.{field}" if own and field.split(".")[0] in self.fields else f"spec.{path}"

    def at_own(self, path: str) -> str:
        """Where users write what their settings have at a path."""
        return self.at(f"{names.ROLE_TRAINER}.{path}")


RanksCheck = Callable[[JudgedRanks], Iterable[Violation]]
"""A rule about Megatron's ranks, whosever they are."""


def of_the_trainer(*checks: RanksCheck) -> tuple[Check, ...]:
    """Rules about ranks, as rules about the trainer's."""
    return tuple(map(_of_the_trainer, checks))


def _of_the_trainer(check: RanksCheck) -> Check:
    def of_spec(spec: RLJobSpec) -> Iterable[Violation]:
        return check(JudgedRanks.of(spec, names.ROLE_TRAINER))

    return of_spec


UPDATES = (field("train.miniBatches") * field("train.epochsPerStep")).named("miniBatches x epochsPerStep")


def _size_rules(section: str = "") -> tuple[Rule, ...]:
    """Of the ranks whose settings are in a section of the spec; empty: of those that have these settings themselves (RankSettings)."""
    sizes = f"{section}parallelism"
    tensor, pipeline, context = (field(f"{sizes}.{size}") for size in ("tensor", "pipeline", "context"))
    ranks = (field(f"{section}nodes") * field(f"{section}processesPerNode")).named("nodes x processesPerNode")
    of_a_copy = (tensor * pipeline * context).named("tensor x pipeline x context")
    return (
        Rule(
            sizes,
            of_a_copy.divides(ranks),
            "{0} is not divisible by {1}",
            f"make {{{section}nodes}} x {{{section}processesPerNode}} a multiple of it, or lower one of the sizes",
            (ranks, of_a_copy),
            lambda scope: f"tensor {tensor.of(scope)} x pipeline {pipeline.of(scope)} x context {context.of(scope)}",
        ),
        Rule(
            f"{sizes}.virtualPipeline",
            (field(f"{sizes}.virtualPipeline") > 1).implies(pipeline > 1),
            "parts of a stage can only be interleaved between stages, and there is one stage",
            "raise pipeline, or remove it",
        ),
    )


SIZE_RULES = _size_rules()
OBJECT_RULES = (
    *_size_rules("trainer."),
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


def layout_violations(ranks: JudgedRanks) -> Iterator[Violation]:
    """Ranks against the parallel sizes."""
    layout, t, device = ranks.layout, ranks.settings, ranks.spec.trainer.device
    count = f"nodes x processesPerNode = {t.nodes} x {t.processes_per_node} = {layout.world} ranks"
    if (layout.expert > 1 or t.parallelism.expert_tensor) and layout.world % layout.expert_model:
        sizes = {"expertTensor": layout.expert_tensor, "expert": layout.expert, "pipeline": layout.pipeline}
        yield _indivisible(ranks, count, sizes, layout.expert_model)
    if device == "gpu" and t.processes_per_node % layout.tensor:
        fix = f"raise {ranks.at('trainer.processesPerNode')} to a multiple of it, or lower tensor and raise pipeline"
        yield _scattered(ranks, "tensor", layout.tensor, "tensor-parallel ranks", t.processes_per_node, fix)
    elif device == "gpu" and t.processes_per_node % layout.expert_tensor:
        fix = "lower it and raise expert"
        yield _scattered(
            ranks, "expertTensor", layout.expert_tensor, "ranks that share an expert", t.processes_per_node, fix
        )
    if device == "gpu" and layout.context > 1 and ranks.spec.model.dtype == "float32":
        rule = "Transformer Engine's attention over context-parallel ranks computes in bfloat16 only"
        yield Violation(
            ranks.at(f"{SIZES}.context"), str(layout.context), rule, "set spec.model.dtype: bfloat16, or context: 1"
        )
    yield from _expert_violations(ranks, layout)


def _expert_violations(ranks: JudgedRanks, layout: Layout) -> Iterator[Violation]:
    if layout.expert > 1 and layout.tensor > 1 and not ranks.settings.parallelism.sequence:
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


def _scattered(ranks: JudgedRanks, name: str, size: int, who: str, count: int, fix: str) -> Violation:
    rule = f"{who} exchange every layer's activations and must share a node, which has {count} rank{'' if count == 1 else 's'}"
    return Violation(ranks.at(f"{SIZES}.{name}"), str(size), rule, fix)


def _indivisible(ranks: JudgedRanks, count: str, sizes: dict[str, int], product: int) -> Violation:
    names, (nodes, processes) = " x ".join(sizes), (ranks.at(f"trainer.{n}") for n in ("nodes", "processesPerNode"))
    return Violation(
        ranks.at(SIZES),
        " x ".join(f"{name} {size}" for name, size in sizes.items()),
        f"{count} is not divisible by {names} = {product}",
        f"make {nodes} x {processes} a multiple of {product}, or lower one of them",
    )


def recompute_violations(ranks: JudgedRanks) -> Iterator[Violation]:
    """Settings of recomputation that the chosen granularity does not read, and modules that cannot be recomputed."""
    r, unset = ranks.settings.recompute, Recompute()
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


def unfit_module(ranks: JudgedRanks, module: str, rule: str) -> Violation:
    """The violation of a module that cannot be recomputed here."""
    return Violation(ranks.at(MODULES), module, rule, "remove it from the list")


def _not_read(ranks: JudgedRanks, key: str, value: str, granularity: str, reader: str) -> Violation:
    return Violation(
        ranks.at(f"trainer.recompute.{key}"),
        value,
        f"granularity {granularity} does not read it",
        f"remove it, or set {reader}",
    )


RANKS_CHECKS = (layout_violations, recompute_violations)
RULES: tuple[Check, ...] = (*OBJECT_RULES, *of_the_trainer(*RANKS_CHECKS))
