"""Trinity-RFT: `mode: both` of explorer and trainer, whose trainer is verl's: its keys are below `trainer.trainer_config`."""

from collections.abc import Iterator, Mapping

from kubectl_rljob.importer import places
from kubectl_rljob.importer.amounts import Length, Warmup
from kubectl_rljob.importer.hydra import plain
from kubectl_rljob.importer.interpolation import flatten, resolve
from kubectl_rljob.importer.megatron import Layout, other_layout, recompute, transformer_config, virtual_pipeline
from kubectl_rljob.importer.settings import Settings, System
from kubectl_rljob.importer.sources import Source, tree_of
from kubectl_rljob.importer.table import Field, Note, Outcome, Problem, Said
from kubectl_rljob.importer.trinity_evaluation import sets
from kubectl_rljob.importer.trinity_rows import ACTOR, CRITIC, REF, ROWS, TASKS
from kubectl_rljob.importer.values import divisor, items
from rljob_api.spec.algorithm import MOST_STALENESS

TYPES = {
    "ppo": ("gae", "ppo"),
    "grpo": ("grpo", "ppo"),
    "rloo": ("rloo", "ppo"),
    "reinforceplusplus": ("reinforce++", "ppo"),
    "cispo": ("grpo", "cispo"),
    "gspo": ("grpo", "gspo"),
}
"""Advantage and loss of an `algorithm_type`."""
AGGREGATIONS = {
    "token-mean": "tokenMean",
    "seq-mean-token-mean": "sequenceMeanTokenMean",
    "seq-mean-token-sum": "sequenceMeanTokenSum",
    "seq-mean-token-sum-norm": "sequenceMeanTokenSumNorm",
}
ESTIMATORS = {"k1": "k1", "k2": "k2", "k3": "k3", "low_var_kl": "k3"}
MATH = ("math_reward", "math_boxed_reward", "accuracy_reward", "math_dapo_reward", None)
WORKFLOWS = ("math_workflow", "math_boxed_workflow", "simple_workflow", "async_math_workflow", None)
OVERRIDE = f"{ACTOR}megatron.override_transformer_config"


def sources(settings: Settings) -> Iterator[Said]:
    if settings["mode"] != "both":
        yield Problem(settings.origin("mode"), f"{settings['mode']} is no mode of an RLJob: both is read")
    yield from places.found(settings, "model.path", "model.model_path")
    path = settings[f"{TASKS}path"]
    if not path:
        yield Problem(f"{TASKS}path", "is missing; if a variable says it: --env NAME=VALUE")
        return
    if not str(path).endswith((".jsonl", ".json", ".parquet", ".arrow")):
        yield settings.changed(f"{TASKS}path", "a data set of a hub: put its files in place of train.parquet")
        path = f"{str(path).rstrip('/')}/{settings[f'{TASKS}split']}.parquet"
    yield from places.placed_files(settings, "data.train", [path], f"{TASKS}path")
    yield Field("data.chatTemplate.texts", True, "workflows send the prompt as one message of the user")
    yield settings.field("data.promptKey", settings[f"{TASKS}format.prompt_key"], f"{TASKS}format.prompt_key")
    yield settings.field("data.answerKey", settings[f"{TASKS}format.response_key"], f"{TASKS}format.response_key")
    yield from _workflow(settings)
    yield from places.name(settings, "name")
    directory = f"{settings['checkpoint_root_dir'] or 'checkpoints'}/{settings['project']}/{settings['name']}"
    yield from places.placed(settings, "checkpoint.path", directory, "checkpoint_root_dir", "project", "name")
    yield from places.kept(settings, "trainer.max_checkpoints_to_keep")


def _workflow(settings: Settings) -> Iterator[Said]:
    for key in ("buffer.explorer_input.default_workflow_type", f"{TASKS}default_workflow_type"):
        if settings[key] not in WORKFLOWS:
            yield settings.lacking(key, "a prompt is answered in a single turn")
        elif (
            settings[key] in ("math_workflow", "math_boxed_workflow") and f"{TASKS}format.system_prompt" not in settings
        ):
            yield settings.changed(
                key, "the system prompt that the workflow adds: put it into data.chatTemplate.systemPrompt"
            )


