"""ROLL's bounds of rewards, advantages and difficulty."""

from collections.abc import Iterator

from kubectl_rljob.importer.settings import Settings
from kubectl_rljob.importer.table import Said


def bounds(settings: Settings) -> Iterator[Said]:
    """Of rewards and advantages, and of the prompts' difficulty. ROLL bounds rewards after it has normalised them: by group they are advantages."""
    given = {key: abs(settings.number(key)) for key in ("reward_clip", "advantage_clip") if settings[key]}
    by_group = settings["adv_estimator"] == "grpo" or settings["norm_mean_type"] == "group"
    if "reward_clip" in given and not by_group:
        yield settings.field("algorithm.rewardClip", float(given.pop("reward_clip")), "reward_clip")
    if given:
        yield settings.field("algorithm.advantageClip", float(min(given.values())), *given)
    if settings["difficulty_mask"] and settings.integer("num_return_sequences_in_group") < 2:
        yield settings.implied("difficulty_mask", "masks nothing with one response to a prompt")
    elif settings["difficulty_mask"]:
        yield settings.changed(
            "difficulty_mask", "what is masked gives no gradient, and stays in denominators and whitening"
        )
        for side in ("low", "high"):
            key = f"difficulty_{side}_threshold"
            yield settings.field(f"algorithm.difficulty.{side}", float(settings.number(key)), key)
