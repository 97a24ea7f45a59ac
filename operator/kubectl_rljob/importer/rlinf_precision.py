"""Types of RLinf's parameters: what its model section, FSDP's mixed precision and its rollouts say together."""

from collections.abc import Iterator

from kubectl_rljob.importer.settings import Settings
from kubectl_rljob.importer.table import Said

HALF = ("bf16", "bfloat16", "fp16", "16", "float16")
WHOLE = ("fp32", "32", "float32")
"""How types are written; of the first, from the third on, float16."""


def dtype(settings: Settings) -> Iterator[Said]:
    """With mixed precision, float32 is only what FSDP keeps its shards in: passes and generation have another type."""
    precision, rollout = "actor.model.precision", "rollout.model.precision"
    autocast = settings["actor.fsdp_config.amp_autocast.enabled"]
    mixed = (
        "actor.fsdp_config.mixed_precision.param_dtype",
        *(["actor.fsdp_config.amp_autocast.precision"] if autocast else []),
    )
    passes = next((key for key in mixed if str(settings[key]) in HALF), None)
    whole = str(settings[precision]) in WHOLE
    if str(settings[precision]) in HALF[2:]:
        yield settings.changed(precision, "bfloat16 in its place, without loss scaling")
    elif whole and passes:
        yield settings.field("model.dtype", "bfloat16", passes)
        yield settings.changed(
            precision, f"bfloat16, as {passes} says of the passes; main weights and moments are float32 in any case"
        )
        if str(settings[passes]) in HALF[2:]:
            yield settings.changed(passes, "bfloat16 in its place, without loss scaling")
    elif whole:
        yield settings.field("model.dtype", "float32", precision)
        if rollout in settings and str(settings[rollout]) not in WHOLE:
            yield settings.changed(rollout, "servers have the policy's type, float32")
