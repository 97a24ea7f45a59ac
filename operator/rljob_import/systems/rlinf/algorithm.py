"""RLinf's algorithm: several keys make one section of ours."""

from collections.abc import Iterator

from rljob_import.settings import Settings
from rljob_import.shared.training import AGGREGATIONS, ESTIMATORS, kl_estimator, own
from rljob_import.systems.rlinf.schedule import on_megatron
from rljob_import.table import Field, Said

LOSSES = ("actor", "actor_critic", "ppo")
"""All of them PPO's."""
ADVANTAGES = {"grpo": "grpo", "gae": "gae", "reinpp": "reinforce++", "rloo": "rloo"}


def algorithm(settings: Settings) -> Iterator[Said]:
    key = "algorithm.adv_type"
    ours = ADVANTAGES.get(settings[key])
    if ours is None:
        yield from own(settings, key, "advantage", ADVANTAGES)
    if ours == "reinforce++" and settings["algorithm.use_reinpp_baseline"]:
        ours = "reinforce++-baseline"
    if ours is not None:
        yield settings.field("algorithm.advantage", ours, key)
    yield from whitened(settings, ours)
    if ours == "gae":
        yield settings.field("critic", {}, key)
        yield settings.field(
            "algorithm.gaeLambda", float(settings.number("algorithm.gae_lambda")), "algorithm.gae_lambda"
        )
    if ours in ("gae", "reinforce++") and settings.number("algorithm.gamma") != 1:
        yield settings.field("algorithm.gamma", float(settings.number("algorithm.gamma")), "algorithm.gamma")
    if settings["algorithm.loss_type"] not in LOSSES:
        yield from own(settings, "algorithm.loss_type", "loss", LOSSES)
    for side in ("low", "high"):
        name = f"algorithm.clip_ratio_{side}"
        name = name if name in settings else "algorithm.ratio_clip_eps"
        yield settings.field(f"algorithm.clip.{side}", float(settings.number(name)), name)
    yield from dual(settings)
    aggregation = "algorithm.loss_agg_func"
    if settings[aggregation] not in AGGREGATIONS:
        yield settings.lacking(aggregation, f"the aggregations are {', '.join(AGGREGATIONS)}; token-mean in its place")
    yield settings.field("algorithm.aggregation", AGGREGATIONS.get(settings[aggregation], "tokenMean"), aggregation)
    yield from kl(settings)
    yield from kl_in_reward(settings)
    yield from correction(settings)


def whitened(settings: Settings, ours: str | None) -> Iterator[Said]:
    """RLinf whitens over the step what its estimators make: those of grpo have been divided by their group's deviation before."""
    key, always = "algorithm.normalize_advantages", ours in ("gae", "reinforce++", "reinforce++-baseline")
    if settings[key] and not always:
        yield settings.changed(key, f"{ours or 'the function'} takes advantages as they are, and is not whitened")
    elif always and not settings[key]:
        yield settings.changed(key, f"{ours} whitens advantages over the step")


def dual(settings: Settings) -> Iterator[Said]:
    key, field = "algorithm.clip_ratio_c", "algorithm.clip.dual"
    if key in settings:
        yield settings.field(field, float(settings.number(key)), key)
    elif key not in settings.given and not on_megatron(settings):
        yield Field(field, 3.0, f"default of {key} with FSDP", assumed=True)


def kl(settings: Settings) -> Iterator[Said]:
    if settings.number("algorithm.kl_beta"):
        yield settings.field(
            "algorithm.kl.coefficient", float(settings.number("algorithm.kl_beta")), "algorithm.kl_beta"
        )
        yield from kl_estimator(settings, "algorithm.kl_penalty_type", "k2 and k3", in_loss=True)


def kl_in_reward(settings: Settings) -> Iterator[Said]:
    """REINFORCE++ takes its penalty from the rewards."""
    key, kind = "algorithm.reinpp_kl_beta", "algorithm.kl_penalty_type"
    if not settings.number(key):
        return
    if settings["algorithm.adv_type"] != "reinpp":
        yield settings.implied(key, "read with adv_type reinpp only")
    elif settings.number("algorithm.kl_beta"):
        yield settings.lacking(key, "one penalty at a time: that of the loss is kept")
    else:
        yield settings.field("algorithm.kl.coefficient", float(settings.number(key)), key)
        yield settings.field("algorithm.kl.where", "reward", key)
        yield settings.field("algorithm.kl.estimator", ESTIMATORS.get(settings[kind], "k1"), kind)


def correction(settings: Settings) -> Iterator[Said]:
    fix, target = "algorithm.importance_sampling_fix", "algorithm.rolloutCorrection"
    if not settings["algorithm.recompute_logprobs"]:
        yield settings.field(f"{target}.bypass", True, "algorithm.recompute_logprobs")
    elif settings[fix]:
        cap = "algorithm.importance_sampling_clip"
        yield settings.field(f"{target}.importanceSampling", "token", fix)
        yield settings.field(f"{target}.cap", float(settings.number(cap)), cap)
    rounds = "algorithm.max_num_gen_batches"
    if settings.integer(rounds) > 1:
        yield settings.field("algorithm.dynamicSampling.maxRounds", settings.integer(rounds), rounds)
