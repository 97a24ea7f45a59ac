"""ROLL's algorithm, and its measure on held-out prompts: several keys make one section of ours."""

import math
from collections.abc import Iterator
from typing import Any

from rljob_api.rules.algorithm import WIDEST_SEQUENCE_CLIP
from rljob_api.spec.train import MOST_STALENESS
from rljob_import.settings import Settings
from rljob_import.shared import places
from rljob_import.shared.training import AGGREGATIONS, own, responses
from rljob_import.shared.values import SEQUENCE_CLIP, divisor, items
from rljob_import.systems.roll.rl_rows import REWARD_KEYS, WHOLE
from rljob_import.systems.roll.run import gpus, has_critic, machine, response, response_keys
from rljob_import.table import Field, Note, Outcome, Said

NO_REWARDS = "the policy learns from the teacher alone"
LOOSER = (
    "looser here: ROLL reads only what follows `</think>` or the last blank line, and gives 0 where neither is;"
    " `math` reads the whole response"
)
MASKED = "what is masked gives no gradient, and stays in denominators and whitening"
MATH = ("MathRuleRewardWorker", "math_rule")
JUDGE = "judge it with a python or http reward of your own"
POOL = "a model judges it: a pool in spec.pools, and rewards[].vllm with pool and judge (docs/pools.md)"


def algorithm(settings: Settings) -> Iterator[Said]:
    if not settings["is_pure_opd"]:
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
            yield from places.located(settings, "critic.path", "reward_pretrain")
        yield settings.field("algorithm.gaeLambda", float(settings.number("lambd")), "lambd")
        yield from _discounted(settings)
        for norm in ("norm_mean_type", "norm_std_type"):
            if norm in settings:
                yield settings.lacking(norm, "the critic learns from rewards as they are")
        if settings["value_clip"] is not None:
            yield settings.field("critic.clip", float(settings.number("value_clip")), "value_clip")
        else:
            yield settings.field("critic.clip", 0.0, "value_clip", why="not clipped")
        yield from _always_whitened(settings, "gae")
    elif kind == "grpo" or (kind == "reinforce" and grouped):
        yield settings.field(field, "grpo", key)
        if kind == "reinforce" and settings["norm_std_type"] != "group":
            yield settings.field("algorithm.group.divideByStd", False, "norm_std_type")
            if "norm_std_type" in settings:
                yield settings.changed("norm_std_type", "advantages are divided by no standard deviation of the step")
        if settings.number("gamma") != 1:
            yield settings.lacking("gamma", "grpo takes advantages as their group gives them")
        if settings["whiten_advantages"]:
            yield settings.lacking("whiten_advantages", "grpo takes advantages as their group gives them")
    elif kind == "reinforce":
        yield settings.field(field, "reinforce++", key)
        yield from _always_whitened(settings, "reinforce++")
        yield from _discounted(settings)
    else:
        yield from own(settings, key, "advantage", ("grpo", "reinforce", "gae"))


def _discounted(settings: Settings) -> Iterator[Said]:
    if settings.number("gamma") != 1:
        yield settings.field("algorithm.gamma", float(settings.number("gamma")), "gamma")


def _always_whitened(settings: Settings, ours: str) -> Iterator[Said]:
    if not settings["whiten_advantages"]:
        yield settings.changed("whiten_advantages", f"{ours} whitens advantages over the step")


def distillation(settings: Settings) -> Iterator[Said]:
    """The teacher, which ROLL holds in place of a reference: log teacher - log policy is added to the advantages."""
    keys = [key for key in ("is_pure_opd", "use_opd") if settings[key]]
    if not keys:
        return
    teacher, weight = "reference.model_args.model_name_or_path", "reference.opd_kl_coef"
    if not settings[teacher]:
        yield settings.problem("is missing: it names the teacher", teacher)
        return
    yield from places.located(settings, "reference.path", teacher)
    yield Field("reference.offload", False, "a teacher need not have the policy's shapes")
    yield settings.field("algorithm.distillation.reference", True, keys[0])
    yield settings.field("algorithm.distillation.coefficient", float(settings.number(weight)), weight)
    if settings["whiten_advantages"]:
        yield settings.lacking("whiten_advantages", "the teacher's part of an advantage is taken as it is")
    if settings["kl_penalty"] != "kl":
        yield settings.changed("kl_penalty", "kl in its place: the reward of a token is log teacher - log policy")


