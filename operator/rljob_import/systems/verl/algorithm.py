"""verl's algorithm: several keys make one section of ours."""

from collections.abc import Iterator
from math import prod
from typing import Any

from rljob_api.spec.run import MOST_CHECKPOINTS
from rljob_import.settings import Settings
from rljob_import.shared import places
from rljob_import.shared.training import AGGREGATIONS, kl_estimator, own
from rljob_import.shared.values import items, place
from rljob_import.systems.verl.distillation import TAUGHT, alone
from rljob_import.systems.verl.rows import ACTOR
from rljob_import.table import Field, Note, Outcome, Said

ADVANTAGES = {
    "grpo": "grpo",
    "grpo_vectorized": "grpo",
    "gae": "gae",
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
    "remax": "remax",
    "reinforce_plus_plus": "reinforce++",
    "reinforce_plus_plus_baseline": "reinforce++-baseline",
    "opo": "opo",
}
LOSSES = {"vanilla": "ppo", "gspo": "gspo", "cispo": "cispo"}
MOST_ROUNDS = MOST_CHECKPOINTS
REJECTIONS = {"token_k1": "token", "seq_mean_k1": "sequence", "token": "token", "geometric": "sequence"}
OVERLONG_BUFFER = "reward.reward_kwargs.overlong_buffer_cfg"
FUNCTION, REWARD_MODEL = "reward.custom_reward_function", "reward.reward_model"
MANAGER = "reward.reward_manager.name"
KWARGS = ("reward.custom_reward_function.reward_kwargs", "custom_reward_function.reward_kwargs")
BY_SOURCE = {
    "openai/gsm8k": "looser here: verl gives 0 to a response without `#### N`; `number` takes its last number, so that the format is not learnt",
    "MATH": "looser here: verl gives 0 to an answer outside of \\boxed{}, and compares texts; `math` finds others, and compares values",
    "math_dapo": "`math` gives 0 and 1, verl -1 and 1; and verl reads the last 300 characters only: `Answer: ...`, else a box",
    "other sources": "`math`; verl has rules of its own for code, geometry and search. To keep a rule of verl's, write it as rewards[].python",
}
"""How verl's rules differ from ours."""
HANDED_ON = ("NCCL_", "VLLM_", "TORCH_", "WANDB_", "HF_")
OWN_VARIABLES = ("VLLM_USE_V1", "VLLM_ATTENTION_BACKEND", "TORCH_NCCL_AVOID_RECORD_STREAMS")
JUDGE = "a pool with GPUs of its own, whose model's score is the reward; of a model that writes a verdict, set rewards[].vllm.judge (docs/pools.md)"
SERVER = "serve it (vllm serve MODEL --runner pooling) and put the server's address in place of this one"


def advantage(settings: Settings) -> Iterator[Said]:
    key = "algorithm.adv_estimator"
    ours = ADVANTAGES.get(settings[key])
    if ours is None:
        yield from own(settings, key, "advantage", ADVANTAGES)
        return
    yield settings.field("algorithm.advantage", ours, key)
    if ours == "grpo" and settings["algorithm.norm_adv_by_std_in_grpo"] is False:
        yield settings.field("algorithm.group.divideByStd", False, "algorithm.norm_adv_by_std_in_grpo")
    for name, field, readers in (
        ("gamma", "gamma", ("gae", "reinforce++")),
        ("lam", "gaeLambda", ("gae",)),
    ):
        if ours in readers and settings[f"algorithm.{name}"] != 1:
            yield settings.field(f"algorithm.{field}", settings.number(f"algorithm.{name}"), f"algorithm.{name}")


def is_gae(settings: Settings) -> bool:
    return settings["algorithm.adv_estimator"] == "gae"


def loss(settings: Settings) -> Iterator[Said]:
    key = f"{ACTOR}policy_loss.loss_mode"
    ours = LOSSES.get(settings[key])
    if ours is None:
        yield from own(settings, key, "loss", LOSSES)
    else:
        yield settings.field("algorithm.loss", ours, key)
        yield from _clip(settings, ours)
    yield from _aggregation(settings, ours or "python")