def prompt_tokens(settings: Settings) -> int:
    if "model.max_prompt_tokens" in settings:
        return settings.integer("model.max_prompt_tokens")
    whole = settings["model.max_model_len"]
    return settings.integer("model.max_model_len") - settings.integer("model.max_response_tokens") if whole else 1024


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
    yield from Warmup(f"{o}lr_warmup_steps", f"{o}lr_warmup_steps_ratio").said(
        settings, length.total(settings), updates
    )
    if settings[f"{o}lr_scheduler_type"] != "constant" and settings[f"{o}min_lr_ratio"]:
        low = settings.number(f"{o}min_lr_ratio") * settings.number(f"{o}lr")
        yield settings.field("train.optimizer.minLearningRate", low, f"{o}min_lr_ratio")
    betas = settings[f"{o}betas"]
    for name, value in zip(("beta1", "beta2"), items(betas), strict=False):
        yield settings.field(f"train.optimizer.{name}", value, f"{o}betas")
    tokens, response = prompt_tokens(settings), settings.integer("model.max_response_tokens")
    yield settings.field("data.maxPromptTokens", tokens, "model.max_prompt_tokens", "model.max_model_len")
    yield settings.field("rollout.sampling.maxTokens", response, "model.max_response_tokens")
    layout, key = Layout.of(settings, f"{ACTOR}megatron."), "trainer.max_token_len_per_gpu"
    budget = max(settings.integer(key) * layout.context, layout.aligned(tokens + response))
    yield settings.field(
        "train.tokensPerMicroBatch", budget, key, why=f"at least {layout.aligned(tokens + response)} tokens"
    )


def algorithm(settings: Settings) -> Iterator[Said]:
    key = "algorithm.algorithm_type"
    if settings[key] not in TYPES:
        yield Problem(settings.origin(key), f"{settings[key]} is none of {', '.join(TYPES)}, which are read")
        return
    advantage, loss = TYPES[settings[key]]
    yield settings.field("algorithm.advantage", advantage, key)
    yield settings.field("algorithm.loss", loss, key)
    if advantage == "gae":
        yield settings.field("critic", {}, key)
    aggregation = "algorithm.policy_loss_fn_args.loss_agg_mode"
    ours = AGGREGATIONS.get(settings[aggregation], "tokenMean")
    yield settings.field("algorithm.aggregation", "sequenceMeanTokenMean" if loss == "gspo" else ours, aggregation)
    if settings[aggregation] not in AGGREGATIONS:
        yield settings.lacking(aggregation, "token-mean in its place")
    for side in ("low", "high"):
        name = f"algorithm.policy_loss_fn_args.clip_range_{side}"
        name = name if name in settings else "algorithm.policy_loss_fn_args.clip_range"
        default = {"low": 3e-4, "high": 4e-4}[side] if loss == "gspo" else 0.2
        yield settings.field(f"algorithm.clip.{side}", settings.number(name) if name in settings else default, name)
    yield from kl(settings)


def kl(settings: Settings) -> Iterator[Said]:
    """A penalty in the loss is every type's default: k2 with 0.001."""
    kind, coefficient = "algorithm.kl_loss_fn", "algorithm.kl_loss_fn_args.kl_coef"
    if settings[kind] == "none" or not settings.number(coefficient):
        return
    estimator = ESTIMATORS.get(settings[kind])
    if estimator in (None, "k1"):
        yield settings.changed(kind, "k2 in its place")
        estimator = "k2"
    yield settings.field("algorithm.kl.coefficient", float(settings.number(coefficient)), coefficient)
    yield settings.field("algorithm.kl.estimator", estimator, kind)


