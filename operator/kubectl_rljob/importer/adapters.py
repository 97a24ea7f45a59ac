"""Low-rank adapters, whose matrices other systems call by transformers' names."""

from collections.abc import Iterator

from kubectl_rljob.importer.settings import Settings
from kubectl_rljob.importer.table import Row, Said, implied, lacks, read
from kubectl_rljob.importer.values import items

MATRICES = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
}
"""By our targets."""
ALL = ("all", "all-linear")


def adapters(settings: Settings, rank: str, alpha: str, targets: str, numbers: tuple[int, int]) -> Iterator[Said]:
    """The section model.lora, from keys of these names; `numbers`: rank and alpha."""
    yield settings.field("model.lora.rank", numbers[0], rank)
    yield settings.field("model.lora.alpha", numbers[1], alpha)
    named = [str(name).strip() for one in items(settings[targets]) for name in str(one).split(",")]
    if any(name in ALL for name in named):
        return
    found = [ours for ours, theirs in MATRICES.items() if ours in named or set(theirs) & set(named)]
    if found:
        yield settings.field("model.lora.targets", found, targets)
    known = {name for ours in found for name in (ours, *MATRICES[ours])}
    if unknown := sorted(set(named) - known):
        yield settings.lacking(targets, f"no adapters beside {', '.join(unknown)}")
    if partly := [ours for ours in found if ours not in named and not set(MATRICES[ours]) <= set(named)]:
        beside = ", ".join(name for ours in partly for name in MATRICES[ours])
        yield settings.changed(targets, f"one matrix of Megatron's: adapters beside {beside}")


def verl_rows(prefix: str) -> tuple[Row, ...]:
    """verl has one set of keys for FSDP and one, below `lora`, for Megatron."""
    return (
        read(f"{prefix}lora_rank", "model.lora.rank", 0),
        read(f"{prefix}lora_alpha", "model.lora.alpha", 16),
        read(f"{prefix}target_modules", "model.lora.targets", "all-linear"),
        read(f"{prefix}lora.rank", "model.lora.rank", 0),
        read(f"{prefix}lora.alpha", "model.lora.alpha", 32),
        read(f"{prefix}lora.target_modules", "model.lora.targets", list(MATRICES)),
        lacks(f"{prefix}lora.dropout", "adapters have no dropout", 0, 0.0),
        *(
            lacks(f"{prefix}{key}", "every target has an adapter")
            for key in ("exclude_modules", "lora.exclude_modules")
        ),
        *(
            lacks(f"{prefix}{key}", "merge them into the model first")
            for key in ("lora_adapter_path", "lora.adapter_path")
        ),
        implied(f"{prefix}lora.*"),
    )


def verl_has_adapters(settings: Settings, prefix: str) -> bool:
    return any(settings.integer(f"{prefix}{name}") > 0 for name in ("lora_rank", "lora.rank"))


def verl_adapters(settings: Settings, prefix: str) -> Iterator[Said]:
    """By the keys whose rank is above 0."""
    for names in (("lora_rank", "lora_alpha", "target_modules"), ("lora.rank", "lora.alpha", "lora.target_modules")):
        rank, alpha, targets = (f"{prefix}{name}" for name in names)
        if settings.integer(rank) > 0:
            yield from adapters(settings, rank, alpha, targets, (settings.integer(rank), settings.integer(alpha)))
            return