def bounds(settings: Settings) -> Iterator[Said]:
    """Of rewards and advantages, and of the prompts' difficulty. ROLL bounds rewards after it has normalised them: by group they are advantages."""
    if settings["is_pure_opd"]:
        yield from (settings.implied(key, NO_REWARDS) for key in ("reward_clip", "difficulty_mask") if settings[key])
    rewarded = () if settings["is_pure_opd"] else ("reward_clip",)
    given = {key: abs(settings.number(key)) for key in (*rewarded, "advantage_clip") if settings[key]}
    by_group = settings["adv_estimator"] == "grpo" or settings["norm_mean_type"] == "group"
    if "reward_clip" in given and not by_group:
        yield settings.field("algorithm.rewardClip", float(given.pop("reward_clip")), "reward_clip")
    if given:
        yield settings.field("algorithm.advantageClip", float(min(given.values())), *given)
    if settings["max_len_mask"]:
        yield settings.changed("max_len_mask", MASKED)
    if settings["is_pure_opd"] or not settings["difficulty_mask"]:
        return
    if settings.integer("num_return_sequences_in_group") < 2:
        yield settings.implied("difficulty_mask", "masks nothing with one response to a prompt")
    else:
        yield settings.changed("difficulty_mask", MASKED)
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
    yield settings.field("evaluation.sampling.maxTokens", response(settings), *response_keys(settings))


def distribution(settings: Settings) -> Iterator[Said]:
    """What ROLL samples from, by default too: top_p is 0.7 and top_k 50 where the file does not say otherwise."""
    for name, whole in (("top_p", (1,)), ("top_k", (0, -1))):
        key = f"actor_infer.generating_args.{name}"
        if settings[key] not in (None, *whole):
            yield settings.lacking(key, WHOLE if key in settings else f"by default; {WHOLE}")


