"""ROLL: the pipelines RLVR, SFT and DPO. What several of its keys say together, and how its YAML is written."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from kubectl_rljob.importer import places
from kubectl_rljob.importer.amounts import Length, Warmup
from kubectl_rljob.importer.arithmetic import devices
from kubectl_rljob.importer.held_out import responses
from kubectl_rljob.importer.hydra import plain
from kubectl_rljob.importer.interpolation import flatten, resolve
from kubectl_rljob.importer.megatron import Layout, other_layout, recompute, transformer_config, virtual_pipeline
from kubectl_rljob.importer.roll_bounds import bounds
from kubectl_rljob.importer.roll_rows import DPO_ROWS, REWARD_KEYS, RL_ROWS, SFT_ROWS
from kubectl_rljob.importer.settings import NotANumber, Settings, System, show
from kubectl_rljob.importer.sources import Source, Unreadable, tree_of
from kubectl_rljob.importer.table import Field, Note, Outcome, Said
from kubectl_rljob.importer.values import SEQUENCE_CLIP, divisor, items
from rljob_api.spec.algorithm import MOST_STALENESS
from rljob_api.validation.algorithm import WIDEST_SEQUENCE_CLIP

AGGREGATIONS = {
    "token-mean": "tokenMean",
    "seq-mean-token-mean": "sequenceMeanTokenMean",
    "seq-mean-token-sum": "sequenceMeanTokenSum",
    "seq-mean-token-sum-norm": "sequenceMeanTokenSumNorm",
}
MATH = ("MathRuleRewardWorker", "math_rule")
JUDGE = "judge it with an http reward of your own"
HANDED_ON = ("NCCL_", "VLLM_", "TORCH_", "WANDB_", "HF_")


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


def sources(settings: Settings) -> Iterator[Said]:
    yield from places.found(settings, "model.path", "pretrain")
    yield from places.files(settings, "data.train", f"{role(settings)}data_args.file_name")
    yield from places.files(settings, "data.validation", "validation.data_args.file_name")
    yield from places.name(settings, "exp_name")
    key = "checkpoint_config.output_dir" if "checkpoint_config.output_dir" in settings else "output_dir"
    yield from places.written(settings, "checkpoint.path", key, "output")
    yield from places.kept(settings, "max_ckpt_to_keep")
    if "eval_steps" in settings and "validation.data_args.file_name" in settings:
        yield settings.field("evaluation.everySteps", max(0, settings.integer("eval_steps")), "eval_steps")


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


def samples(settings: Settings) -> int:
    """Samples of an optimizer step."""
    nodes, ranks = machine(settings)
    t, copies = f"{role(settings)}training_args.", max(1, nodes * ranks // Layout.of(settings, config(settings)).copy)
    return (
        settings.integer(f"{t}per_device_train_batch_size")
        * settings.integer(f"{t}gradient_accumulation_steps")
        * copies
    )


def tokens(settings: Settings, longest: int) -> Iterator[Said]:
    r, least = role(settings), Layout.of(settings, config(settings)).aligned(longest)
    dynamic, packed = (
        f"{r}max_tokens_per_microbatch_in_train",
        f"{r}sequence_packing_args.max_packed_sequence_length_train",
    )
    each = f"{r}training_args.per_device_train_batch_size"
    if settings[f"{r}use_dynamic_batching_in_train"] and dynamic in settings:
        found, key = settings.integer(dynamic), dynamic
    elif settings[f"{r}use_sequence_packing"] and packed in settings:
        found, key = settings.integer(packed), packed
    else:
        found, key = settings.integer(each) * longest, each
    why = f"at least {least} tokens of the longest sample"
    yield settings.field("train.tokensPerMicroBatch", max(found, least), key, why=why)


def learning(settings: Settings, per_step: int, updates: int) -> Iterator[Said]:
    t = f"{role(settings)}training_args."
    length = Length("max_steps", f"{t}num_train_epochs", per_step)
    yield from length.said(settings)
    yield from Warmup(f"{t}warmup_steps", f"{t}warmup_ratio").said(settings, length.total(settings), updates)


def amounts(settings: Settings) -> Iterator[Said]:
    prompts, group = settings.integer("rollout_batch_size"), settings.integer("num_return_sequences_in_group")
    updates = max(1, round(prompts * group / max(1, samples(settings))))
    t = "actor_train.training_args."
    keys = (f"{t}per_device_train_batch_size", f"{t}gradient_accumulation_steps")
    exact = divisor(prompts, updates)
    if exact * samples(settings) != prompts * group:
        yield settings.changed(
            keys[1],
            f"{prompts * group // exact} samples in an optimizer step: mini-batches are of whole prompts, and alike",
        )
    yield settings.field("train.miniBatches", exact, *keys, why=f"{samples(settings)} of {prompts * group} samples")
    yield from learning(settings, prompts, exact * settings.integer("ppo_epochs"))
    longest = settings.integer("prompt_length") + response(settings)
    yield from tokens(settings, longest)
    yield Field("rollout.sampling.maxTokens", response(settings), settings.origin("response_length"))


def response(settings: Settings) -> int:
    if "response_length" in settings:
        return settings.integer("response_length")
    return settings.integer("sequence_length") - settings.integer("prompt_length")


def prompts(settings: Settings) -> Iterator[Said]:
    """Columns of ROLL's files."""
    d = "actor_train.data_args."
    key = f"{d}prompt" if f"{d}prompt" in settings and f"{d}messages" not in settings else f"{d}messages"
    yield settings.field("data.promptKey", settings[key], key)
    answer = settings[f"{d}response"] or "ground_truth"
    yield Field("data.answerKey", answer, "ROLL's column of the answer")
    yield settings.field("data.dataSourceKey", settings[f"{d}tag"], f"{d}tag")
    yield settings.changed(key, "ROLL's files hold messages as JSON text there: store them as lists of {role, content}")


