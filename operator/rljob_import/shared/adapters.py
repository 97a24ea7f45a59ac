"""Low-rank adapters, whose matrices other systems call by transformers' names."""

from collections.abc import Iterator

from rljob_api.family import MODULES
from rljob_api.rules.lora import modules_of, parts_of
from rljob_api.spec.model import FUSED_TARGETS
from rljob_import.settings import Settings
from rljob_import.shared import places
from rljob_import.shared.values import items
from rljob_import.table import Row, Said, implied, lacks, read

MATRICES = {target: MODULES[target] for target in FUSED_TARGETS}
"""Those with one A for all that is in them, by our targets."""
ALL = ("all", "all-linear")
SEVERAL = "adapters begin from one directory: merge the others into the model first"
WHERE_PROVEN = (
    "targets stay unset, and mean all that the model's family has adapters for: with experts the attention alone; "
    "`kubectl rljob plan --model` prints them"
)


def adapters(
    settings: Settings, rank: str, alpha: str, targets: str, numbers: tuple[int, int], path: str = ""
) -> Iterator[Said]:
    """The section model.lora, from keys of these names; `numbers`: rank and alpha; `path`: the adapters to begin from; empty: no key."""
    yield settings.field("model.lora.rank", numbers[0], rank)
    yield settings.field("model.lora.alpha", numbers[1], alpha)
    begun = bool(path) and path in settings and settings[path] not in (None, "", [])
    if begun:
        yield from _beginning(settings, path)
    named = {str(name).strip() for one in items(settings[targets]) for name in str(one).split(",")}
    modules = _modules(named)
    partly = modules and any(0 < len(set(parts) & set(modules)) < len(parts) for parts in MATRICES.values())
    if modules and (begun or partly):
        yield settings.field("model.lora.targets", parts_of(modules), targets)
    elif named & set(ALL):
        yield settings.changed(targets, WHERE_PROVEN)
    elif modules:
        ours = [target for target, parts in MATRICES.items() if set(parts) <= set(modules)]
        yield settings.field("model.lora.targets", ours, targets)
    unknown = sorted(named - set(ALL) - set(modules) - set(MATRICES))
    if unknown:
        yield settings.lacking(targets, f"no adapters beside {', '.join(unknown)}")


def _modules(named: set[str]) -> list[str]:
    """transformers' names of what is named, by theirs or by ours."""
    every = modules_of(MATRICES)
    if named & set(ALL):
        return every
    return sorted({m for m in every if m in named} | set(modules_of(named & set(MATRICES))))


def _beginning(settings: Settings, path: str) -> Iterator[Said]:
    given = [str(name).strip() for one in items(settings[path]) for name in str(one).split(",")]
    if len(given) > 1:
        yield settings.lacking(path, SEVERAL)
        return
    yield from places.located(settings, "model.lora.path", path)
    yield settings.changed(path, "rank, alpha and targets of model.lora have to be those of its adapter_config.json")


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
        read(f"{prefix}lora_adapter_path", "model.lora.path"),
        lacks(f"{prefix}lora.adapter_path", "Megatron's checkpoint: name a directory of the peft library"),
        implied(f"{prefix}lora.*"),
    )


def verl_has_adapters(settings: Settings, prefix: str) -> bool:
    return any(settings.integer(f"{prefix}{name}") > 0 for name in ("lora_rank", "lora.rank"))


def verl_adapters(settings: Settings, prefix: str) -> Iterator[Said]:
    """By the keys whose rank is above 0."""
    for names in (("lora_rank", "lora_alpha", "target_modules"), ("lora.rank", "lora.alpha", "lora.target_modules")):
        rank, alpha, targets = (f"{prefix}{name}" for name in names)
        if settings.integer(rank) > 0:
            numbers = settings.integer(rank), settings.integer(alpha)
            yield from adapters(settings, rank, alpha, targets, numbers, f"{prefix}lora_adapter_path")
            return
