"""RLinf: reasoning jobs (`runner.task_type: reasoning`), YAML of Hydra with resolvers of its own."""

from collections.abc import Iterator, Mapping
from typing import Any

from kubectl_rljob.importer import places
from kubectl_rljob.importer.amounts import Length, Warmup
from kubectl_rljob.importer.hydra import plain
from kubectl_rljob.importer.interpolation import flatten, resolve
from kubectl_rljob.importer.megatron import (
    Layout,
    layout_rows,
    recompute,
    recompute_rows,
    transformer_config,
    transformer_row,
    virtual_pipeline,
)
from kubectl_rljob.importer.settings import Settings, System, show
from kubectl_rljob.importer.sources import Source, tree_of
from kubectl_rljob.importer.table import Field, Note, Outcome, Problem, Row, Said, becomes, implied, lacks, must, read
from kubectl_rljob.importer.values import at_least, choice, divisor
from rljob_api.spec.job import MOST_CHECKPOINTS, LifecycleSpec

ADVANTAGES = {"grpo": "grpo", "gae": "gae", "reinpp": "reinforce++", "rloo": "rloo"}
AGGREGATIONS = {
    "token-mean": "tokenMean",
    "seq-mean-token-mean": "sequenceMeanTokenMean",
    "seq-mean-token-sum-norm": "sequenceMeanTokenSumNorm",
}
ESTIMATORS = {"low_var_kl": "k3", "k3": "k3", "mse": "k2", "k2": "k2", "kl": "k1", "k1": "k1"}
DECAYS = choice(constant="constant", linear="linear", cosine="cosine")
SAYS = "config.json or the trainer says it"
SHAPE = (
    "add_bias_linear",
    "activation",
    "normalization",
    "position_embedding_type",
    "moe_router_topk",
    "init_method_std",
    "init_method",
)
RUN = (
    "seq_length",
    "encoder_seq_length",
    "max_position_embeddings",
    "variable_seq_lengths",
    "use_cpu_initialization",
    "batch_p2p_comm",
)
QUIET_OPTIMIZER = (
    "bf16",
    "fp16",
    "loss_scale",
    "optimizer_enable_pin",
    "overlap_param_gather_with_optimizer_step",
    "loss_scale_window",
    "use_precision_aware_optimizer",
)
DISTRIBUTION = "training samples from the whole distribution"


def optimizer_rows(prefix: str, target: str, rate: float) -> tuple[Row, ...]:
    o, s = f"{prefix}optim.", f"{prefix}lr_sched."
    return (
        becomes(f"{o}lr", f"{target}.learningRate", rate),
        becomes(f"{o}adam_beta1", f"{target}.beta1", 0.9),
        becomes(f"{o}adam_beta2", f"{target}.beta2", 0.95),
        becomes(f"{o}adam_eps", f"{target}.epsilon", 1e-8),
        becomes(f"{o}weight_decay", f"{target}.weightDecay", 0.0),
        becomes(f"{o}clip_grad", f"{target}.clipGrad", 1.0),
        lacks(f"{o}optimizer", "the optimizer is AdamW", "adam", "adamw"),
        must(f"{o}use_distributed_optimizer", True, "the optimizer is always distributed"),
        read(f"{o}min_lr", f"{target}.minLearningRate"),
        becomes(f"{s}lr_decay_style", f"{target}.decay", "constant", DECAYS),
        read(f"{s}min_lr", f"{target}.minLearningRate", 0.0),
        read(f"{s}lr_warmup_iters", f"{target}.warmupSteps", 0),
        read(f"{s}lr_warmup_fraction", f"{target}.warmupSteps", 0.0, text="needs --rows while epochs are given"),
        lacks(f"{s}lr_warmup_init", "the warm-up begins at 0", 0, 0.0),
        implied(f"{s}lr_decay_iters", "the rate falls until the last step"),
        implied(f"{s}max_lr", f"is {o}lr"),
        *(implied(f"{o}{key}") for key in QUIET_OPTIMIZER),
        lacks(f"{o}optimizer_cpu_offload", "see trainer.offload.optimizer"),
        *(implied(f"{s}{key}") for key in ("weight_decay_incr_style", "start_weight_decay", "end_weight_decay")),
    )


