"""Trinity-RFT: `mode: both` of explorer and trainer, whose trainer is verl's: its keys are below `trainer.trainer_config`."""

import math
from collections.abc import Iterator

from rljob_api.spec.train import MOST_STALENESS
from rljob_import.settings import Settings, System
from rljob_import.shared import places, values
from rljob_import.shared.fsdp import checkpointed, other_trainer, shared_sequences, with_ulysses
from rljob_import.shared.megatron import RoleLayout, other_layout, recompute, transformer_config, virtual_pipeline
from rljob_import.shared.training import AGGREGATIONS, ESTIMATORS, Length, Warmup, own
from rljob_import.shared.values import divisor, items
from rljob_import.systems.trinity.aggregation import aggregation
from rljob_import.systems.trinity.rl_rows import ROWS, TASKS
from rljob_import.systems.trinity.rows import ACTOR, CHECKPOINTING, CRITIC, EPOCHS, REF, ULYSSES
from rljob_import.systems.trinity.run import (
    AUXILIARY,
    DISTILL,
    distillation,
    files,
    length_key,
    run,
    servers,
    sets,
    teacher,
    tuning,
)
from rljob_import.systems.verl.roles import optimizer
from rljob_import.table import Field, Note, Outcome, Said

TYPES = {
    "ppo": ("gae", "ppo"),
    "grpo": ("grpo", "ppo"),
    "rloo": ("rloo", "ppo"),
    "reinforceplusplus": ("reinforce++", "ppo"),
    "cispo": ("grpo", "cispo"),
    "gspo": ("grpo", "gspo"),
    DISTILL: ("grpo", "ppo"),
}
"""Advantage and loss of an `algorithm_type`."""
LOSSES = ("ppo", "cispo", "gspo")
MATH = ("math_reward", "math_boxed_reward", "accuracy_reward", "math_dapo_reward", None)
DIFFERENT = {
    "math_reward": "the answer alone is rewarded here; there <think>...</think> <answer>...</answer> is rewarded as well",
    "math_boxed_reward": "looser here: `math` also finds an answer without \\boxed{}",
    "math_dapo_reward": "right is 1 and wrong is 0 here, and -1 and 1 there",
}
"""How rewards differ from the rule `math`."""
PROMPTING = ("math_workflow", "math_boxed_workflow", "on_policy_distill_math_workflow")
"""Workflows that add a system prompt of their own."""
WORKFLOWS = (*PROMPTING, "simple_workflow", "async_math_workflow", None)
STRATEGY = "trainer.trainer_strategy"
OVERRIDE = f"{ACTOR}megatron.override_transformer_config"


def sources(settings: Settings) -> Iterator[Said]:
    if settings["mode"] != "both":
        text = f"{settings['mode']} is no mode of an RLJob that generates: both is read, and train for sft and dpo"
        yield settings.problem(text, "mode")
    yield from files(settings, TASKS)
    if not settings[f"{TASKS}path"]:
        return
    yield Field("data.chatTemplate.texts", True, "workflows send the prompt as one message of the user")
    yield settings.field("data.promptKey", settings[f"{TASKS}format.prompt_key"], f"{TASKS}format.prompt_key")
    yield settings.field("data.answerKey", settings[f"{TASKS}format.response_key"], f"{TASKS}format.response_key")
    yield from _workflow(settings)


def _workflow(settings: Settings) -> Iterator[Said]:
    for key in ("buffer.explorer_input.default_workflow_type", f"{TASKS}default_workflow_type"):
        if settings[key] not in WORKFLOWS:
            yield settings.lacking(
                key, "a prompt is answered in a single turn: write the workflow as an agent for rollout.agent.python"
            )
        elif settings[key] in PROMPTING and f"{TASKS}format.system_prompt" not in settings:
            yield settings.changed(
                key, "the system prompt that the workflow adds: put it into data.chatTemplate.systemPrompt"
            )


