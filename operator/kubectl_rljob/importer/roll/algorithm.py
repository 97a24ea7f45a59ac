"""ROLL's algorithm, and its measure on held-out prompts: several keys make one section of ours."""

from collections.abc import Iterator

from kubectl_rljob.importer import places
from kubectl_rljob.importer.formulas import own
from kubectl_rljob.importer.held_out import responses
from kubectl_rljob.importer.roll.batches import response
from kubectl_rljob.importer.settings import Settings
from kubectl_rljob.importer.table import Field, Said
from kubectl_rljob.importer.values import SEQUENCE_CLIP
from rljob_api.validation.algorithm import WIDEST_SEQUENCE_CLIP

AGGREGATIONS = {
    "token-mean": "tokenMean",
    "seq-mean-token-mean": "sequenceMeanTokenMean",
    "seq-mean-token-sum": "sequenceMeanTokenSum",
    "seq-mean-token-sum-norm": "sequenceMeanTokenSumNorm",
}


def algorithm(settings: Settings) -> Iterator[Said]:
    yield from advantage(settings)
    yield from bounds(settings)
    yield from clip(settings)
    yield from kl(settings)
    aggregation = settings["loss_agg_mode"]
    if settings["pg_variant"] not in (None, "vanilla", "ppo"):
        yield from own(settings, "pg_variant", "loss", ("vanilla", "ppo"))
    elif settings["importance_sampling"] in ("seq", "sequence"):
        yield settings.field("algorithm.loss", "gspo", "importance_sampling")
        aggregation = "seq-mean-token-mean"
    if aggregation not in AGGREGATIONS:
        yield settings.lacking(
            "loss_agg_mode", f"the aggregations are {', '.join(AGGREGATIONS)}; seq-mean-token-mean in its place"
        )
    yield settings.field(
        "algorithm.aggregation", AGGREGATIONS.get(aggregation, "sequenceMeanTokenMean"), "loss_agg_mode"
    )
    yield from evaluation(settings)


def advantage(settings: Settings) -> Iterator[Said]:
    key, field = "adv_estimator", "algorithm.advantage"
    kind, grouped = settings[key], settings["norm_mean_type"] == "group"
    if kind == "gae":
        yield settings.field(field, "gae", key)
        yield settings.field("critic", {}, key)
        if "reward_pretrain" in settings and settings["reward_pretrain"] != settings["pretrain"]:
            yield from places.found(settings, "critic.path", "reward_pretrain")
        yield settings.field("algorithm.gaeLambda", float(settings.number("lambd")), "lambd")
        if settings["value_clip"] is not None:
            yield settings.field("critic.clip", float(settings.number("value_clip")), "value_clip")
        else:
            yield settings.field("critic.clip", 0.0, "value_clip", why="not clipped")
    elif kind == "grpo" or (kind == "reinforce" and grouped):
        yield settings.field(field, "grpo", key)
        if kind == "reinforce" and settings["norm_std_type"] != "group":
            yield settings.field("algorithm.group.divideByStd", False, "norm_std_type")
    elif kind == "reinforce":
        yield settings.field(field, "reinforce++", key)
        if not settings["whiten_advantages"]:
            yield settings.changed("whiten_advantages", "reinforce++ whitens advantages over the step")
        if settings.number("gamma") != 1:
            yield settings.field("algorithm.gamma", float(settings.number("gamma")), "gamma")
    else:
        yield from own(settings, key, "advantage", ("grpo", "reinforce", "gae"))


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


def clip(settings: Settings) -> Iterator[Said]:
    ranged = settings["use_pg_clip_range"]
    if settings["importance_sampling"] in ("seq", "sequence") and settings.number("pg_clip") > WIDEST_SEQUENCE_CLIP:
        yield settings.changed("pg_clip", f"{SEQUENCE_CLIP}: the ratio of a whole response hardly leaves 1")
        yield Field("algorithm.clip", SEQUENCE_CLIP, "gspo's paper")
        return
    for side in ("low", "high"):
        key = f"pg_clip_{side}" if ranged else "pg_clip"
        yield settings.field(f"algorithm.clip.{side}", float(settings.number(key)), key)
    if settings["dual_clip_loss"] and settings["importance_sampling"] == "token":
        yield settings.field("algorithm.clip.dual", 1 + 2 * settings.number("pg_clip"), "dual_clip_loss", "pg_clip")


def kl(settings: Settings) -> Iterator[Said]:
    if settings["use_kl_loss"] and settings.number("kl_loss_coef"):
        yield settings.field("algorithm.kl.coefficient", float(settings.number("kl_loss_coef")), "kl_loss_coef")
        yield Field("algorithm.kl.estimator", "k3", "ROLL's loss is k3")
        if settings["add_token_level_kl"]:
            yield settings.lacking("add_token_level_kl", "one penalty at a time: that of the loss is kept")
    elif settings["add_token_level_kl"]:
        estimator = {"kl": "k1", "mse": "k2"}.get(settings["kl_penalty"])
        if not estimator:
            yield settings.lacking("kl_penalty", "the estimators are kl and mse; kl in its place")
        yield settings.field("algorithm.kl.coefficient", float(settings.number("init_kl_coef")), "init_kl_coef")
        yield settings.field("algorithm.kl.where", "reward", "add_token_level_kl")
        yield settings.field("algorithm.kl.estimator", estimator or "k1", "kl_penalty")
        if "target_kl" in settings:
            yield settings.field("algorithm.kl.adaptive.target", settings.number("target_kl"), "target_kl")
            yield settings.field("algorithm.kl.adaptive.horizon", settings.integer("kl_horizon"), "kl_horizon")
    elif "init_kl_coef" in settings:
        yield settings.implied("init_kl_coef", "read with add_token_level_kl only")


def evaluation(settings: Settings) -> Iterator[Said]:
    """How held-out prompts are answered."""
    if not settings["validation.data_args.file_name"]:
        return
    args = "validation.generating_args."
    key, narrow = f"{args}temperature", [f"{args}{name}" for name in ("top_p", "top_k", "num_return_sequences")]
    yield settings.field("evaluation.sampling.temperature", float(settings.number(key)), key)
    yield from responses(settings, bool(settings.number(key)), *narrow)
    yield settings.field("evaluation.sampling.maxTokens", response(settings), "response_length")