RUNNER = (
    read("runner.task_type", "task", "reasoning"),
    read("cluster.num_nodes", "trainer.nodes", 1),
    read("cluster.component_placement.*", "rollout.placement", text="all, or ranges of GPUs: separate"),
    read("runner.max_steps", "train.steps"),
    read("runner.max_epochs", "train.epochs", 1, text="with --rows: train.steps"),
    becomes("runner.save_interval", "checkpoint.everySteps", 50, at_least(0)),
    becomes("runner.val_check_interval", "evaluation.everySteps", 0, at_least(0)),
    read("runner.resume_dir", "checkpoint.resume", text="auto; a directory of RLinf's is not read"),
    read("runner.output_dir", "checkpoint.path", "../results"),
    read("runner.experiment_name", "metadata.name", "rlinf"),
    read("runner.logger.logger_backends", "env", ["tensorboard"], text="wandb: WANDB_PROJECT"),
    read("runner.logger.project_name", "env", "rlinf"),
    *(implied(f"runner.logger.{key}") for key in ("log_path", "experiment_name")),
    read("runner.seq_length", "rollout.sampling.maxTokens", 4096, text="- data.max_prompt_length"),
    read("runner.enable_dynamic_batch_size", "train.tokensPerMicroBatch", False),
    read("runner.max_tokens_per_mbs", "train.tokensPerMicroBatch"),
    *(implied(f"runner.{key}") for key in ("log_interval", "ckpt_path", "enable_profiler")),
    lacks("cluster.auto_scheduler", "a job's GPUs are the same throughout"),
    *(
        implied(f"cluster.{key}")
        for key in ("use_pre_process_policy", "use_wait_before_last_iter_policy", "recreate_nccl_groups")
    ),
    *(implied(key) for key in ("hydra.*", "defaults")),
)

DATA = (
    becomes("data.rollout_batch_size", "train.promptsPerStep", 512),
    becomes("data.max_prompt_length", "data.maxPromptTokens", 1024),
    becomes("data.prompt_key", "data.promptKey", "prompt"),
    becomes("data.answer_key", "data.answerKey"),
    becomes("data.apply_chat_template", "data.chatTemplate", False),
    becomes("data.shuffle", "data.shuffle", True),
    becomes("data.seed", "data.seed"),
    read("data.train_data_paths", "data.train"),
    read("data.val_data_paths", "data.validation"),
    lacks("data.type", "prompts are text", "math"),
    *(lacks(f"data.{key}", "models read text only") for key in ("image_keys", "lazy_loading", "use_chat_template")),
    *(
        implied(f"data.{key}")
        for key in (
            "dataset_name",
            "filter_prompt_by_length",
            "num_workers",
            "val_rollout_batch_size",
            "validation_shuffle",
        )
    ),
)

