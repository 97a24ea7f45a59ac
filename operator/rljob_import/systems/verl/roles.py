"""verl's amounts, layout and roles: what several of its keys say together."""

from collections.abc import Iterator

from rljob_api.spec.run import LifecycleSpec
from rljob_import.settings import Settings, show
from rljob_import.shared import places
from rljob_import.shared.adapters import verl_adapters
from rljob_import.shared.megatron import other_layout, recompute, transformer_config, virtual_pipeline
from rljob_import.shared.training import Length, Warmup, responses
from rljob_import.shared.values import divisor, items, product
from rljob_import.systems.verl.algorithm import has_reference, is_gae
from rljob_import.systems.verl.distillation import distillation
from rljob_import.systems.verl.engine import OVERRIDE, M, engine, on_megatron, policy_layout
from rljob_import.systems.verl.rows import ACTOR, AR, MODEL, MOMENTS, REF, ROLLOUT
from rljob_import.table import Field, Outcome, Said

GONE = "vLLM has no such setting any more"
FLOAT32 = {"fp32", "float32", "torch.float32"}
SIZE, MINI = "data.train_batch_size", f"{ACTOR}ppo_mini_batch_size"
TOTAL = "rollout.total_rollout_steps"
SYNC, FETCHED = "async_training.trigger_parameter_sync_step", "async_training.require_batches"


def sources(settings: Settings) -> Iterator[Said]:
    """Model and data."""
    yield from places.located(settings, "model.path", f"{MODEL}path")
    yield from verl_adapters(settings, MODEL)
    yield from places.files(settings, "data.train", "data.train_files")
    yield from places.files(settings, "data.validation", "data.val_files")
    yield Field("data.answerKey", "reward_model.ground_truth", "verl's column of the answer")
    checkpoint = f"{M}dist_checkpointing_path"
    if settings[f"{M}use_dist_checkpointing"]:
        yield from places.located(settings, "model.megatronCheckpoint", checkpoint)
    if settings["data.truncation"] != "error":
        yield settings.changed("data.truncation", "longer prompts are left out, not cut")
    tokens = settings.integer("data.max_response_length")
    yield settings.field("rollout.sampling.maxTokens", tokens, "data.max_response_length")


def length(settings: Settings) -> Length:
    return Length("trainer.total_training_steps", "trainer.total_epochs", prompts(settings))


def amounts(settings: Settings) -> Iterator[Said]:
    """Batches, micro-batches and the length of the job."""
    if not (streams(settings) and TOTAL in settings):
        yield from length(settings).said(settings)
    yield from streamed(settings) if streams(settings) else batches(settings)
    yield from tokens(settings)


def mini_batches(settings: Settings) -> int:
    """Of a step of an RLJob, which divide its prompts."""
    if streams(settings):
        return updates(settings)
    size = settings.integer(SIZE)
    return divisor(size, max(1, round(size / settings.positive(MINI))))


def batches(settings: Settings) -> Iterator[Said]:
    size, number = settings.integer(SIZE), mini_batches(settings)
    yield settings.field("train.promptsPerStep", size, SIZE)
    if number * min(settings.integer(MINI), size) != size:
        each = f"{number} of {size // max(1, number)} prompts"
        yield settings.changed(MINI, f"mini-batches divide the {size} prompts of a step evenly: {each}")
    yield settings.field("train.miniBatches", number, SIZE, MINI)


def tokens(settings: Settings) -> Iterator[Said]:
    layout = policy_layout(settings)
    longest = settings.integer("data.max_prompt_length") + settings.integer("data.max_response_length")
    dynamic, micro = f"{ACTOR}ppo_max_token_len_per_gpu", f"{ACTOR}ppo_micro_batch_size_per_gpu"
    if settings[f"{ACTOR}use_dynamic_bsz"] or micro not in settings:
        count, keys = settings.integer(dynamic) * layout.context, (dynamic,)
        why = f"x {layout.context} context parallel ranks" if layout.context > 1 else ""
    else:
        count, keys = settings.integer(micro) * longest, (micro,)
        why = f"x {longest} tokens of the longest sample"
    if count < layout.aligned(longest):
        count, why = layout.aligned(longest), "raised to the longest sample"
    yield settings.field("train.tokensPerMicroBatch", count, *keys, why=why)


