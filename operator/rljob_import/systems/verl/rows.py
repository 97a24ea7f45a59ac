"""What becomes of the keys of verl's reinforcement learning trainer. Defaults are verl's own, of its Megatron configuration."""

from typing import Any

from rljob_import.shared.adapters import verl_rows
from rljob_import.shared.fsdp import checkpointing_row, ulysses_row
from rljob_import.shared.megatron import layout_rows, recompute_rows, transformer_row
from rljob_import.shared.values import DECAYS, IMAGES, MULTI_TOKEN, REPLAY, choice
from rljob_import.table import Row, becomes, implied, lacks, must, read, verbatim

AR = "actor_rollout_ref."
ACTOR, REF, ROLLOUT, MODEL = (f"{AR}{part}." for part in ("actor", "ref", "rollout", "model"))
STRATEGY, ULYSSES = f"{ACTOR}strategy", f"{ACTOR}ulysses_sequence_parallel_size"
OPTIMIZER: dict[str, Any] = {"weight_decay": 0.01, "clip_grad": 1.0, "min_lr": 0.0, "lr_decay_style": "constant"}
SPEED = "changes no result; the trainer and vLLM have settings of their own"
ONE_BUDGET = "one token budget holds for all passes: train.tokensPerMicroBatch"

QUIET = (
    "profiler.*",
    "use_torch_compile",
    "entropy_checkpointing",
    "entropy_from_logits_with_chunking",
    "entropy_from_logits_chunk_size",
)
"""Of actor, reference and critic: what changes no result."""
UNUSED = (
    "_target_",
    "lr_wsd_decay_style",
    "lr_wsd_decay_steps",
    "main_grads_dtype",
    "use_layer_wise_distributed_optimizer",
    *(f"muon_{key}" for key in ("momentum", "nesterov", "split_qkv", "scale_mode", "coefficient_type", "num_ns_steps")),
    *(
        f"muon_{key}"
        for key in ("tp_mode", "fp32_matmul_prec", "extra_scale_factor", "scalar_optimizer", "match_adamw_update_rms")
    ),
)
MOMENTS = ("exp_avg", "exp_avg_sq")
AGENT = "tools and turns are an agent of your own: rollout.agent (docs/agents.md)"
CUSTOM = "a class of torch's data sets gives tensors; rows are made by a function of your own: data.custom (docs/data-and-rewards.md)"
DATA = (
    read("data.train_files", "data.train", "~/data/rlhf/gsm8k/train.parquet"),
    read("data.val_files", "data.validation", "~/data/rlhf/gsm8k/test.parquet"),
    becomes("data.prompt_key", "data.promptKey", "prompt"),
    becomes("data.reward_fn_key", "data.dataSourceKey", "data_source"),
    becomes("data.max_prompt_length", "data.maxPromptTokens", 512),
    read("data.max_response_length", "rollout.sampling.maxTokens, evaluation.sampling.maxTokens", 512),
    read("data.train_batch_size", "train.promptsPerStep", 1024, text="0: prompts are streamed, see async_training"),
    becomes("data.shuffle", "data.shuffle", True),
    becomes("data.seed", "data.seed"),
    read("data.gen_batch_size", "", text="a round generates promptsPerStep prompts"),
    read("data.truncation", "", "error", text="longer prompts are left out and counted, never cut"),
    implied("data.filter_overlong_prompts", "longer prompts are left out and counted"),
    implied("data.filter_overlong_prompts_workers"),
    lacks("data.train_max_samples", "all rows are used", -1),
    lacks("data.val_max_samples", "all rows are used", -1),
    lacks("data.custom_cls.path", CUSTOM),
    implied("data.custom_cls.name"),
    lacks("data.tool_config_path", AGENT, ""),
    lacks("data.function_tool_path", AGENT, ""),
    verbatim("data.apply_chat_template_kwargs", "data.chatTemplate.arguments", frozenset(), "as they are"),
    lacks("data.mm_processor_kwargs.*", IMAGES),
    lacks("data.tokenizer", "the tokenizer is the model directory's"),
    implied("data.trust_remote_code", "model.trustRemoteCode says it"),
    lacks("data.sampler.class_path", "prompts are drawn in a shuffled order"),
    lacks("data.datagen.path", "prompts are read from files only"),
    becomes("data.image_key", "data.imageKey"),
    *(lacks(f"data.{key}", "models read texts and images only") for key in ("video_key", "audio_key")),
    *(implied(f"data.{key}", SPEED) for key in ("use_shm", "dataloader_num_workers", "val_batch_size")),
    *(implied(f"data.return_{key}") for key in ("raw_chat", "raw_input_ids", "full_prompt", "multi_modal_inputs")),
    *(implied(f"data.{key}") for key in ("validation_shuffle", "image_patch_size")),
    *(implied(f"data.{key}") for key in ("sampler.class_name", "datagen.name")),
)