ALGORITHM = (
    becomes("algorithm.group_size", "train.samplesPerPrompt", 1),
    read("algorithm.n_minibatches", "train.miniBatches", 1),
    read("algorithm.training_batch_size_per_gpu", "train.tokensPerMicroBatch", 1, text="x runner.seq_length"),
    read("algorithm.adv_type", "algorithm.advantage", "grpo"),
    read("algorithm.normalize_advantages", "algorithm.group.divideByStd", True),
    read("algorithm.gamma", "algorithm.gamma", 1.0),
    read("algorithm.gae_lambda", "algorithm.gaeLambda", 1.0),
    read("algorithm.ratio_clip_eps", "algorithm.clip.low, algorithm.clip.high", 0.2),
    read("algorithm.clip_ratio_low", "algorithm.clip.low"),
    read("algorithm.clip_ratio_high", "algorithm.clip.high"),
    becomes("algorithm.clip_ratio_c", "algorithm.clip.dual"),
    read("algorithm.kl_beta", "algorithm.kl.coefficient", 0.0),
    lacks("algorithm.reinpp_kl_beta", "the penalty in the loss is algorithm.kl_beta", 0, 0.0),
    read("algorithm.use_reinpp_baseline", "algorithm.advantage", False, text="reinforce++-baseline"),
    read("algorithm.kl_penalty_type", "algorithm.kl.estimator", "low_var_kl"),
    becomes("algorithm.entropy_bonus", "algorithm.entropyCoefficient", 0.0),
    read("algorithm.loss_agg_func", "algorithm.aggregation", "token-mean"),
    lacks("algorithm.loss_type", "the loss is PPO's", "actor", "actor_critic", "ppo"),
    read("algorithm.recompute_logprobs", "algorithm.rolloutCorrection.bypass", True),
    read("algorithm.importance_sampling_fix", "algorithm.rolloutCorrection.importanceSampling", False),
    read("algorithm.importance_sampling_clip", "algorithm.rolloutCorrection.cap", 2.0),
    lacks("algorithm.early_stop_imp_ratio", "no optimizer step is left out for its ratios; see algorithm.clip"),
    lacks("algorithm.use_valid_token_scale", "see algorithm.aggregation"),
    read("algorithm.max_num_gen_batches", "algorithm.dynamicSampling.maxRounds", 1),
    becomes("algorithm.value_cliprange", "critic.clip"),
    becomes("algorithm.critic_warmup_steps", "critic.warmupSteps"),
    *(
        implied(f"algorithm.{key}")
        for key in ("rollout_batch_size_per_gpu", "logprob_forward_micro_batch_size", "val_rollout_batch_size_per_gpu")
    ),
    *(
        implied(f"algorithm.{key}")
        for key in ("shuffle_rollout", "calculate_entropy", "max_inflight_gen_batches", "huber_delta")
    ),
    becomes("algorithm.sampling_params.temperature", "rollout.sampling.temperature", 1.0),
    read("algorithm.sampling_params.max_new_tokens", "rollout.sampling.maxTokens"),
    must(
        "algorithm.sampling_params.do_sample",
        True,
        "training always samples",
        also=("algorithm.sampling_params.use_greedy",),
    ),
    lacks("algorithm.sampling_params.top_k", DISTRIBUTION, 1000000, -1, 0),
    lacks("algorithm.sampling_params.top_p", DISTRIBUTION, 1, 1.0),
    lacks("algorithm.sampling_params.repetition_penalty", DISTRIBUTION, 1, 1.0),
    lacks("algorithm.sampling_params.min_new_tokens", DISTRIBUTION, 0, 1),
)

ROLLOUT = (
    read("rollout.rollout_backend", "", "vllm", text="vLLM generates"),
    read("rollout.model.model_path", "model.path", also=("rollout.model_dir",)),
    read("rollout.tensor_parallel_size", "rollout.tensorParallel", 1),
    lacks("rollout.pipeline_parallel_size", "a server is cut by tensor parallelism only", 1),
    becomes("rollout.gpu_memory_utilization", "rollout.vllmArgs.gpu-memory-utilization"),
    becomes("rollout.enforce_eager", "rollout.vllmArgs.enforce-eager"),
    becomes("rollout.max_running_requests", "rollout.vllmArgs.max-num-seqs"),
    becomes("rollout.vllm.enable_chunked_prefill", "rollout.vllmArgs.enable-chunked-prefill"),
    becomes("rollout.vllm.enable_prefix_caching", "rollout.vllmArgs.enable-prefix-caching"),
    becomes("rollout.vllm.max_num_batched_tokens", "rollout.vllmArgs.max-num-batched-tokens"),
    *(
        implied(f"rollout.vllm.{key}")
        for key in ("attention_backend", "enable_flash_infer_sampler", "torch_profiler_dir")
    ),
    implied("rollout.sglang.*", "of a server other than vLLM"),
    *(
        implied(f"rollout.{key}")
        for key in ("group_name", "distributed_executor_backend", "disable_log_stats", "detokenize", "padding", "eos")
    ),
    *(
        implied(f"rollout.{key}")
        for key in ("attention_backend", "return_logprobs", "validate_weight", "validate_save_dir", "print_outputs")
    ),
    *(
        implied(f"rollout.{key}")
        for key in (
            "cuda_graph_max_bs",
            "use_torch_compile",
            "torch_compile_max_bs",
            "sglang_decode_log_interval",
            "model_arch",
        )
    ),
    *(implied(f"rollout.model.{key}") for key in ("model_type", "precision")),
    *(
        implied(f"rollout.{key}")
        for key in ("load_format", "weight_reload", "recompute_logprobs", "unload_weight", "backend")
    ),
)

