"""What all of ROLL's pipelines say alike: model, files, directory, trackers, variables."""

from collections.abc import Iterator

from rljob_import.readers.arithmetic import devices
from rljob_import.settings import NotANumber, Settings
from rljob_import.shared import places
from rljob_import.shared.adapters import adapters
from rljob_import.shared.fsdp import checkpointed, other_trainer, shared_sequences, with_ulysses
from rljob_import.shared.megatron import RoleLayout, other_layout, recompute, transformer_config, virtual_pipeline
from rljob_import.shared.training import Length, Warmup
from rljob_import.shared.values import divisor, items
from rljob_import.table import Field, Said

ALPACA = ("instruction", "input", "output")
HANDED_ON = ("NCCL_", "VLLM_", "TORCH_", "WANDB_", "HF_")


def sources(settings: Settings) -> Iterator[Said]:
    yield from places.located(settings, "model.path", "pretrain")
    yield from places.files(settings, "data.train", f"{role(settings)}data_args.file_name")
    yield from places.files(settings, "data.validation", "validation.data_args.file_name")
    yield from places.name(settings, "exp_name")
    key = "checkpoint_config.output_dir" if "checkpoint_config.output_dir" in settings else "output_dir"
    yield from places.written(settings, "checkpoint.path", key, "output")
    yield from places.kept(settings, "max_ckpt_to_keep")
    if "validation.data_args.file_name" in settings:
        yield settings.field("evaluation.everySteps", max(0, settings.integer("eval_steps")), "eval_steps")


def tuning(settings: Settings) -> Iterator[Said]:
    """LoRA, where the model's section of the role that learns has targets."""
    m = f"{role(settings)}model_args."
    if not settings[f"{m}lora_target"]:
        without = "without lora_target all parameters are trained, in ROLL too"
        yield from (settings.implied(f"{m}{k}", without) for k in ("lora_rank", "lora_alpha") if f"{m}{k}" in settings)
    else:
        rank = settings.integer(f"{m}lora_rank")
        alpha = settings.integer(f"{m}lora_alpha") if settings[f"{m}lora_alpha"] else 2 * rank
        yield from adapters(settings, f"{m}lora_rank", f"{m}lora_alpha", f"{m}lora_target", (rank, alpha))


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


def environment(settings: Settings) -> Iterator[Said]:
    given = {name: g for name, g in settings.below("system_envs").items() if name.startswith(HANDED_ON)}
    env = [{"name": name, "value": str(g.value)} for name, g in given.items()]
    if settings["track_with"] == "wandb":
        env.append({"name": "WANDB_PROJECT", "value": str(settings["tracker_kwargs.project"] or settings["exp_name"])})
        yield settings.changed("track_with", "needs WANDB_API_KEY from a Secret in spec.envFrom")
    elif settings["track_with"] not in (None, "tensorboard", "stdout"):
        yield settings.lacking("track_with", "metrics are written to TensorBoard and metrics.jsonl")
    if env:
        yield Field("env", env, "system_envs, track_with", settings.names("track_with"))


def role(settings: Settings) -> str:
    """The prefix of the role that learns."""
    return "sft_train." if "sft_train.training_args.learning_rate" in settings.system_keys else "actor_train."


def config(settings: Settings) -> str:
    return f"{role(settings)}strategy_args.strategy_config."


def on_megatron(settings: Settings) -> bool:
    return bool(settings[f"{role(settings)}strategy_args.strategy_name"] == "megatron_train")


def policy_layout(settings: Settings) -> RoleLayout:
    sizes = RoleLayout.of(settings, config(settings))
    key = f"{role(settings)}model_args.ulysses_size"
    return sizes if on_megatron(settings) else with_ulysses(settings, sizes, key)


def gpus(settings: Settings, key: str) -> list[int]:
    """The numbers of a device_mapping. Raises NotANumber."""
    value = settings[key]
    numbers = value if isinstance(value, list) else devices(str(value)) if value is not None else []
    if numbers is None:
        raise NotANumber(key, value)
    return numbers


