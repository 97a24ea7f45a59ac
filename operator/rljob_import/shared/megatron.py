"""What the systems share: megatron-core's own names for layout, recomputation and TransformerConfig."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rljob_api.rules.key_tables import OWNED_TRANSFORMER_CONFIG, TRANSFORMER_CONFIG
from rljob_import.settings import Given, Settings, show
from rljob_import.table import Field, Outcome, Row, Said, becomes, read, verbatim

PARALLELISM = "trainer.parallelism"
SIZES = {
    "tensor_model_parallel_size": "tensor",
    "pipeline_model_parallel_size": "pipeline",
    "context_parallel_size": "context",
    "expert_model_parallel_size": "expert",
    "expert_tensor_parallel_size": "expertTensor",
    "sequence_parallel": "sequence",
}
RECOMPUTE = ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules")
MODULES = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")


def layout_rows(prefix: str, defaults: dict[str, Any]) -> tuple[Row, ...]:
    """Parallel sizes under `prefix` (with its dot, or empty)."""
    sizes = (becomes(f"{prefix}{key}", f"{PARALLELISM}.{name}", defaults.get(key)) for key, name in SIZES.items())
    pieces = f"{prefix}virtual_pipeline_model_parallel_size"
    return (*sizes, read(pieces, f"{PARALLELISM}.virtualPipeline", text="dropped when there is one stage"))


def same_layout_rows(prefix: str, who: str) -> tuple[Row, ...]:
    """Parallel sizes of another role, which an RLJob gives the trainer's layout."""
    text = f"{who} runs in the trainer's layout"
    return tuple(read(f"{prefix}{key}", "", text=text) for key in (*SIZES, "virtual_pipeline_model_parallel_size"))


def recompute_rows(prefix: str) -> tuple[Row, ...]:
    target = "trainer.recompute"
    return (
        read(f"{prefix}recompute_granularity", f"{target}.granularity"),
        read(f"{prefix}recompute_method", f"{target}.method", text="uniform when only `full` is given"),
        read(f"{prefix}recompute_num_layers", f"{target}.layers", text="1 when only `full` is given"),
        read(f"{prefix}recompute_modules", f"{target}.modules"),
    )


def transformer_row(prefix: str) -> Row:
    """All other keys of TransformerConfig, by their own names; `prefix` without its dot."""
    text = "verbatim; what the spec or config.json says already is left out"
    return verbatim(prefix, "trainer.transformerConfig", TRANSFORMER_CONFIG, text)