def _clip(settings: Settings, ours: str) -> Iterator[Said]:
    both = f"{ACTOR}clip_ratio"
    for side in ("low", "high"):
        key = f"{both}_{side}" if f"{both}_{side}" in settings else both
        yield settings.field(f"algorithm.clip.{side}", settings.number(key), key)
    if both in settings.names(both) and not any(f"{both}_{side}" in settings for side in ("low", "high")):
        text = "holds for both sides here; verl reads clip_ratio_low and clip_ratio_high, which are 0.2 unless they are set"
        yield settings.changed(both, text)
    if ours == "ppo":
        yield settings.field("algorithm.clip.dual", float(settings.number(f"{both}_c")), f"{both}_c")
    elif f"{both}_c" in settings:
        yield settings.implied(f"{both}_c", f"{ours} has no such bound")


def _aggregation(settings: Settings, ours: str) -> Iterator[Said]:
    key, scale = f"{ACTOR}loss_agg_mode", f"{ACTOR}loss_scale_factor"
    aggregation = AGGREGATIONS.get(settings[key])
    if ours == "gspo":
        aggregation = "sequenceMeanTokenMean"
        if settings[key] != "seq-mean-token-mean":
            yield settings.changed(key, "gspo weighs whole responses: sequenceMeanTokenMean")
    elif aggregation is None:
        yield settings.lacking(key, f"the aggregations are {', '.join(AGGREGATIONS)}; token-mean in its place")
    yield settings.field("algorithm.aggregation", aggregation or "tokenMean", key)
    if scale in settings and settings[scale] != settings["data.max_response_length"]:
        yield settings.lacking(scale, "sums are divided by rollout.sampling.maxTokens")


def kl(settings: Settings) -> Iterator[Said]:
    in_loss, in_reward = settings[f"{ACTOR}use_kl_loss"], settings["algorithm.use_kl_in_reward"]
    if in_loss and in_reward:
        yield settings.lacking("algorithm.use_kl_in_reward", "one penalty at a time: that of the loss is kept")
    if in_loss and settings.number(f"{ACTOR}kl_loss_coef"):
        yield from _penalty(settings, "loss", f"{ACTOR}kl_loss_coef", f"{ACTOR}kl_loss_type")
    elif in_reward and not in_loss and settings.number("algorithm.kl_ctrl.kl_coef"):
        yield from _penalty(settings, "reward", "algorithm.kl_ctrl.kl_coef", "algorithm.kl_penalty")
        yield from _adaptive(settings)


def has_reference(settings: Settings) -> bool:
    """Whether a frozen policy is held."""
    if settings[f"{ACTOR}use_kl_loss"]:
        return settings.number(f"{ACTOR}kl_loss_coef") > 0
    return bool(settings["algorithm.use_kl_in_reward"]) and settings.number("algorithm.kl_ctrl.kl_coef") > 0


def _penalty(settings: Settings, where: str, coefficient: str, kind: str) -> Iterator[Said]:
    yield settings.field("algorithm.kl.coefficient", float(settings.number(coefficient)), coefficient)
    if where == "reward":
        yield settings.field("algorithm.kl.where", "reward", "algorithm.use_kl_in_reward")
    yield from kl_estimator(settings, kind, "k1, k2 and k3", in_loss=where == "loss")


def _adaptive(settings: Settings) -> Iterator[Said]:
    if settings["algorithm.kl_ctrl.type"] == "adaptive":
        for key, field in (("target_kl", "target"), ("horizon", "horizon")):
            name = f"algorithm.kl_ctrl.{key}"
            yield settings.field(f"algorithm.kl.adaptive.{field}", settings.number(name), name)


def sampling(settings: Settings) -> Iterator[Said]:
    """Which samples are trained."""
    key = "algorithm.filter_groups"
    if settings[f"{key}.enable"] and alone(settings):
        yield settings.implied(f"{key}.enable", TAUGHT)
    elif settings[f"{key}.enable"]:
        rounds, most = f"{key}.max_num_gen_batches", settings.integer(f"{key}.max_num_gen_batches")
        why = "" if most > 0 else "no bound there; 64 rounds here"
        yield settings.field("algorithm.dynamicSampling.maxRounds", most if most > 0 else MOST_ROUNDS, rounds, why=why)
        yield from _filtered_by(settings, f"{key}.metric")
    size = "data.gen_batch_size"
    if size in settings and settings[size] != settings["data.train_batch_size"] and settings["data.train_batch_size"]:
        yield settings.lacking(size, "a round of generation has promptsPerStep prompts")