def rewards(settings: Settings) -> Iterator[Said]:
    """One entry for each tag that a rule of ours scores."""
    found: list[dict[str, Any]] = []
    given = settings.below("rewards")
    names = dict.fromkeys(key.split(".")[0] for key in given)
    for name in names:
        worker, tags = (settings.given.get(f"rewards.{name}.{key}") for key in ("worker_cls", "tag_included"))
        if name in MATH or (worker and str(worker.value).endswith(MATH[0])):
            found += [{"dataSource": str(tag), "rule": "math"} for tag in (items(tags.value) if tags else ["*"])]
        else:
            yield Note(Outcome.LACKING, f"rewards.{name}", f"no rule of an RLJob scores it: {JUDGE}")
        for key in (k for k in given if k.startswith(f"{name}.") and not k.endswith(REWARD_KEYS)):
            yield Note(Outcome.IMPLIED, f"rewards.{key} = {show(given[key].value)}", "of ROLL's own workers")
    if not found:
        found.append({"rule": "math"})
        yield Note(Outcome.CHANGED, "rewards", f"math in their place; {JUDGE}")
    yield Field("rewards", found, ", ".join(f"rewards.{key}" for key in given if key.endswith(REWARD_KEYS)))


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
        yield settings.field(
            "algorithm.rolloutCorrection.cap", float(settings.number(f"{weight}upper_bound")), f"{weight}upper_bound"
        )
    elif ahead and separate:
        yield settings.field(
            "algorithm.rolloutCorrection.importanceSampling",
            "token",
            ratio,
            why="samples of an older policy are weighted",
        )
    if kind not in (None, "token", "sequence"):
        yield settings.lacking(f"{weight}weight_type", "weights are of tokens or sequences")


def algorithm(settings: Settings) -> Iterator[Said]:
    yield from advantage(settings)
    yield from bounds(settings)
    yield from clip(settings)
    yield from kl(settings)
    aggregation = settings["loss_agg_mode"]
    if settings["importance_sampling"] in ("seq", "sequence"):
        yield settings.field("algorithm.loss", "gspo", "importance_sampling")
        aggregation = "seq-mean-token-mean"
    if aggregation not in AGGREGATIONS:
        yield settings.lacking(
            "loss_agg_mode", f"the aggregations are {', '.join(AGGREGATIONS)}; seq-mean-token-mean in its place"
        )
    yield settings.field(
        "algorithm.aggregation", AGGREGATIONS.get(aggregation, "sequenceMeanTokenMean"), "loss_agg_mode"
    )
    if settings["validation.data_args.file_name"]:
        args = "validation.generating_args."
        key, narrow = f"{args}temperature", [f"{args}{name}" for name in ("top_p", "top_k", "num_return_sequences")]
        yield settings.field("evaluation.sampling.temperature", float(settings.number(key)), key)
        yield from responses(settings, bool(settings.number(key)), *narrow)
        yield settings.field("evaluation.sampling.maxTokens", response(settings), "response_length")


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
        yield settings.lacking(key, "the estimators are grpo, reinforce and gae; grpo in its place")
        yield settings.field(field, "grpo", key)


