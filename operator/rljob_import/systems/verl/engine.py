"""Which of verl's engines trains, and what the settings of FSDP mean for Megatron."""

import re
from collections.abc import Iterator

from rljob_import.settings import Settings
from rljob_import.shared.bases import CONFIG_NAME, foreign_bases
from rljob_import.shared.fsdp import (
    checkpointed,
    freed_gradients,
    other_sequences,
    other_trainer,
    shared_sequences,
    with_ulysses,
)
from rljob_import.shared.megatron import RoleLayout
from rljob_import.systems.verl.rows import ACTOR, MODEL, REF, STRATEGY, ULYSSES
from rljob_import.table import Said

M = f"{ACTOR}megatron."
OVERRIDE = f"{M}override_transformer_config"
ENGINES = (STRATEGY, "model_engine")


OWN_BASES = re.compile(
    r"(_generated_)?((one_step_off|fully_async|dapo)_)?(ppo_)?(megatron_|veomni_)?trainer|sft_trainer(_engine)?"
    r"|(.*/)?(dp|fsdp2?|megatron|veomni|torchtitan|deepspeed|legacy|hf)(_(actor|ref|critic|reward_model|data|model))?"
    r"|(.*/)?(actor|ref|critic|rollout|reward_model|reward_manager|reward|rollout_correction|profiler)"
)
"""verl's files of defaults. Those of its examples with tools are none of them: they set what runs."""
bases = foreign_bases(OWN_BASES)


def on_megatron(settings: Settings) -> bool:
    """By what the file says, else by its keys: verl's configuration for FSDP has none of Megatron's, and is the default."""
    named = next((settings[key] for key in ENGINES if key in settings), None)
    if named is not None:
        return bool(named == "megatron")
    bases = f"{settings[CONFIG_NAME]} {settings['defaults']} {settings['actor@actor_rollout_ref.actor']}"
    return "megatron" in bases or any(given.name.startswith((M, "system.")) for given in settings.given.values())


def engine(settings: Settings) -> Iterator[Said]:
    if not on_megatron(settings):
        yield other_trainer(settings, next((key for key in ENGINES if key in settings), STRATEGY))
        key = f"{MODEL}enable_gradient_checkpointing"
        yield from checkpointed(settings, key, bool(settings[key]), f"{OVERRIDE}.")
        yield from shared_sequences(settings, ULYSSES)
        yield from freed_gradients(settings, f"{M}param_offload", "trainer")
        yield from freed_gradients(settings, "critic.megatron.param_offload", "critic")
        own = max(1, settings.integer(ULYSSES))
        for key, who in (
            (f"{REF}ulysses_sequence_parallel_size", "reference"),
            ("critic.ulysses_sequence_parallel_size", "critic"),
        ):
            yield from other_sequences(settings, key, own, who)


def policy_layout(settings: Settings) -> RoleLayout:
    sizes = RoleLayout.of(settings, M)
    return sizes if on_megatron(settings) else with_ulysses(settings, sizes, ULYSSES)