ACTOR = (
    must("actor.training_backend", "megatron", "the trainer is Megatron: choose trainer.parallelism"),
    read("actor.model.precision", "model.dtype", "bf16", text="fp16: bfloat16"),
    read("actor.model.model_path", "model.path"),
    read("actor.megatron.ckpt_convertor.hf_model_path", "model.path"),
    read("actor.tokenizer.tokenizer_model", "model.path"),
    becomes("actor.tokenizer.trust_remote_code", "model.trustRemoteCode"),
    read("actor.model.megatron_checkpoint", "model.megatronCheckpoint"),
    must(
        "actor.megatron.use_hf_ckpt",
        True,
        "weights are read from the Hugging Face directory, or model.megatronCheckpoint",
    ),
    *(
        implied(f"actor.megatron.{key}", "Hugging Face weights are read directly")
        for key in ("mbridge", "ckpt_convertor.*", "use_dist_ckpt", "ckpt_format")
    ),
    *layout_rows("actor.model.", {"sequence_parallel": False}),
    *recompute_rows("actor.model."),
    becomes("actor.optim.overlap_grad_reduce", "trainer.overlap.gradReduce"),
    becomes("actor.optim.overlap_param_gather", "trainer.overlap.paramGather"),
    becomes("actor.offload_optimizer", "trainer.offload.optimizer", False),
    becomes("actor.offload_weight", "trainer.offload.parameters", False),
    becomes("actor.offload_grad", "trainer.offload.gradients", False),
    *(implied(f"actor.model.{key}", SAYS) for key in (*SHAPE, *RUN)),
    *(implied(f"actor.model.{key}") for key in ("model_type", "spec_name", "openpi.*", "is_lora")),
    transformer_row("actor.model"),
    *optimizer_rows("actor.", "train.optimizer", 1e-6),
    read(
        "actor.megatron.distributed_timeout_minutes", "lifecycle.stallTimeoutSeconds", text="if longer than the default"
    ),
    *(
        implied(f"actor.megatron.{key}")
        for key in (
            "ddp_bucket_size",
            "distributed_backend",
            "tp_comm_bootstrap_backend",
            "tp_comm_overlap_cfg",
            "use_profiler",
        )
    ),
    *(
        implied(f"actor.megatron.{key}")
        for key in (
            "profiler.*",
            "transformer_impl",
            "swiglu",
            "untie_embeddings_and_output_weights",
            "te_precision_config_file",
            "accumulate_allreduce_grads_in_fp32",
        )
    ),
    *(implied(f"actor.tokenizer.{key}") for key in ("use_fast", "padding_side")),
    *(
        implied(f"actor.{key}")
        for key in (
            "group_name",
            "mcore_gpt",
            "spec_name",
            "enable_dp_load_balance",
            "calculate_flops",
            "seed",
            "fsdp_config.*",
        )
    ),
    *(
        implied(f"actor.{key}")
        for key in ("checkpoint_save_path", "enable_offload", "micro_batch_size", "global_batch_size")
    ),
    read("reward.reward_type", "rewards", "math"),
    read("reward.reward_scale", "rewards[].weight", 1.0),
    lacks("reward.use_reward_model", "see spec.rewards[].vllm and spec.rewards[].model"),
    *(implied(f"reward.{key}") for key in ("group_name", "tokenizer.*", "custom_fn.*")),
    lacks("critic.use_critic_model", "follows from algorithm.adv_type", True),
    *optimizer_rows("critic.", "critic.optimizer", 1e-5),
    *(
        implied(f"critic.{key}", "the critic is on the trainer's ranks, in their layout")
        for key in ("model.*", "megatron.*", "group_name", "training_backend")
    ),
    *(
        implied(f"critic.{key}")
        for key in (
            "tokenizer.*",
            "mcore_gpt",
            "spec_name",
            "seed",
            "offload_optimizer",
            "offload_weight",
            "offload_grad",
        )
    ),
    *(implied(f"critic.optim.overlap_{key}", "as the policy's") for key in ("grad_reduce", "param_gather")),
    *(implied(f"critic.{key}") for key in ("enable_dp_load_balance", "calculate_flops", "fsdp_config.*")),
    *(implied(key, "log-probabilities are the trainer's") for key in ("inference.*",)),
)