def layout(settings: Settings) -> Iterator[Said]:
    yield from engine(settings)
    yield from virtual_pipeline(settings, M)
    yield from recompute(settings, f"{OVERRIDE}.")
    yield from transformer_config(settings, OVERRIDE)
    yield from other_layout(settings, f"{REF}megatron.", M, "the reference")
    yield from other_layout(settings, "critic.megatron.", M, "the critic")
    dp = "system.dp_size"
    if dp in settings:
        sizes = ("system.tp_size", "system.pp_size")
        ranks = settings.integer(dp)
        for key in sizes:
            ranks *= settings.integer(key) if key in settings else 1
        per_node = settings.integer("trainer.n_gpus_per_node")
        yield settings.field("trainer.nodes", max(1, ranks // per_node), dp, *(k for k in sizes if k in settings))
        yield settings.field("trainer.processesPerNode", min(ranks, per_node), dp)


def machines(settings: Settings) -> Iterator[Said]:
    """Trainer pods, and where the rollouts are."""
    nodes, gpus = settings.options.nodes, settings.options.gpus_per_node
    if "system.dp_size" not in settings:
        yield (
            Field("trainer.nodes", nodes, "--nodes")
            if nodes
            else settings.field("trainer.nodes", settings.integer("trainer.nnodes"), "trainer.nnodes")
        )
        key = "trainer.n_gpus_per_node"
        yield (
            Field("trainer.processesPerNode", gpus, "--gpus-per-node")
            if gpus
            else settings.field("trainer.processesPerNode", settings.integer(key), key)
        )
    others = f"{ROLLOUT}nnodes"
    if settings.integer(others) > 0:
        all_of_them = settings.integer(others) * settings.integer(f"{ROLLOUT}n_gpus_per_node")
        servers = max(1, all_of_them // settings.integer(f"{ROLLOUT}tensor_model_parallel_size"))
        yield settings.field("rollout.placement", "separate", others)
        yield settings.field("rollout.replicas", servers, others, f"{ROLLOUT}n_gpus_per_node")
    else:
        yield settings.field("rollout.placement", "colocated", f"{AR}hybrid_engine")


def rollouts(settings: Settings) -> Iterator[Said]:
    key, per_node = (
        f"{ROLLOUT}tensor_model_parallel_size",
        settings.options.gpus_per_node or settings.integer("trainer.n_gpus_per_node"),
    )
    servers_gpus = divisor(per_node, min(settings.integer(key), per_node))
    yield settings.field("rollout.tensorParallel", servers_gpus, key)
    if servers_gpus != settings[key]:
        yield settings.changed(
            key, f"{servers_gpus}: a server is in one pod, and divides its {per_node} GPU{'' if per_node == 1 else 's'}"
        )
    if settings[f"{ROLLOUT}name"] != "vllm":
        yield settings.changed(f"{ROLLOUT}name", "vLLM generates")
    expert = f"{ROLLOUT}expert_parallel_size"
    if settings.integer(expert) > 1:
        if settings[expert] == settings[f"{ROLLOUT}tensor_model_parallel_size"]:
            yield settings.field("rollout.expertParallel", True, expert)
        else:
            yield settings.lacking(expert, "experts are shared by the GPUs of one server: tensor_model_parallel_size")
    for key, given in settings.below(f"{ROLLOUT}engine_kwargs.vllm").items():
        if key.split(".")[0] == "max_model_len":
            yield given.note(Outcome.IMPLIED, "is maxPromptTokens + maxTokens")
        elif key == "disable_mm_preprocessor_cache":
            yield given.note(Outcome.IMPLIED, GONE)
        elif given.value is not None:
            first, *rest = key.split(".")
            yield given.field(".".join(["rollout.vllmArgs", first.replace("_", "-"), *rest]), given.value)


def asynchrony(settings: Settings) -> Iterator[Said]:
    """Over-sampling, and generation ahead of training."""
    rate = f"{ROLLOUT}over_sample_rate"
    if settings.number(rate):
        size = max(1, prompts(settings))
        begun = min(2 * size, round(size / max(0.5, 1 - settings.number(rate))))
        yield settings.field("train.overSampling", begun / size, rate)
    mode = "trainer.v1.trainer_mode"
    if settings[mode] == "separate_async" or settings.integer(f"{ROLLOUT}nnodes") > 0:
        key = mode if mode in settings else f"{ROLLOUT}nnodes"
        yield settings.field("train.staleness", 1, key)
        yield settings.field("algorithm.rolloutCorrection.bypass", True, key)
    elif settings[mode] != "sync":
        yield settings.lacking(
            mode, "colocated rollouts generate between steps: see train.overSampling and train.partialRollouts"
        )
    for key in ("trainer.v1.separate_async.parameter_sync_step", "async_training.trigger_parameter_sync_step"):
        if key in settings and settings[key] != 1 and not streams(settings):
            yield settings.lacking(key, "weights are published after every step")
    if "async_training.staleness_threshold" in settings and settings.number("async_training.staleness_threshold") > 1:
        yield settings.lacking("async_training.staleness_threshold", "samples are at most one update old")


def evaluation(settings: Settings) -> Iterator[Said]:
    often = settings["trainer.test_freq"] is not False and settings.number("trainer.test_freq") > 0
    if not (often or settings["trainer.val_only"]) or not settings["data.val_files"]:
        if settings["data.val_files"] and settings["trainer.val_before_train"]:
            text = "verl evaluates once, before the first step: set evaluation.everySteps to train.steps, for there and after the last"
            yield settings.lacking("trainer.val_before_train", text)
        return
    key = f"{ROLLOUT}val_kwargs.temperature"
    yield settings.field("evaluation.sampling.temperature", float(settings.number(key)), key)
    narrow = [f"{ROLLOUT}val_kwargs.{name}" for name in ("top_p", "top_k", "n")]
    yield from responses(settings, bool(settings.number(key)), *narrow)
    yield settings.field(
        "evaluation.sampling.maxTokens", settings.integer("data.max_response_length"), "data.max_response_length"
    )


def checkpoints(settings: Settings) -> Iterator[Said]:
    project, experiment = settings["trainer.project_name"], settings["trainer.experiment_name"]
    yield from places.written(
        settings, "checkpoint.path", "trainer.default_local_dir", f"checkpoints/{project}/{experiment}"
    )
    yield from places.name(settings, "trainer.experiment_name")
    keep = "trainer.max_actor_ckpt_to_keep"
    yield from places.kept(settings, keep)
    contents = f"{ACTOR}checkpoint.save_contents"
    if contents in settings:
        yield settings.field(
            "checkpoint.exportHuggingFace",
            "hf_model" in items(settings[contents]),
            contents,
            why="at the end of the job",
        )
    timeout = f"{AR}nccl_timeout"
    if timeout in settings and settings.integer(timeout) > LifecycleSpec().stall_timeout_seconds:
        yield settings.field("lifecycle.stallTimeoutSeconds", settings.integer(timeout), timeout)


def learning(settings: Settings) -> Iterator[Said]:
    """Optimizers of policy and critic. verl's schedule moves on once in a call of update_actor, whatever mini-batches and epochs it has."""
    passes, minis = settings.integer(f"{ACTOR}ppo_epochs"), mini_batches(settings)
    counted = passes * (settings.integer(FETCHED) if streams(settings) else minis)
    roles = {ACTOR: "train.optimizer", **({"critic.": "critic.optimizer"} if is_gae(settings) else {})}
    for prefix, target in roles.items():
        total = length(settings).total(settings)
        yield from optimizer(settings, prefix, target, total, passes * minis, counted)
        yield from clipped(settings, prefix, target)
    if is_gae(settings):
        yield from critic(settings)
        yield from critic_mean(settings)


def optimizer(
    settings: Settings, prefix: str, target: str, total: int | None, updates: int, counted: int = 1
) -> Iterator[Said]:
    o = f"{prefix}optim."
    betas = settings[f"{o}betas"]
    if not isinstance(betas, list) or len(betas) != 2:
        yield settings.problem(f"{show(betas)} is no pair of numbers", f"{o}betas")
    else:
        yield settings.field(f"{target}.beta1", betas[0], f"{o}betas")
        yield settings.field(f"{target}.beta2", betas[1], f"{o}betas")
    yield from Warmup(f"{o}lr_warmup_steps", f"{o}lr_warmup_steps_ratio", f"{target}.warmupSteps").said(
        settings, total, updates, counted
    )
    falls = settings[f"{o}lr_decay_style"] in ("linear", "cosine")
    if falls and settings.number(f"{o}min_lr"):
        yield settings.field(f"{target}.minLearningRate", settings.number(f"{o}min_lr"), f"{o}min_lr")
    elif falls and settings[f"{o}min_lr_ratio"]:
        low = product(settings.number(f"{o}min_lr_ratio"), settings.number(f"{o}lr"))
        yield settings.field(f"{target}.minLearningRate", low, f"{o}min_lr_ratio", f"{o}lr")
    elif f"{o}min_lr" in settings and settings.number(f"{o}min_lr"):
        yield settings.implied(f"{o}min_lr", "a constant rate has no end")
    yield from moments(settings, o, target)


def clipped(settings: Settings, prefix: str, target: str) -> Iterator[Said]:
    """The bound of the gradient's norm, for which verl's workers for FSDP had a key of their own until 0.7."""
    key, newer = f"{prefix}grad_clip", f"{prefix}optim.clip_grad"
    if key not in settings:
        return
    if on_megatron(settings) or newer in settings:
        yield settings.implied(key, f"of FSDP's older workers; {newer} decides")
    else:
        yield settings.field(f"{target}.clipGrad", settings.number(key), key)


def moments(settings: Settings, o: str, target: str) -> Iterator[Said]:
    """The type of Adam's moments, which Megatron's optimizer has by a switch and a key for each."""
    switch, keys = f"{o}use_precision_aware_optimizer", [f"{o}{key}_dtype" for key in MOMENTS]
    kinds = {settings[key] for key in keys} if settings[switch] else set()
    if kinds <= FLOAT32:
        yield from (settings.implied(key, "moments are float32") for key in (switch, *keys) if key in settings)
    else:
        text = f"moments are float32; with trainer.offload.update both may be bfloat16: {target}.momentsDtype"
        yield settings.lacking(switch, text)


def critic(settings: Settings) -> Iterator[Said]:
    yield settings.field("critic", {}, "algorithm.adv_estimator")
    if "critic.model.path" in settings and settings["critic.model.path"] != settings[f"{MODEL}path"]:
        yield from places.located(settings, "critic.path", "critic.model.path")
    for key, own in (
        ("critic.ppo_epochs", f"{ACTOR}ppo_epochs"),
        ("critic.ppo_mini_batch_size", f"{ACTOR}ppo_mini_batch_size"),
    ):
        if key in settings and settings[key] != settings[own]:
            yield settings.changed(key, f"the critic learns in the policy's passes: {show(settings[own])}")


def critic_mean(settings: Settings) -> Iterator[Said]:
    """verl's critic averages as its policy does, unless it has a key of its own."""
    own = "critic.loss_agg_mode"
    key = own if own in settings else f"{ACTOR}loss_agg_mode"
    if settings[key] not in (None, "token-mean"):
        yield settings.changed(
            key, "the critic's loss is the mean over the response tokens of a mini-batch: token-mean"
        )


def reference(settings: Settings) -> Iterator[Said]:
    if settings[f"{REF}megatron.use_dist_checkpointing"] and has_reference(settings):
        key = f"{REF}megatron.dist_checkpointing_path"
        if settings[key] != settings[f"{M}dist_checkpointing_path"]:
            yield settings.lacking(key, "the reference is read from its Hugging Face directory: reference.path")


def streams(settings: Settings) -> bool:
    return settings.integer(SIZE) == 0


def updates(settings: Settings) -> int:
    """Mini-batches between two publications of weights."""
    return max(1, settings.integer(SYNC) * settings.integer(FETCHED))


def prompts(settings: Settings) -> int:
    """Of a step of an RLJob, which ends with a publication."""
    return updates(settings) * settings.integer(MINI) if streams(settings) else settings.integer(SIZE)


def streamed(settings: Settings) -> Iterator[Said]:
    """Batches, and how long it trains: prompts in all, where the file counts them."""
    keys, why = (MINI, FETCHED, SYNC), "prompts between two publications of weights"
    yield settings.field("train.promptsPerStep", prompts(settings), *keys, why=why)
    yield settings.field("train.miniBatches", updates(settings), *keys[1:])
    if TOTAL in settings:
        total = max(1, settings.integer(TOTAL) // max(1, prompts(settings)))
        yield settings.field("train.steps", total, TOTAL, why=f"{prompts(settings)} prompts in a step")


RULES = (
    sources,
    amounts,
    layout,
    machines,
    rollouts,
    asynchrony,
    learning,
    reference,
    distillation,
    evaluation,
    checkpoints,
    places.pods,
)