def machine(settings: Settings) -> tuple[int, int]:
    """Nodes, and ranks of each."""
    options, ranks = settings.options, len(gpus(settings, f"{role(settings)}device_mapping"))
    per_node = options.gpus_per_node or min(settings.integer("num_gpus_per_node"), ranks or 1)
    return options.nodes or max(1, ranks // per_node), per_node


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
    if not on_megatron(settings):
        m = f"{role(settings)}model_args."
        yield other_trainer(settings, f"{role(settings)}strategy_args.strategy_name")
        key = f"{m}disable_gradient_checkpointing"
        yield from checkpointed(settings, key, not settings[key], c)
        yield from shared_sequences(settings, f"{m}ulysses_size")
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


def other_roles(settings: Settings) -> Iterator[Said]:
    yield from other_layout(settings, "reference.strategy_args.strategy_config.", config(settings), "the reference")


def samples(settings: Settings) -> int:
    """Samples of an optimizer step."""
    nodes, ranks = machine(settings)
    t, copies = (
        f"{role(settings)}training_args.",
        max(1, nodes * ranks // policy_layout(settings).copy),
    )
    return (
        settings.integer(f"{t}per_device_train_batch_size")
        * settings.integer(f"{t}gradient_accumulation_steps")
        * copies
    )


def tokens(settings: Settings, longest: int) -> Iterator[Said]:
    r, least = role(settings), policy_layout(settings).aligned(longest)
    dynamic, packed = (
        f"{r}max_tokens_per_microbatch_in_train",
        f"{r}sequence_packing_args.max_packed_sequence_length_train",
    )
    each = f"{r}training_args.per_device_train_batch_size"
    if settings[f"{r}use_dynamic_batching_in_train"] and dynamic in settings:
        count, key = settings.integer(dynamic), dynamic
    elif settings[f"{r}use_sequence_packing"] and packed in settings:
        count, key = settings.integer(packed), packed
    else:
        count, key = settings.integer(each) * longest, each
    why = f"at least {least} tokens of the longest sample"
    yield settings.field("train.tokensPerMicroBatch", max(count, least), key, why=why)


def learning(settings: Settings, per_step: int, updates: int) -> Iterator[Said]:
    t = f"{role(settings)}training_args."
    length = lasting(settings, per_step)
    yield from length.said(settings)
    yield from Warmup(f"{t}warmup_steps", f"{t}warmup_ratio").said(settings, length.total(settings), updates)


def lasting(settings: Settings, per_step: int) -> Length:
    """Steps alone count for RLVR, epochs alone for sft, and what ends first for dpo."""
    counts_steps, pairs = role(settings) == "actor_train.", "chosen_key" in settings.system_keys
    epochs = f"{role(settings)}training_args.num_train_epochs"
    return Length("max_steps" if counts_steps else "", epochs, per_step, first=counts_steps and pairs)


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
    updates = exact * settings.integer("ppo_epochs")
    yield from learning(settings, prompts, updates)
    if has_critic(settings):
        yield from _critic(settings, prompts, updates)
    longest = settings.integer("prompt_length") + response(settings)
    yield from tokens(settings, longest)
    yield settings.field("rollout.sampling.maxTokens", response(settings), *response_keys(settings))
    if "sequence_length" in settings and "response_length" in settings:
        yield settings.implied("response_length", "sequence_length decides, in ROLL too")


def has_critic(settings: Settings) -> bool:
    return settings["adv_estimator"] == "gae" and not settings["is_pure_opd"]


def _critic(settings: Settings, prompts: int, updates: int) -> Iterator[Said]:
    c, total = "critic.training_args.", lasting(settings, prompts)
    keys = f"{c}warmup_steps", f"{c}warmup_ratio"
    yield from Warmup(*keys, "critic.optimizer.warmupSteps").said(settings, total.total(settings), updates)


def response(settings: Settings) -> int:
    """Source: BaseConfig.__post_init__ and RLVRConfig.__post_init__ of ROLL."""
    if "sequence_length" in settings:
        return settings.integer("sequence_length") - settings.integer("prompt_length")
    return settings.integer("response_length")


def response_keys(settings: Settings) -> tuple[str, ...]:
    return ("sequence_length", "prompt_length") if "sequence_length" in settings else ("response_length",)


def supervised(settings: Settings) -> Iterator[Said]:
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
    longest = policy_layout(settings).aligned(settings.integer("sequence_length")) * (2 if dpo else 1)
    yield from tokens(settings, longest)
    yield from (pairs if dpo else answers)(settings)


def pairs(settings: Settings) -> Iterator[Said]:
    """Source: loss_fn of ROLL's DPO."""
    if settings["ipo"]:
        yield settings.field("dpo.loss", "ipo", "ipo")
        yield settings.changed("ipo", "of means over the tokens of an answer, and in ROLL of sums: choose another beta")


def answers(settings: Settings) -> Iterator[Said]:
    """Source: SFTPipeline of ROLL."""
    yield Field("data.shuffle", False, "ROLL's sft reads rows in their order")
    keys = ("prompt_key", "query_key", "response_key")
    if "query_key" not in settings:
        yield settings.field("data.format", "columns", "prompt_key")
        yield settings.field("data.promptKey", settings["prompt_key"], "prompt_key")
        yield settings.field("data.responseKey", settings["response_key"], "response_key")
        return
    yield settings.field("data.format", "alpaca", *keys)
    names = tuple(settings[key] for key in keys)
    if names != ALPACA:
        yield settings.problem(f"columns {', '.join(map(str, names))} have to be called {', '.join(ALPACA)}", *keys)