def sources(settings: Settings) -> Iterator[Said]:
    if settings["runner.task_type"] not in ("reasoning", "math"):
        yield Problem(
            settings.origin("runner.task_type"), f"{settings['runner.task_type']} is no task of an RLJob; reasoning is"
        )
    keys = (
        "actor.megatron.ckpt_convertor.hf_model_path",
        "actor.model.model_path",
        "rollout.model.model_path",
        "actor.tokenizer.tokenizer_model",
    )
    given = [key for key in keys if key in settings]
    if not given:
        yield Problem("rollout.model.model_path", "is missing")
        return
    yield from places.found(settings, "model.path", given[0])
    for key in given[1:]:
        if str(settings[key]).rstrip("/") != str(settings[given[0]]).rstrip("/"):
            yield Problem(
                settings.origin(key), f"{settings[key]} is another directory than {given[0]}; an RLJob has one model"
            )
    if "actor.model.megatron_checkpoint" in settings:
        yield from places.found(settings, "model.megatronCheckpoint", "actor.model.megatron_checkpoint")
    precision = "actor.model.precision"
    if str(settings[precision]) in ("fp16", "16", "float16"):
        yield settings.changed(precision, "bfloat16 in its place, without loss scaling")
    elif str(settings[precision]) in ("fp32", "32", "float32"):
        yield settings.field("model.dtype", "float32", precision)
    yield from places.files(settings, "data.train", "data.train_data_paths")
    yield from places.files(settings, "data.validation", "data.val_data_paths")


def longest(settings: Settings) -> int:
    return settings.integer("runner.seq_length")


def response(settings: Settings) -> int:
    return longest(settings) - settings.integer("data.max_prompt_length")


def amounts(settings: Settings) -> Iterator[Said]:
    prompts, mini = settings.integer("data.rollout_batch_size"), "algorithm.n_minibatches"
    updates = divisor(prompts, settings.integer(mini))
    yield settings.field("train.miniBatches", updates, mini)
    if updates != settings[mini]:
        yield settings.changed(mini, f"{updates}: prompts are divided evenly")
    length = Length("runner.max_steps", "runner.max_epochs", prompts)
    yield from length.said(settings)
    for prefix, target in (("actor.", "train.optimizer"), ("critic.", "critic.optimizer")):
        s, o = f"{prefix}lr_sched.", f"{prefix}optim."
        yield from Warmup(f"{s}lr_warmup_iters", f"{s}lr_warmup_fraction", f"{target}.warmupSteps").said(
            settings, length.total(settings), updates
        )
        low = f"{s}min_lr" if settings[f"{s}min_lr"] else f"{o}min_lr"
        if settings[f"{s}lr_decay_style"] != "constant" and settings[low]:
            yield settings.field(f"{target}.minLearningRate", settings.number(low), low)
    yield settings.field(
        "rollout.sampling.maxTokens", response(settings), "runner.seq_length", "data.max_prompt_length"
    )
    yield from micro_batches(settings)