POLICY = (
    read(f"{MODEL}path", "model.path", "~/models/deepseek-llm-7b-chat", also=("model.actor.pretrained",)),
    becomes(
        f"{MODEL}torch_dtype", "model.dtype", convert=choice(bfloat16="bfloat16", float32="float32", auto="bfloat16")
    ),
    becomes(f"{MODEL}trust_remote_code", "model.trustRemoteCode", False),
    must(f"{MODEL}use_remove_padding", True, "sequences are always packed", also=(f"{MODEL}remove_padding",)),
    *verl_rows(MODEL),
    *(lacks(f"{MODEL}mtp.{key}", MULTI_TOKEN) for key in ("enable", "enable_train")),
    implied(f"{MODEL}mtp.*"),
    lacks(f"{MODEL}override_config.*", "the model is as its config.json says"),
    lacks(f"{MODEL}external_lib", "no further packages are imported"),
    lacks(f"{MODEL}custom_chat_template", "name a file in data.chatTemplate.path, with the template in it"),
    *(lacks(f"{MODEL}{key}", "is in the model's directory") for key in ("tokenizer_path", "hf_config_path")),
    lacks(f"{MODEL}enable_activation_offload", "trainer.transformerConfig has Megatron's own way"),
    checkpointing_row(f"{MODEL}enable_gradient_checkpointing", True),
    *(
        implied(f"{MODEL}{key}", SPEED)
        for key in ("use_fused_kernels", "fused_kernel_options.*", "use_liger", "use_shm", "tiled_mlp.*")
    ),
)


def megatron_rows(m: str) -> tuple[Row, ...]:
    """What all engines have alike, under the prefix `m`."""
    off = ("dynamic_context_parallel", "use_megatron_fsdp", "pad_to_length", "qat.enable")
    return (
        must(f"{m}use_distributed_optimizer", True, "the optimizer is always distributed"),
        *(lacks(f"{m}{key}", "there is no such mode") for key in off),
        *(lacks(f"{m}{key}.*", "the model is as its config.json says") for key in ("override_mcore_model_config",)),
        lacks(f"{m}dist_checkpointing_prefix", "parameters have megatron-core's own names", ""),
        *(
            implied(f"{m}{key}", "Hugging Face weights are read and written directly")
            for key in ("use_mbridge", "vanilla_mbridge")
        ),
        implied(f"{m}use_remove_padding", "sequences are always packed"),
        *(
            implied(f"{m}{key}")
            for key in (
                "entropy_from_logits_with_chunking",
                "entropy_from_logits_chunk_size",
                "seed",
                "forward_only",
                "max_seqlen_per_dp_cp_rank",
                "pad_bshd_to_minibatch_max",
                "pad_to_length_bucket",
                "distrib_optim_fully_reshardable_mem_efficient",
                "load_weight",
                "router_replay.*",
                "qat.*",
            )
        ),
    )


