"""Ranks of ROLL's roles, and how they are laid out."""

from collections.abc import Iterator

from rljob_import.arithmetic import devices
from rljob_import.megatron import other_layout, recompute, transformer_config, virtual_pipeline
from rljob_import.settings import NotANumber, Settings
from rljob_import.table import Field, Said


def role(settings: Settings) -> str:
    """The prefix of the role that learns."""
    return "sft_train." if "sft_train.training_args.learning_rate" in settings.system_keys else "actor_train."


def config(settings: Settings) -> str:
    return f"{role(settings)}strategy_args.strategy_config."


def gpus(settings: Settings, key: str) -> list[int]:
    """The numbers of a device_mapping. Raises NotANumber."""
    value = settings[key]
    found = value if isinstance(value, list) else devices(str(value)) if value is not None else []
    if found is None:
        raise NotANumber(key, value)
    return found


def machine(settings: Settings) -> tuple[int, int]:
    """Nodes, and ranks of each."""
    options, ranks = settings.options, len(gpus(settings, f"{role(settings)}device_mapping"))
    per_node = options.gpus_per_node or min(settings.integer("num_gpus_per_node"), ranks or 1)
    return options.nodes or max(1, ranks // per_node), per_node


def layout(settings: Settings) -> Iterator[Said]:
    c = config(settings)
    nodes, ranks = machine(settings)
    flags = settings.options.nodes or settings.options.gpus_per_node
    key = f"{role(settings)}device_mapping"
    for field, value in (("trainer.nodes", nodes), ("trainer.processesPerNode", ranks)):
        yield (
            Field(field, value, "--nodes, --gpus-per-node")
            if flags
            else settings.field(field, value, key, "num_gpus_per_node")
        )
    yield from virtual_pipeline(settings, c)
    yield from recompute(settings, c)
    yield from transformer_config(settings, c.removesuffix("."))
    for extra in ("moe_permute_fusion",):
        if f"{c}additional_configs.{extra}" in settings:
            yield settings.field(
                f"trainer.transformerConfig.{extra}",
                settings[f"{c}additional_configs.{extra}"],
                f"{c}additional_configs.{extra}",
            )
    strategy = f"{role(settings)}strategy_args.strategy_name"
    if settings[strategy] != "megatron_train":
        yield settings.changed(
            strategy, "the trainer is Megatron: choose trainer.parallelism; data and batches are taken over"
        )


def other_roles(settings: Settings) -> Iterator[Said]:
    yield from other_layout(settings, "reference.strategy_args.strategy_config.", config(settings), "the reference")