def micro_batches(settings: Settings) -> Iterator[Said]:
    least, dynamic = Layout.of(settings, "actor.model.").aligned(longest(settings)), "runner.max_tokens_per_mbs"
    if settings["runner.enable_dynamic_batch_size"] and dynamic in settings:
        yield settings.field("train.tokensPerMicroBatch", max(least, settings.integer(dynamic)), dynamic)
    else:
        key = "algorithm.training_batch_size_per_gpu"
        yield settings.field(
            "train.tokensPerMicroBatch", max(least, settings.integer(key) * longest(settings)), key, "runner.seq_length"
        )


def algorithm(settings: Settings) -> Iterator[Said]:
    key = "algorithm.adv_type"
    ours = ADVANTAGES.get(settings[key])
    if ours is None:
        yield settings.lacking(key, f"the estimators are {', '.join(ADVANTAGES)}; grpo in its place")
    if ours == "reinforce++" and settings["algorithm.use_reinpp_baseline"]:
        ours = "reinforce++-baseline"
    yield settings.field("algorithm.advantage", ours or "grpo", key)
    if ours == "grpo" and settings["algorithm.normalize_advantages"] is False:
        yield settings.field("algorithm.group.divideByStd", False, "algorithm.normalize_advantages")
    if ours == "gae":
        yield settings.field("critic", {}, key)
        yield settings.field(
            "algorithm.gaeLambda", float(settings.number("algorithm.gae_lambda")), "algorithm.gae_lambda"
        )
    if ours in ("gae", "reinforce++") and settings.number("algorithm.gamma") != 1:
        yield settings.field("algorithm.gamma", float(settings.number("algorithm.gamma")), "algorithm.gamma")
    for side in ("low", "high"):
        name = f"algorithm.clip_ratio_{side}"
        name = name if name in settings else "algorithm.ratio_clip_eps"
        yield settings.field(f"algorithm.clip.{side}", float(settings.number(name)), name)
    aggregation = "algorithm.loss_agg_func"
    if settings[aggregation] not in AGGREGATIONS:
        yield settings.lacking(aggregation, f"the aggregations are {', '.join(AGGREGATIONS)}; token-mean in its place")
    yield settings.field("algorithm.aggregation", AGGREGATIONS.get(settings[aggregation], "tokenMean"), aggregation)
    yield from kl(settings)
    yield from correction(settings)


def kl(settings: Settings) -> Iterator[Said]:
    if settings.number("algorithm.kl_beta"):
        kind = "algorithm.kl_penalty_type"
        estimator = ESTIMATORS.get(settings[kind])
        yield settings.field(
            "algorithm.kl.coefficient", float(settings.number("algorithm.kl_beta")), "algorithm.kl_beta"
        )
        if estimator == "k1":
            yield settings.changed(kind, "k2 in its place: the expected gradient of k1 in the loss is zero")
            estimator = "k2"
        elif estimator is None:
            yield settings.lacking(kind, "the estimators are k2 and k3; k3 in its place")
        yield settings.field("algorithm.kl.estimator", estimator or "k3", kind)


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


def layout(settings: Settings) -> Iterator[Said]:
    yield from virtual_pipeline(settings, "actor.model.")
    yield from recompute(settings, "actor.model.")
    yield from transformer_config(settings, "actor.model")
    options, per_node = settings.options, settings.options.gpus_per_node or 8
    yield (
        Field("trainer.nodes", options.nodes, "--nodes")
        if options.nodes
        else settings.field("trainer.nodes", settings.integer("cluster.num_nodes"), "cluster.num_nodes")
    )
    yield Field(
        "trainer.processesPerNode",
        per_node,
        "--gpus-per-node" if options.gpus_per_node else "assumed: see --gpus-per-node",
    )
    key = "rollout.tensor_parallel_size"
    size = divisor(per_node, min(per_node, settings.integer(key)))
    yield settings.field("rollout.tensorParallel", size, key)
    placements = {k: str(g.value) for k, g in settings.below("cluster.component_placement").items()}
    together = any("actor" in k and "rollout" in k for k in placements) or not placements
    names = ", ".join(f"cluster.component_placement.{k}" for k in placements) or "cluster.component_placement"
    yield Field("rollout.placement", "colocated" if together else "separate", names)
    if not together:
        shown = ", ".join(f"{k}: {v}" for k, v in placements.items())
        yield Note(
            Outcome.CHANGED,
            f"cluster.component_placement = {shown}",
            "choose trainer.nodes and rollout.replicas: roles on GPUs of their own",
        )
    if settings["rollout.rollout_backend"] != "vllm":
        yield settings.changed("rollout.rollout_backend", "vLLM generates")