def _filtered_by(settings: Settings, key: str) -> Iterator[Said]:
    """Here groups are filtered by the reward itself, before the penalties that `seq_reward` (overlong) and `seq_final_reward` (KL, too) contain."""
    metric = settings[key]
    penalties = ["overlong"] if settings[f"{OVERLONG_BUFFER}.enable"] else []
    penalties += ["KL"] if metric == "seq_final_reward" and settings["algorithm.use_kl_in_reward"] else []
    if metric == "acc":
        text = "groups are filtered by their rewards: by others, where responses that are equally right differ in their rewards"
        yield settings.changed(key, text)
    elif metric in ("seq_reward", "seq_final_reward") and penalties:
        yield settings.changed(
            key, f"groups are filtered by their rewards before the {' and the '.join(penalties)} penalty"
        )
    elif metric in ("score", "seq_reward", "seq_final_reward"):
        yield settings.implied(key, "groups are filtered by their rewards")
    elif metric is not None:
        yield settings.lacking(key, "groups are filtered by their rewards")


def correction(settings: Settings) -> Iterator[Said]:
    key, target = "algorithm.rollout_correction", "algorithm.rolloutCorrection"
    kind = settings[f"{key}.rollout_is"]
    if kind in ("token", "sequence") and not settings[f"{key}.bypass_mode"]:
        yield settings.field(f"{target}.importanceSampling", kind, f"{key}.rollout_is")
        bounds = f"{key}.rollout_is_threshold"
        if "_" in str(settings[bounds]):
            yield settings.changed(bounds, "the upper bound alone: small weights are kept as they are")
        yield settings.field(f"{target}.cap", _bounds(settings[bounds])[1], bounds)
    elif kind:
        yield settings.changed(f"{key}.rollout_is", "with bypass_mode the clipped ratio is the weight already")
    yield from _rejection(settings, f"{key}.rollout_rs", f"{key}.rollout_rs_threshold", f"{target}.reject")


def _rejection(settings: Settings, kind: str, bounds: str, target: str) -> Iterator[Said]:
    if kind not in settings:
        return
    low, high = _bounds(settings[bounds])
    if settings[kind] not in REJECTIONS or not low or not high:
        yield settings.lacking(kind, "samples are rejected by token_k1 or seq_mean_k1, between two bounds")
        return
    yield settings.changed(kind, "what is rejected gives no gradient, and stays in the denominators")
    why = "bounds of the inverse ratio"
    yield settings.field(f"{target}.level", REJECTIONS[settings[kind]], kind)
    yield settings.field(f"{target}.low", round(1 / high, 6), bounds, why=why)
    yield settings.field(f"{target}.high", round(1 / low, 6), bounds, why=why)


def _bounds(value: Any) -> tuple[float, float]:
    """Of `0.5_2.0`; of one number its inverse is the other."""
    try:
        low, _, high = str(value).rpartition("_")
        return (float(low), float(high)) if low else (1 / float(high), float(high))
    except (ValueError, ZeroDivisionError):
        return 0.0, 0.0


def overlong(settings: Settings) -> Iterator[Said]:
    key = OVERLONG_BUFFER
    if settings[f"{key}.enable"]:
        yield settings.field("algorithm.overlong.bufferTokens", settings.integer(f"{key}.len"), f"{key}.len")
        yield settings.field(
            "algorithm.overlong.penalty", float(settings.number(f"{key}.penalty_factor")), f"{key}.penalty_factor"
        )
    manager = "reward.reward_manager.name"
    if settings[manager] not in ("naive", "dapo", "batch", "prime"):
        yield settings.lacking(manager, "rewards are functions of one response; see spec.rewards")