def rollouts(settings: Settings) -> Iterator[Said]:
    train, infer = gpus(settings, "actor_train.device_mapping"), gpus(settings, "actor_infer.device_mapping")
    name = "actor_infer.strategy_args.strategy_name"
    if settings[name] != "vllm":
        yield settings.changed(name, "vLLM generates")
    size_key = "actor_infer.strategy_args.strategy_config.tensor_parallel_size"
    key = size_key if size_key in settings else "actor_infer.num_gpus_per_worker"
    wanted, per_node = settings.integer(key) if settings[key] is not None else 1, machine(settings)[1]
    if infer and not {*train} & {*infer}:
        yield settings.field("rollout.placement", "separate", "actor_infer.device_mapping")
        yield settings.field("rollout.replicas", max(1, len(infer) // wanted), "actor_infer.device_mapping", key)
        yield settings.field("rollout.tensorParallel", wanted, key)
        return
    yield settings.field("rollout.placement", "colocated", "actor_infer.device_mapping")
    yield settings.field("rollout.tensorParallel", divisor(per_node, min(wanted, per_node)), key)
    if {*infer} != {*train}:
        yield settings.changed("actor_infer.device_mapping", "rollouts are on all of the trainer's GPUs, and no others")


def offload(settings: Settings) -> Iterator[Said]:
    """Training states leave the GPUs that generate as well."""
    key, per_step = "actor_train.is_offload_states", "actor_train.is_offload_optimizer_states_in_train_step"
    together = {*gpus(settings, "actor_train.device_mapping")} & {*gpus(settings, "actor_infer.device_mapping")}
    moved = bool(together) and bool(settings[key])
    for section in ("trainer", *(("critic",) if has_critic(settings) else ())):
        for part in ("parameters", "gradients", "optimizer"):
            if moved:
                yield settings.field(f"{section}.offload.{part}", True, key)
    if settings[per_step] and not moved:
        yield settings.field("trainer.offload.optimizer", True, per_step)


def asynchrony(settings: Settings) -> Iterator[Said]:
    ratio, weight = "async_generation_ratio", "train_infer_correction.is_weight."
    ahead = settings.number(ratio)
    if ahead > MOST_STALENESS:
        yield settings.lacking(
            ratio, f"samples are at most {MOST_STALENESS} updates old: {MOST_STALENESS} in its place"
        )
    separate = not {*gpus(settings, "actor_train.device_mapping")} & {*gpus(settings, "actor_infer.device_mapping")}
    if ahead and separate:
        yield settings.field("train.staleness", min(math.ceil(ahead), MOST_STALENESS), ratio)
    elif ahead:
        yield settings.lacking(ratio, "colocated rollouts sleep while the policy is trained")
    kind = settings[f"{weight}weight_type"] if settings[f"{weight}enabled"] else None
    if kind in ("token", "sequence"):
        yield settings.field("algorithm.rolloutCorrection.importanceSampling", kind, f"{weight}weight_type")
        bound = f"{weight}upper_bound"
        yield settings.field("algorithm.rolloutCorrection.cap", float(settings.number(bound)), bound)
        if settings[bound] is None:
            yield settings.lacking(bound, f"weights have a bound: {settings.number(bound):g} in its place")
    elif ahead and separate:
        yield settings.field(
            "algorithm.rolloutCorrection.importanceSampling",
            "token",
            ratio,
            why="samples of an older policy are weighted",
        )
    if kind not in (None, "token", "sequence"):
        yield settings.lacking(f"{weight}weight_type", "weights are of tokens or sequences")


def _by_hand(name: str) -> str:
    return POOL if "judge" in name else f"no rule of an RLJob scores it: {JUDGE}"


def prompts(settings: Settings) -> Iterator[Said]:
    """Columns of ROLL's files."""
    d = "actor_train.data_args."
    key = f"{d}prompt" if f"{d}prompt" in settings and f"{d}messages" not in settings else f"{d}messages"
    yield settings.field("data.promptKey", settings[key], key)
    answer = settings[f"{d}response"] or "ground_truth"
    yield Field("data.answerKey", answer, "ROLL's column of the answer")
    yield settings.field("data.dataSourceKey", settings[f"{d}tag"], f"{d}tag")


def rewards(settings: Settings) -> Iterator[Said]:
    """One entry for each tag that a rule of ours scores."""
    if settings["is_pure_opd"]:
        yield Note(Outcome.IMPLIED, "rewards", NO_REWARDS)
        return
    entries: list[dict[str, Any]] = []
    given = settings.below("rewards")
    names = dict.fromkeys(key.split(".")[0] for key in given)
    for name in names:
        worker, tags = (settings.given.get(f"rewards.{name}.{key}") for key in ("worker_cls", "tag_included"))
        if name in MATH or (worker and str(worker.value).endswith(MATH[0])):
            entries += [{"dataSource": str(tag), "rule": "math"} for tag in (items(tags.value) if tags else ["*"])]
            yield Note(Outcome.CHANGED, f"rewards.{name}", LOOSER)
        else:
            yield Note(Outcome.LACKING, f"rewards.{name}", _by_hand(name))
        for key in (k for k in given if k.startswith(f"{name}.") and not k.endswith(REWARD_KEYS)):
            yield given[key].note(Outcome.IMPLIED, "of ROLL's own workers")
    if not entries:
        entries.append({"rule": "math"})
        yield Note(Outcome.CHANGED, "rewards", f"math in their place; {JUDGE}")
    read = tuple(one.name for key, one in given.items() if key.endswith(REWARD_KEYS))
    yield Field("rewards", entries, ", ".join(read), read)