def rewards(settings: Settings) -> Iterator[Said]:
    kind, scale = "reward.reward_type", "reward.reward_scale"
    if settings[kind] != "math":
        yield settings.lacking(kind, "math in its place; judge it with a python or http reward of your own")
    yield settings.field("rewards", [{"rule": "math"}], kind)
    if settings.number(scale) != 1:
        grouped = settings["algorithm.adv_type"] == "grpo" and settings["algorithm.normalize_advantages"]
        text = "right is 1 and wrong is 0 here: " + (
            "the same advantages, which are normalised"
            if grouped
            else f"weight: {2 * settings.number(scale):g} has the same differences"
        )
        yield settings.changed(scale, text)
    if "data.answer_key" in settings:
        yield settings.changed(
            "data.answer_key", "RLinf's files may hold lists of answers there: store one answer, as text"
        )
    if settings["data.val_data_paths"]:
        yield settings.field("evaluation.sampling.maxTokens", response(settings), "runner.seq_length")


def output(settings: Settings) -> Iterator[Said]:
    name = settings["runner.experiment_name"]
    directory = f"{str(settings['runner.output_dir']).replace('../', '')}/{name}"
    yield from places.placed(settings, "checkpoint.path", directory, "runner.output_dir", "runner.experiment_name")
    yield from places.name(settings, "runner.experiment_name")
    yield Field("checkpoint.keepLast", MOST_CHECKPOINTS, "all are kept there; the most here")
    resume = "runner.resume_dir"
    if settings[resume] not in (None, "auto"):
        yield settings.lacking(resume, "checkpoint.resumeFrom takes an RLJob's checkpoints, not RLinf's")
    minutes = "actor.megatron.distributed_timeout_minutes"
    if minutes in settings and settings.number(minutes) * 60 > LifecycleSpec().stall_timeout_seconds:
        yield settings.field("lifecycle.stallTimeoutSeconds", int(settings.number(minutes) * 60), minutes)
    loggers = settings["runner.logger.logger_backends"]
    if "wandb" in loggers:
        yield settings.field(
            "env",
            [{"name": "WANDB_PROJECT", "value": show(settings["runner.logger.project_name"])}],
            "runner.logger.logger_backends",
        )
    if {*loggers} - {"wandb", "tensorboard"}:
        yield settings.lacking("runner.logger.logger_backends", "metrics are written to TensorBoard and metrics.jsonl")


def unread(settings: Settings) -> dict[str, str]:
    found = {} if settings["algorithm.adv_type"] == "gae" else {"critic": "only advantage gae has a critic"}
    if not settings["data.val_data_paths"]:
        found["evaluation"] = "there are no held-out prompts"
    return found


RLINF = System(
    "RLinf",
    (*RUNNER, *DATA, *ALGORITHM, *ROLLOUT, *ACTOR),
    (sources, amounts, algorithm, layout, rewards, output, places.pods),
    unread,
)


def read_file(text: str, environment: Mapping[str, str]) -> Source:
    """YAML. Raises Unreadable."""
    tree, lost = resolve(tree_of(text), environment)
    values: dict[str, Any] = {k: plain(v) for k, v in flatten(tree).items()}
    return Source(RLINF, values, [Note(Outcome.CHANGED, path, "is left out") for path in lost])