@dataclass(frozen=True)
class RoleLayout:
    """Sizes as they are given, of one role."""

    tensor: int
    pipeline: int
    context: int
    expert: int = 1

    @staticmethod
    def of(settings: Settings, prefix: str) -> "RoleLayout":
        return RoleLayout(*(size(settings, f"{prefix}{key}") for key in [*SIZES][:4]))

    @property
    def copy(self) -> int:
        """Ranks that hold one copy of the model."""
        return self.tensor * self.pipeline * self.context

    @property
    def alignment(self) -> int:
        """Tokens of a sequence are rounded up to a multiple of this."""
        return self.tensor * (2 * self.context if self.context > 1 else 1)

    def aligned(self, tokens: int) -> int:
        return -(-tokens // self.alignment) * self.alignment


def size(settings: Settings, key: str) -> int:
    return settings.integer(key) if settings[key] is not None else 1


def virtual_pipeline(settings: Settings, prefix: str) -> Iterator[Said]:
    key = f"{prefix}virtual_pipeline_model_parallel_size"
    if key in settings and size(settings, key) > 1:
        if size(settings, f"{prefix}pipeline_model_parallel_size") > 1:
            yield settings.field(f"{PARALLELISM}.virtualPipeline", settings.integer(key), key)
        else:
            yield settings.changed(key, "dropped: there is one stage, so nothing is interleaved")


def other_layout(settings: Settings, prefix: str, own: str, who: str) -> Iterator[Said]:
    """Sizes of a role that has to have the trainer's. `own`: the prefix of the trainer's."""
    for key in (*SIZES, "virtual_pipeline_model_parallel_size"):
        there, here = settings[f"{prefix}{key}"], settings[f"{own}{key}"]
        if f"{prefix}{key}" in settings and there != here and {there, here} != {None, 1}:
            yield settings.changed(f"{prefix}{key}", f"{who} runs in the trainer's layout, where it is {show(here)}")


def recompute(settings: Settings, prefix: str) -> Iterator[Said]:
    """`full` alone means uniform pieces of one layer; `moe_layer_recompute` is the module `moe`."""
    granularity, method, layers, modules = (f"{prefix}{key}" for key in RECOMPUTE)
    kind = settings[granularity]
    if kind not in (None, "none", "full", "selective"):
        yield settings.lacking(granularity, "recomputation is none, selective or full")
    elif kind == "full":
        yield settings.field("trainer.recompute.granularity", "full", granularity)
        if method in settings:
            yield settings.field("trainer.recompute.method", settings[method], method)
        if layers in settings:
            yield settings.field("trainer.recompute.layers", settings.integer(layers), layers)
    elif kind == "selective":
        yield settings.field("trainer.recompute.granularity", "selective", granularity)
        if modules in settings:
            given = settings[modules]
            names = given if isinstance(given, list) else [part.strip() for part in str(given).split(",")]
            yield settings.field("trainer.recompute.modules", names, modules)
    if kind != "full":
        yield from (
            settings.implied(k, "not read without recompute_granularity: full")
            for k in (method, layers)
            if k in settings
        )


def transformer_config(settings: Settings, prefix: str) -> Iterator[Said]:
    """Keys that nobody else reads, by megatron-core's names."""
    given = {key: g for key, g in settings.below(prefix).items() if g.value is not None}
    dropped = [*_without_weight({key: g.value for key, g in given.items()})]
    for key, g in given.items():
        if key == "moe_layer_recompute" and g.value:
            yield from _recomputed_experts(settings, prefix, g)
        elif key in OWNED_TRANSFORMER_CONFIG:
            yield g.note(Outcome.IMPLIED, f"set by {OWNED_TRANSFORMER_CONFIG[key]}")
        elif key in dropped:
            yield g.note(Outcome.IMPLIED, "a balancing loss without a weight is none")
        elif key == "moe_token_dispatcher_type" and g.value == "allgather":
            yield g.note(Outcome.CHANGED, "alltoall in its place: packed sequences differ in length")
        elif key == "moe_token_dispatcher_type" and g.value == "alltoall":
            yield g.note(Outcome.IMPLIED, "is the default")
        else:
            yield g.field(f"trainer.transformerConfig.{key}", g.value)
    if given.keys() & {"moe_aux_loss_coeff"} - {*dropped} and "moe_router_load_balancing_type" not in given:
        source = f"megatron-core's default beside {given['moe_aux_loss_coeff'].name}"
        yield Field("trainer.transformerConfig.moe_router_load_balancing_type", "aux_loss", source)


def _without_weight(given: dict[str, Any]) -> Iterator[str]:
    """A balancing loss needs both its type and a coefficient."""
    kind = given.get("moe_router_load_balancing_type", "aux_loss")
    if not given.get("moe_aux_loss_coeff"):
        yield from ("moe_aux_loss_coeff", *(("moe_router_load_balancing_type",) if kind != "none" else ()))
    elif kind == "none":
        yield "moe_aux_loss_coeff"


def _recomputed_experts(settings: Settings, prefix: str, given: Given) -> Iterator[Said]:
    granularity = f"{prefix}.recompute_granularity" if prefix else "recompute_granularity"
    if settings[granularity] == "full":
        yield given.note(Outcome.IMPLIED, "recompute_granularity: full recomputes whole layers")
    else:
        yield given.field("trainer.recompute.granularity", "selective")
        yield given.field("trainer.recompute.modules", ["moe"])