def rewards(settings: Settings) -> Iterator[Said]:
    if alone(settings):
        yield Note(Outcome.IMPLIED, "rewards", TAUGHT)
        return
    entries: list[dict[str, Any]] = []
    keys: list[str] = []
    if f"{FUNCTION}.path" in settings:
        entry, keys = _function(settings)
        entries.append(entry)
        yield settings.changed(f"{FUNCTION}.path", places.to_mount(entry["python"]["path"]))
        if settings[MANAGER] == "batch":
            yield settings.lacking(MANAGER, "a reward function gets one response at a time, not lists of them")
    if settings[f"{REWARD_MODEL}.enable"]:
        keys.append(f"{REWARD_MODEL}.enable")
        pooled = f"{REWARD_MODEL}.model_path" in settings and not settings["distillation.enabled"]
        entries.append({"vllm": {"pool": "scores"} if pooled else {"url": "http://reward-model:8000"}})
        if pooled:
            yield from _scores(settings)
        else:
            yield settings.changed(f"{REWARD_MODEL}.enable", SERVER)
    if entries:
        yield settings.field("rewards", entries, *keys)
        return
    yield Field(
        "rewards",
        [{"dataSource": "openai/gsm8k", "rule": "number"}, {"rule": "math"}],
        "verl's rules, chosen by data_source",
    )
    yield from (Note(Outcome.CHANGED, f"rewards of {source}", text) for source, text in BY_SOURCE.items())


def _scores(settings: Settings) -> Iterator[Said]:
    """The pool of a reward model."""
    model, size = f"{REWARD_MODEL}.model_path", f"{REWARD_MODEL}.rollout.tensor_model_parallel_size"
    own = f"{REWARD_MODEL}.enable_resource_pool"
    gpus = [f"{REWARD_MODEL}.{key}" for key in ("n_gpus_per_node", "nnodes")] if settings[own] else []
    replicas = max(1, prod(settings.integer(key) for key in gpus) // settings.integer(size)) if gpus else 1
    path, tensor = place(settings[model], settings.options.root), settings.integer(size)
    pool = {"name": "scores", "model": path, "replicas": replicas, "tensorParallel": tensor}
    yield settings.field("pools", [pool | {"vllmArgs": {"runner": "pooling"}}], model, size, *gpus)
    yield settings.changed(f"{REWARD_MODEL}.enable", JUDGE)
    if path != settings[model]:
        yield settings.changed(model, f"put it on the volume, at {path}")


def _function(settings: Settings) -> tuple[dict[str, Any], list[str]]:
    """The entry of a function of the user's, and the keys that it comes from."""
    name = f"{FUNCTION}.name"
    python: dict[str, Any] = {
        "path": place(settings[f"{FUNCTION}.path"], settings.options.root),
        "interface": "verl",
    }
    if settings[name] != "compute_score":
        python["function"] = settings[name]
    given = {
        f"{prefix}.{key}": (key, entry.value)
        for prefix in KWARGS
        for key, entry in settings.below(prefix).items()
        if entry.value is not None
    }
    if given:
        python["arguments"] = dict(given.values())
    return {"python": python}, [f"{FUNCTION}.path", *([name] if name in settings else []), *given]


def environment(settings: Settings) -> Iterator[Said]:
    """Variables that a script exports, and the projects of trackers."""
    variables = {
        name: given
        for name, given in settings.below("export").items()
        if name.startswith(HANDED_ON) and name not in OWN_VARIABLES
    }
    env = [{"name": name, "value": str(given.value)} for name, given in variables.items()]
    key = "trainer.logger"
    loggers = items(settings[key])
    if "wandb" in loggers and key in settings:
        env.append({"name": "WANDB_PROJECT", "value": str(settings["trainer.project_name"])})
        yield settings.changed(key, "wandb: needs WANDB_API_KEY from a Secret in spec.envFrom")
    if "mlflow" in loggers:
        env.append({"name": "MLFLOW_EXPERIMENT_NAME", "value": str(settings["trainer.project_name"])})
        yield settings.changed(key, "mlflow: needs the address of its server as MLFLOW_TRACKING_URI in spec.env")
    if "swanlab" in loggers:
        env.append({"name": "SWANLAB_PROJ_NAME", "value": str(settings["trainer.project_name"])})
        yield settings.changed(
            key, "swanlab: needs its client in the trainer's image, and SWANLAB_API_KEY from a Secret in spec.envFrom"
        )
    if env:
        yield Field(
            "env",
            env,
            ", ".join([*(f"export {name}" for name in variables), *settings.names(key)]),
            settings.names(key),
        )
    for other in loggers:
        if other not in ("wandb", "mlflow", "swanlab", "console", "tensorboard", "file"):
            yield settings.lacking(key, f"metrics are written to TensorBoard and metrics.jsonl, not to {other}")


RULES = (advantage, loss, kl, sampling, correction, overlong, rewards, environment)