def optimizer_rows(prefix: str, target: str, rate: float) -> tuple[Row, ...]:
    """An optimizer, and what of verl's an RLJob's has not."""
    o = f"{prefix}optim."
    return (
        becomes(f"{o}lr", f"{target}.learningRate", rate),
        becomes(f"{o}weight_decay", f"{target}.weightDecay", OPTIMIZER["weight_decay"], text="verl's default is 0.01"),
        becomes(f"{o}clip_grad", f"{target}.clipGrad", 1.0),
        read(f"{o}betas", f"{target}.beta1, {target}.beta2", [0.9, 0.999], text="verl's default is 0.9, 0.999"),
        becomes(
            f"{o}lr_decay_style", f"{target}.decay", "constant", DECAYS, (f"{o}lr_scheduler_type", f"{o}warmup_style")
        ),
        read(f"{o}min_lr", f"{target}.minLearningRate", 0.0),
        read(f"{o}min_lr_ratio", f"{target}.minLearningRate"),
        read(f"{o}lr_warmup_steps", f"{target}.warmupSteps", -1, text="x optimizer steps of a training step"),
        read(f"{o}lr_warmup_steps_ratio", f"{target}.warmupSteps", 0.0, text="needs --rows while epochs are given"),
        lacks(f"{o}optimizer", "the optimizer is AdamW", "adam", "adamw", "AdamW"),
        lacks(f"{o}lr_warmup_init", "the warm-up begins at 0", 0, 0.0),
        lacks(f"{o}lr_decay_steps", "the rate falls until the last step"),
        lacks(f"{o}weight_decay_incr_style", "weight decay is constant", "constant"),
        read(f"{o}use_precision_aware_optimizer", "", False, text="moments are float32"),
        *(read(f"{o}{key}_dtype", "", "fp32", text="moments are float32") for key in MOMENTS),
        lacks(f"{o}override_optimizer_config.*", "the optimizer has no further settings; see trainer.offload.update"),
        *(
            implied(f"{o}{key}")
            for key in (
                "total_training_steps",
                "use_checkpoint_opt_param_scheduler",
                "optimizer_impl",
                "zero_indexed_step",
            )
        ),
        lacks(f"{o}num_cycles", "a cosine falls once, over half a cycle", 0.5),
        *(implied(f"{o}{key}", "read by other optimizers and schedules only") for key in UNUSED),
    )


def of_group(key: str) -> Row:
    return implied(key, "is train.samplesPerPrompt", equals="train.samplesPerPrompt")


def rollouts_log_probs(key: str) -> Row:
    """Whether the old policy's log-probabilities are those of the servers."""
    bypass = "algorithm.rolloutCorrection.bypass"
    return implied(key, f"is {bypass}", equals=bypass)


def _frozen(value: Any) -> list[str] | None:
    """Of a truth: whether the vision tower keeps its weights."""
    return ["vision", "projector"] if value else None