def rewards(settings: Settings) -> Iterator[Said]:
    key = next(
        (
            k
            for k in (f"{TASKS}default_reward_fn_type", "buffer.explorer_input.default_reward_fn_type")
            if k in settings
        ),
        "",
    )
    if key and settings[key] not in MATH:
        yield settings.lacking(key, "math in its place; judge it with a python or http reward of your own")
    yield Field("rewards", [{"rule": "math"}], settings.given[key].name if key else "the workflow's reward")
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
    options, rest = settings.options, nodes * per_node - engines * size
    keys = ("cluster.node_num", "cluster.gpu_per_node", "explorer.rollout_model.engine_num")
    yield settings.field("rollout.placement", "separate", keys[2])
    yield settings.field("rollout.replicas", engines, keys[2])
    yield settings.field("rollout.tensorParallel", size, "explorer.rollout_model.tensor_parallel_size")
    whole = rest >= per_node and rest % per_node == 0
    copy = Layout.of(settings, f"{ACTOR}megatron.").copy
    ranks = options.gpus_per_node or (per_node if whole else rest)
    pods = options.nodes or (rest // per_node if whole else 1)
    if ranks < 1:
        yield Problem(settings.origin(*keys), f"{engines} x {size} GPUs of the rollouts leave none to the trainer")
        return
    if not options.gpus_per_node and pods * ranks % copy:
        yield settings.changed(keys[1], f"{pods * ranks // copy * copy} GPUs train: a multiple of the layout's {copy}")
        ranks = max(copy, ranks // copy * copy)
    yield settings.field("trainer.nodes", pods, *keys)
    yield settings.field("trainer.processesPerNode", ranks, *keys)


def layout(settings: Settings) -> Iterator[Said]:
    strategy = "trainer.trainer_strategy" if "trainer.trainer_strategy" in settings else f"{ACTOR}strategy"
    if settings[strategy] != "megatron":
        yield settings.changed(strategy, "the trainer is Megatron: choose trainer.parallelism")
    yield from virtual_pipeline(settings, f"{ACTOR}megatron.")
    yield from recompute(settings, f"{OVERRIDE}.")
    yield from transformer_config(settings, OVERRIDE)
    yield from other_layout(settings, f"{REF}megatron.", f"{ACTOR}megatron.", "the reference")
    yield from other_layout(settings, f"{CRITIC}megatron.", f"{ACTOR}megatron.", "the critic")
    if settings[f"{ACTOR}megatron.use_dist_checkpointing"]:
        yield from places.found(settings, "model.megatronCheckpoint", f"{ACTOR}megatron.dist_checkpointing_path")


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
    if settings["monitor.monitor_type"] == "wandb":
        yield settings.field(
            "env", [{"name": "WANDB_PROJECT", "value": str(settings["project"])}], "monitor.monitor_type", "project"
        )
    elif settings["monitor.monitor_type"] not in (None, "tensorboard"):
        yield settings.lacking("monitor.monitor_type", "metrics are written to TensorBoard and metrics.jsonl")


def unread(settings: Settings) -> dict[str, str]:
    found = {} if settings["algorithm.algorithm_type"] == "ppo" else {"critic": "only algorithm_type ppo has a critic"}
    if settings["algorithm.kl_loss_fn"] == "none" or not settings["algorithm.kl_loss_fn_args.kl_coef"]:
        found["reference"] = "without a KL penalty no reference is held"
    return found


TRINITY = System(
    "Trinity-RFT",
    ROWS,
    (sources, amounts, algorithm, rewards, sets, machines, layout, synchronising, places.pods),
    unread,
)


def read_file(text: str, environment: Mapping[str, str]) -> Source:
    """YAML of OmegaConf. Raises Unreadable."""
    tree, lost = resolve(tree_of(text), environment)
    values = {k: plain(v) for k, v in flatten(tree).items()}
    return Source(TRINITY, values, [Note(Outcome.CHANGED, path, "is left out") for path in lost])