def weights(settings: Settings) -> Iterator[Said]:
    """Shares of the files, which ROLL writes as a text with commas."""
    key, files = f"{role(settings)}data_args.interleave_probs", f"{role(settings)}data_args.file_name"
    if key not in settings:
        return
    count = len(items(settings[files])) if settings[files] else 0
    try:
        shares = [float(share) for share in str(settings[key]).split(",")]
    except ValueError:
        shares = []
    if len(shares) != count or min(shares, default=0) <= 0:
        yield settings.lacking(key, f"data.weights has one number above 0 for each of the {count} files")
    elif count > 1:
        yield settings.field("data.weights", shares, key)


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


def has_reference(settings: Settings) -> bool:
    return bool(settings["use_kl_loss"] and settings["kl_loss_coef"]) or bool(
        settings["add_token_level_kl"] and settings["init_kl_coef"]
    )


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


def environment(settings: Settings) -> Iterator[Said]:
    given = {name: g for name, g in settings.below("system_envs").items() if name.startswith(HANDED_ON)}
    env = [{"name": name, "value": str(g.value)} for name, g in given.items()]
    if settings["track_with"] == "wandb":
        env.append({"name": "WANDB_PROJECT", "value": str(settings["tracker_kwargs.project"] or settings["exp_name"])})
        yield settings.changed("track_with", "needs WANDB_API_KEY from a Secret in spec.envFrom")
    elif settings["track_with"] not in (None, "tensorboard", "stdout"):
        yield settings.lacking("track_with", "metrics are written to TensorBoard and metrics.jsonl")
    if env:
        yield Field("env", env, "system_envs, track_with")


def supervised(settings: Settings) -> Iterator[Said]:
    """SFT and DPO."""
    dpo, batch = role(settings) == "actor_train.", samples(settings)
    yield Field("task", "dpo" if dpo else "sft", "ROLL's pipeline")
    t = f"{role(settings)}training_args."
    yield settings.field(
        "train.samplesPerStep",
        batch,
        f"{t}per_device_train_batch_size",
        f"{t}gradient_accumulation_steps",
        why="x data-parallel ranks",
    )
    yield from learning(settings, batch, 1)
    longest = Layout.of(settings, config(settings)).aligned(settings.integer("sequence_length")) * (2 if dpo else 1)
    yield from tokens(settings, longest)
    if dpo and settings["ipo"]:
        yield settings.field("dpo.loss", "ipo", "ipo")
    if not dpo and "query_key" in settings:
        yield settings.field("data.format", "alpaca", "prompt_key", "query_key", "response_key")
    elif not dpo:
        yield settings.field("data.format", "columns", "prompt_key")
        yield settings.field("data.promptKey", settings["prompt_key"], "prompt_key")
        if "response_key" in settings:
            yield settings.field("data.responseKey", settings["response_key"], "response_key")


def unread(settings: Settings) -> dict[str, str]:
    found = {} if settings["adv_estimator"] == "gae" else {"critic": "only advantage gae has a critic"}
    if not settings["validation.data_args.file_name"]:
        found["evaluation"] = "there are no held-out prompts"
    return found


RL = System(
    "ROLL, RLVR",
    RL_ROWS,
    (
        sources,
        weights,
        prompts,
        layout,
        other_roles,
        amounts,
        rewards,
        rollouts,
        asynchrony,
        algorithm,
        environment,
        places.pods,
    ),
    unread,
)
SFT = System("ROLL, SFT", SFT_ROWS, (sources, weights, layout, supervised, environment, places.pods))
DPO = System("ROLL, DPO", DPO_ROWS, (sources, weights, layout, other_roles, supervised, environment, places.pods))


def read(text: str, variables: Mapping[str, str]) -> Source:
    """YAML of Hydra. Raises Unreadable, also of a pipeline that is none of the three."""
    tree, lost = resolve(tree_of(text), variables)
    for key in ("custom_envs", "train_env_manager"):
        if key in tree:
            raise Unreadable(
                f"is of the agentic pipeline (`{key}`), whose environments are classes of ROLL: write them as an agent or a service "
                "for rollout.agent (docs/agents.md). RLVR, SFT and DPO are read"
            )
    for key in ("student_train", "student", "teacher", "reward"):
        if key in tree:
            raise Unreadable(f"is of a pipeline that no RLJob has (`{key}`): RLVR, SFT and DPO are read")
    if "pretrain" not in tree and not any(key.startswith(("actor_", "sft_")) for key in tree):
        raise Unreadable("says neither `pretrain` nor `actor_train`: it is a part that others name in their `defaults`")
    system = SFT if "sft_train" in tree else DPO if "chosen_key" in tree or "beta" in tree else RL
    values = {k: plain(v) for k, v in flatten(tree).items()}
    return Source(system, values, [Note(Outcome.CHANGED, path, "is left out") for path in lost])
