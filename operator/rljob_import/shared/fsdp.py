"""FSDP and DeepSpeed, with which the other systems train as well: what their settings mean for Megatron, which trains an RLJob."""

from collections.abc import Iterator
from dataclasses import replace

from rljob_import.settings import Settings
from rljob_import.shared.megatron import PARALLELISM, RoleLayout
from rljob_import.table import Note, Row, Said, read

CHOOSE = (
    "the trainer is Megatron: choose trainer.parallelism (`kubectl rljob plan --suggest` shows layouts that fit);"
    " algorithm, data and batches are taken over"
)


def checkpointing_row(key: str, default: bool) -> Row:
    """Gradient checkpointing, or what switches it off."""
    return read(
        key, "trainer.recompute.granularity", default, text="of FSDP and DeepSpeed: full; Megatron has its own keys"
    )


def ulysses_row(key: str, *also: str) -> Row:
    text = "of FSDP: as many context-parallel ranks, and as many token budgets"
    return read(key, f"{PARALLELISM}.context", 1, also, text)


def other_trainer(settings: Settings, key: str) -> Note:
    """`key` says, or has by default, that it is not Megatron that trains."""
    return settings.changed(key, CHOOSE if key in settings else f"by default; {CHOOSE}")


def checkpointed(settings: Settings, key: str, on: bool, prefix: str) -> Iterator[Said]:
    """Whole layers are computed again, unless Megatron's own keys below `prefix` say what is."""
    if on and settings[f"{prefix}recompute_granularity"] is None:
        yield settings.field("trainer.recompute.granularity", "full", key, why="whole layers are computed again")


def shared_sequences(settings: Settings, key: str) -> Iterator[Said]:
    """Ulysses cuts each sequence over ranks, as context parallelism does."""
    if settings.integer(key) > 1:
        yield settings.field(
            f"{PARALLELISM}.context", settings.integer(key), key, why="context parallelism in its place"
        )


def with_ulysses(settings: Settings, layout: RoleLayout, key: str) -> RoleLayout:
    return replace(layout, context=max(layout.context, settings.integer(key)))


def freed_gradients(settings: Settings, key: str, section: str) -> Iterator[Said]:
    """With its parameters, FSDP has no gradients on the GPU between steps; Megatron keeps their buffers unless it is told."""
    if settings[key]:
        why = "FSDP holds no gradients between steps"
        yield settings.field(f"{section}.offload.gradients", True, key, why=why)


def other_sequences(settings: Settings, key: str, own: int, who: str) -> Iterator[Said]:
    """Another role's Ulysses, where it is not `own`, the policy's."""
    if key in settings and settings.integer(key) != own:
        text = (
            f"the {who} runs in the trainer's layout, with {PARALLELISM}.context = {own}: this changes memory and time"
        )
        yield settings.changed(key, text)