ACTOR_ROWS = (
    read(STRATEGY, "", "fsdp", text="of other strategies than megatron the layout is not taken over"),
    ulysses_row(ULYSSES, f"{ACTOR}fsdp_config.ulysses_sequence_parallel_size"),
    read(f"{ACTOR}ppo_mini_batch_size", "train.miniBatches", 256, text="data.train_batch_size / it"),
    becomes(f"{ACTOR}ppo_epochs", "train.epochsPerStep", 1),
    read(f"{ACTOR}use_dynamic_bsz", "train.tokensPerMicroBatch", False),
    read(f"{ACTOR}ppo_max_token_len_per_gpu", "train.tokensPerMicroBatch", 16384, text="x context parallel size"),
    read(f"{ACTOR}ppo_micro_batch_size_per_gpu", "train.tokensPerMicroBatch", text="x the longest sample"),
    implied(f"{ACTOR}ppo_micro_batch_size", ONE_BUDGET),
    read(f"{ACTOR}clip_ratio", "algorithm.clip.low, algorithm.clip.high", 0.2, also=("algorithm.ppo.clip_coef",)),
    read(f"{ACTOR}clip_ratio_low", "algorithm.clip.low"),
    read(f"{ACTOR}clip_ratio_high", "algorithm.clip.high"),
    read(f"{ACTOR}clip_ratio_c", "algorithm.clip.dual", 3.0, text="with loss ppo; verl's default is 3"),
    read(f"{ACTOR}policy_loss.loss_mode", "algorithm.loss", "vanilla"),
    implied(f"{ACTOR}policy_loss.*", "read by other losses only"),
    read(f"{ACTOR}loss_agg_mode", "algorithm.aggregation", "token-mean"),
    read(f"{ACTOR}loss_scale_factor", "", text="is the longest response"),
    becomes(f"{ACTOR}entropy_coeff", "algorithm.entropyCoefficient", 0),
    read(f"{ACTOR}use_kl_loss", "algorithm.kl", False),
    read(f"{ACTOR}kl_loss_coef", "algorithm.kl.coefficient", 0.001),
    read(f"{ACTOR}kl_loss_type", "algorithm.kl.estimator", "low_var_kl"),
    lacks(f"{ACTOR}use_prefix_grouper", "samples of a prompt share no computation"),
    *(
        implied(f"{ACTOR}{key}", "read by other losses only")
        for key in ("tau_pos", "tau_neg", "dro_beta", "clip_cov_ratio", "clip_cov_lb", "clip_cov_ub")
    ),
    implied(f"{ACTOR}use_fused_kernels", SPEED),
    becomes(f"{ACTOR}freeze_vision_tower", "model.freeze", convert=_frozen),
    *(
        implied(f"{ACTOR}{key}")
        for key in (
            "shuffle",
            "data_loader_seed",
            "calculate_entropy",
            "calculate_sum_pi_squared",
            "sum_pi_squared_checkpointing",
            "load_weight",
            "router_replay.*",
            "fsdp_config.*",
            "veomni.*",
            "engine.*",
            "torchtitan.*",
            "automodel.*",
            *QUIET,
            "qat.*",
            "model_engine",
            "use_remove_padding",
            "nccl_timeout",
            "pad_to_length",
        )
    ),
    of_group(f"{ACTOR}rollout_n"),
    rollouts_log_probs(f"{ACTOR}use_rollout_log_probs"),
    read(f"{ACTOR}grad_clip", "train.optimizer.clipGrad", text="of FSDP; Megatron's is optim.clip_grad"),
    read(f"{ACTOR}checkpoint.save_contents", "checkpoint.exportHuggingFace", text="hf_model: at the end of the job"),
    becomes(f"{ACTOR}checkpoint.async_save", "checkpoint.asynchronous"),
    implied(f"{ACTOR}checkpoint.*"),
    *optimizer_rows(ACTOR, "train.optimizer", 1e-6),
    becomes(
        f"{ACTOR}megatron.router_replay.mode",
        "algorithm.rolloutCorrection.routerReplay",
        "disabled",
        REPLAY,
        also=(f"{ACTOR}router_replay.mode",),
    ),
    *layout_rows(f"{ACTOR}megatron.", {"sequence_parallel": True}),
    becomes(
        f"{ACTOR}megatron.param_offload",
        "trainer.offload.parameters",
        False,
        also=(f"{ACTOR}fsdp_config.param_offload",),
    ),
    becomes(f"{ACTOR}megatron.grad_offload", "trainer.offload.gradients", False),
    becomes(
        f"{ACTOR}megatron.optimizer_offload",
        "trainer.offload.optimizer",
        False,
        also=(f"{ACTOR}fsdp_config.optimizer_offload",),
    ),
    read(f"{ACTOR}megatron.use_dist_checkpointing", "model.megatronCheckpoint", False),
    read(f"{ACTOR}megatron.dist_checkpointing_path", "model.megatronCheckpoint"),
    becomes(
        f"{ACTOR}megatron.dtype",
        "model.dtype",
        "bfloat16",
        choice(bfloat16="bfloat16", bf16="bfloat16", float32="float32", fp32="float32"),
        also=(f"{ACTOR}fsdp_config.dtype",),
    ),
    implied(f"{ACTOR}megatron.dist_ckpt_optim_fully_reshardable", "every checkpoint is"),
    *megatron_rows(f"{ACTOR}megatron."),
    *recompute_rows(f"{ACTOR}megatron.override_transformer_config."),
    implied(f"{ACTOR}megatron.override_transformer_config.use_flash_attn", "attention is Transformer Engine's"),
    must(
        f"{ACTOR}megatron.override_transformer_config.use_distributed_optimizer",
        True,
        "the optimizer is always distributed",
    ),
    transformer_row(f"{ACTOR}megatron.override_transformer_config"),
    becomes(f"{ACTOR}megatron.override_ddp_config.overlap_grad_reduce", "trainer.overlap.gradReduce"),
    becomes(f"{ACTOR}megatron.override_ddp_config.overlap_param_gather", "trainer.overlap.paramGather"),
    lacks(f"{ACTOR}megatron.override_ddp_config.*", "of DistributedDataParallel only overlap is set"),
)