def prompt_tokens(settings: Settings) -> int:
    own, whole = length_key(settings, "max_prompt_tokens"), length_key(settings, "max_model_len")
    if own in settings:
        return settings.integer(own)
    answer = settings.integer(length_key(settings, "max_response_tokens"))
    return settings.integer(whole) - answer if settings[whole] else 1024


def amounts(settings: Settings) -> Iterator[Said]:
    prompts, group = settings.integer("buffer.batch_size"), settings.integer("algorithm.repeat_times")
    wanted = (
        settings.integer("buffer.train_batch_size") if settings["buffer.train_batch_size"] else 0
    ) or prompts * group
    updates = divisor(prompts, max(1, prompts * group // wanted))
    yield settings.field(
        "train.miniBatches", updates, "buffer.batch_size", "algorithm.repeat_times", "buffer.train_batch_size"
    )
    if updates * wanted != prompts * group:
        yield settings.changed(
            "buffer.train_batch_size",
            f"{prompts * group // updates} samples: mini-batches are of whole prompts, and alike",
        )
    length = Length("buffer.total_steps", "buffer.total_epochs", prompts)
    yield from length.said(settings)
    o = "algorithm.optimizer."
    passes, total = settings.integer(EPOCHS), length.total(settings)
    yield from Warmup(f"{o}lr_warmup_steps", f"{o}lr_warmup_steps_ratio").said(
        settings, total, updates * passes, passes
    )
    yield from decay(settings)
    if settings["algorithm.algorithm_type"] == "ppo":
        yield from optimizer(settings, CRITIC, "critic.optimizer", total, updates * passes, passes)
    longest = length_key(settings, "max_response_tokens")
    tokens, response = prompt_tokens(settings), settings.integer(longest)
    whole = [length_key(settings, name) for name in ("max_prompt_tokens", "max_model_len")]
    yield settings.field("data.maxPromptTokens", tokens, *whole)
    yield settings.field("rollout.sampling.maxTokens", response, longest)
    layout, key = policy_layout(settings), "trainer.max_token_len_per_gpu"
    budget = max(settings.integer(key) * layout.context, layout.aligned(tokens + response))
    yield settings.field(
        "train.tokensPerMicroBatch", budget, key, why=f"at least {layout.aligned(tokens + response)} tokens"
    )


def decay(settings: Settings) -> Iterator[Said]:
    """Where the learning rate ends, and Adam's betas."""
    o = "algorithm.optimizer."
    if settings[f"{o}lr_scheduler_type"] != "constant" and settings[f"{o}min_lr_ratio"]:
        low = float(f"{settings.number(f'{o}min_lr_ratio') * settings.number(f'{o}lr'):.6g}")
        yield settings.field("train.optimizer.minLearningRate", low, f"{o}min_lr_ratio")
    betas = settings[f"{o}betas"]
    for name, value in zip(("beta1", "beta2"), items(betas), strict=False):
        yield settings.field(f"train.optimizer.{name}", value, f"{o}betas")


def algorithm(settings: Settings) -> Iterator[Said]:
    key = "algorithm.algorithm_type"
    advantage, loss = TYPES.get(settings[key], ("python", "python"))
    if settings[key] == DISTILL:
        yield from distillation(settings)
    elif settings[key] in TYPES:
        yield settings.field("algorithm.advantage", advantage, key)
    else:
        yield from own(settings, key, "advantage", TYPES)
    yield from _loss(settings, loss)
    if advantage == "gae":
        yield settings.field("critic", {}, key)
    of_gspo = dict.fromkeys(AGGREGATIONS, AGGREGATIONS["seq-mean-token-mean"])
    yield from aggregation(settings, "algorithm.aggregation", of_gspo if loss == "gspo" else AGGREGATIONS)
    for side in ("low", "high"):
        name = f"algorithm.policy_loss_fn_args.clip_range_{side}"
        name = name if name in settings else "algorithm.policy_loss_fn_args.clip_range"
        default = {"low": 3e-4, "high": 4e-4}[side] if loss == "gspo" else 0.2
        yield settings.field(f"algorithm.clip.{side}", settings.number(name) if name in settings else default, name)
    if loss == "ppo":
        bound = "algorithm.policy_loss_fn_args.clip_ratio_c"
        yield settings.field("algorithm.clip.dual", float(settings.number(bound)), bound)
    yield from kl(settings)


def _loss(settings: Settings, loss: str) -> Iterator[Said]:
    """That of the type, unless the file names another."""
    kind, named = "algorithm.algorithm_type", "algorithm.policy_loss_fn"
    if named in settings and settings[named] not in LOSSES:
        yield from own(settings, named, "loss", LOSSES)
    elif settings[kind] not in TYPES:
        yield from own(settings, kind, "loss", TYPES)
    else:
        yield settings.field("algorithm.loss", loss, kind)


def penalised(settings: Settings) -> bool:
    """Whether there is a KL penalty, which on_policy_distill has only if the file says so."""
    kind, coefficient = "algorithm.kl_loss_fn", "algorithm.kl_loss_fn_args.kl_coef"
    given = kind in settings or settings["algorithm.algorithm_type"] != DISTILL
    return given and settings[kind] != "none" and bool(settings[coefficient])


def kl(settings: Settings) -> Iterator[Said]:
    """A penalty in the loss is every type's default: k2 with 0.001."""
    kind, coefficient = "algorithm.kl_loss_fn", "algorithm.kl_loss_fn_args.kl_coef"
    if not penalised(settings):
        return
    estimator = ESTIMATORS.get(settings[kind])
    if estimator in (None, "k1"):
        yield settings.changed(kind, "k2 in its place")
        estimator = "k2"
    yield settings.field("algorithm.kl.coefficient", float(settings.number(coefficient)), coefficient)
    yield settings.field("algorithm.kl.estimator", estimator, kind)


def rewards(settings: Settings) -> Iterator[Said]:
    if settings["algorithm.algorithm_type"] == DISTILL:
        yield Note(Outcome.IMPLIED, "rewards", f"{DISTILL} learns from the teacher alone")
        return
    if settings[AUXILIARY]:
        yield settings.lacking(AUXILIARY, "judges are pools: see spec.pools and rewards[].vllm")
    key = next(
        (
            k
            for k in (f"{TASKS}default_reward_fn_type", "buffer.explorer_input.default_reward_fn_type")
            if k in settings
        ),
        "",
    )
    if key and settings[key] in DIFFERENT:
        yield settings.changed(key, DIFFERENT[settings[key]])
    if key and settings[key] not in MATH:
        yield settings.lacking(key, "math in its place; judge it with a python or http reward of your own")
    yield (
        settings.given[key].field("rewards", [{"rule": "math"}])
        if key
        else Field("rewards", [{"rule": "math"}], "the workflow's reward")
    )
    args = f"{TASKS}reward_fn_args."
    if settings[f"{args}enable_overlong_penalty"]:
        yield settings.field(
            "algorithm.overlong.bufferTokens", settings.integer(f"{args}cache_length"), f"{args}cache_length"
        )
        yield settings.field(
            "algorithm.overlong.penalty", float(settings.number(f"{args}penalty_factor")), f"{args}penalty_factor"
        )


def machines(settings: Settings) -> Iterator[Said]:
    """Rollouts have GPUs of their own; the trainer has the others."""
    nodes, per_node = settings.integer("cluster.node_num"), settings.integer("cluster.gpu_per_node")
    engines, size = (
        settings.integer("explorer.rollout_model.engine_num"),
        settings.integer("explorer.rollout_model.tensor_parallel_size"),
    )
    taught = teacher(settings)
    teaching = math.prod(servers(taught)) if taught else 0
    options, rest = settings.options, nodes * per_node - engines * size - teaching
    keys = ("cluster.node_num", "cluster.gpu_per_node", "explorer.rollout_model.engine_num")
    yield settings.field("rollout.placement", "separate", keys[2])
    yield settings.field("rollout.replicas", engines, keys[2])
    yield settings.field("rollout.tensorParallel", size, "explorer.rollout_model.tensor_parallel_size")
    whole = rest >= per_node and rest % per_node == 0
    copy = policy_layout(settings).copy
    ranks = options.gpus_per_node or (per_node if whole else rest)
    pods = options.nodes or (rest // per_node if whole else 1)
    if ranks < 1:
        yield settings.problem(f"{engines} x {size} GPUs of the rollouts leave none to the trainer", *keys)
        return
    if not options.gpus_per_node and pods * ranks % copy:
        yield settings.changed(keys[1], f"{pods * ranks // copy * copy} GPUs train: a multiple of the layout's {copy}")
        ranks = max(copy, ranks // copy * copy)
    yield settings.field("trainer.nodes", pods, *keys)
    yield settings.field("trainer.processesPerNode", ranks, *keys)


def strategy_key(settings: Settings) -> str:
    return f"{ACTOR}strategy" if f"{ACTOR}strategy" in settings and STRATEGY not in settings else STRATEGY


def policy_layout(settings: Settings) -> RoleLayout:
    sizes = RoleLayout.of(settings, f"{ACTOR}megatron.")
    return sizes if settings[strategy_key(settings)] == "megatron" else with_ulysses(settings, sizes, ULYSSES)


def layout(settings: Settings) -> Iterator[Said]:
    strategy = strategy_key(settings)
    if settings[strategy] != "megatron":
        yield other_trainer(settings, strategy)
        yield from checkpointed(settings, CHECKPOINTING, bool(settings[CHECKPOINTING]), f"{OVERRIDE}.")
        yield from shared_sequences(settings, ULYSSES)
    yield from virtual_pipeline(settings, f"{ACTOR}megatron.")
    yield from recompute(settings, f"{OVERRIDE}.")
    yield from transformer_config(settings, OVERRIDE)
    yield from other_layout(settings, f"{REF}megatron.", f"{ACTOR}megatron.", "the reference")
    yield from other_layout(settings, f"{CRITIC}megatron.", f"{ACTOR}megatron.", "the critic")
    if settings[f"{ACTOR}megatron.use_dist_checkpointing"]:
        yield from places.located(settings, "model.megatronCheckpoint", f"{ACTOR}megatron.dist_checkpointing_path")


def synchronising(settings: Settings) -> Iterator[Said]:
    interval, offset = "synchronizer.sync_interval", "synchronizer.sync_offset"
    if settings.integer(interval) != 1:
        yield settings.lacking(interval, "weights are published after every step")
    if settings.integer(offset) > 0:
        yield settings.field("train.staleness", min(settings.integer(offset), MOST_STALENESS), offset)
        yield settings.field(
            "algorithm.rolloutCorrection.importanceSampling",
            "token",
            offset,
            why="samples of an older policy are weighted",
        )
    if settings.integer(offset) > MOST_STALENESS:
        yield settings.lacking(offset, f"samples are at most {MOST_STALENESS} updates old")
    timeout = "synchronizer.sync_timeout"
    if timeout in settings and settings.integer(timeout) > 1800:
        yield settings.field("lifecycle.stallTimeoutSeconds", settings.integer(timeout), timeout)


def unread(settings: Settings) -> dict[str, str]:
    why = {} if settings["algorithm.algorithm_type"] == "ppo" else {"critic": "only algorithm_type ppo has a critic"}
    if not penalised(settings):
        why["reference"] = "without a KL penalty no reference is held"
    return why


TRINITY = System(
    "Trinity-RFT",
    ROWS,
    (run, tuning, sources, amounts, algorithm, rewards, sets, machines, layout, synchronising, places.pods),
    values.TRINITY,
    unread,
)