GUIDE = (
    becomes("system.tp_size", "trainer.parallelism.tensor", text="of older guides"),
    becomes("system.pp_size", "trainer.parallelism.pipeline", text="of older guides"),
    read("system.dp_size", "trainer.nodes, trainer.processesPerNode", text="of older guides"),
    implied("system.enable_hybrid_engine", "rollout.placement: colocated", also=("enable_hybrid_engine",)),
)

ALGORITHM = (
    read("algorithm.adv_estimator", "algorithm.advantage", "gae"),
    read("algorithm.norm_adv_by_std_in_grpo", "algorithm.group.divideByStd", True),
    read("algorithm.gamma", "algorithm.gamma", 1.0),
    read("algorithm.lam", "algorithm.gaeLambda", 1.0),
    read("algorithm.use_kl_in_reward", "algorithm.kl", False),
    read("algorithm.kl_penalty", "algorithm.kl.estimator", "kl"),
    read("algorithm.kl_ctrl.type", "algorithm.kl.adaptive", "fixed"),
    read("algorithm.kl_ctrl.kl_coef", "algorithm.kl.coefficient", 0.001),
    read("algorithm.kl_ctrl.horizon", "algorithm.kl.adaptive.horizon", 10000),
    read("algorithm.kl_ctrl.target_kl", "algorithm.kl.adaptive.target", 0.1),
    read("algorithm.filter_groups.enable", "algorithm.dynamicSampling", False),
    read("algorithm.filter_groups.max_num_gen_batches", "algorithm.dynamicSampling.maxRounds", 0, text="0 becomes 64"),
    read("algorithm.filter_groups.metric", "", text="groups are filtered by their rewards"),
    implied("algorithm.filter_groups.max_inflight_gen_batches"),
    read("algorithm.rollout_correction.rollout_is", "algorithm.rolloutCorrection.importanceSampling"),
    read("algorithm.rollout_correction.rollout_is_threshold", "algorithm.rolloutCorrection.cap", 2.0),
    read("algorithm.rollout_correction.rollout_rs", "algorithm.rolloutCorrection.reject.level"),
    read(
        "algorithm.rollout_correction.rollout_rs_threshold",
        "algorithm.rolloutCorrection.reject.low, algorithm.rolloutCorrection.reject.high",
        text="verl bounds the inverse ratio: low = 1 / its high",
    ),
    becomes("algorithm.rollout_correction.bypass_mode", "algorithm.rolloutCorrection.bypass", False),
    lacks("algorithm.rollout_correction.loss_type", "the loss is PPO's", "ppo_clip"),
    lacks("algorithm.rollout_correction.rollout_is_batch_normalize", "weights are not normalised"),
    lacks("algorithm.use_pf_ppo", "samples are not drawn again by their reward"),
    implied("algorithm.pf_ppo.*", "read with use_pf_ppo only"),
    implied("algorithm.gdpo_reward_keys", "read by the estimator gdpo only"),
)
