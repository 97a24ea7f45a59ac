"""What becomes of the keys of RLinf's reasoning jobs: the algorithm and the rollouts."""

from rljob_import.shared.values import items
from rljob_import.systems.rlinf.rows import ACTOR, DATA, RUNNER
from rljob_import.table import becomes, implied, lacks, must, read

DISTRIBUTION = "training samples from the whole distribution"

ALGORITHM = (
    becomes("algorithm.group_size", "train.samplesPerPrompt", 1),
    read("algorithm.n_minibatches", "train.miniBatches", 1),
    read("algorithm.training_batch_size_per_gpu", "train.tokensPerMicroBatch", 1, text="x runner.seq_length"),
    read("algorithm.adv_type", "algorithm.advantage", "grpo"),
    read("algorithm.normalize_advantages", "", True, text="as algorithm.advantage says"),
    read("algorithm.gamma", "algorithm.gamma", 1.0),
    read("algorithm.gae_lambda", "algorithm.gaeLambda", 1.0),
    read("algorithm.ratio_clip_eps", "algorithm.clip.low, algorithm.clip.high", 0.2),
    read("algorithm.clip_ratio_low", "algorithm.clip.low"),
    read("algorithm.clip_ratio_high", "algorithm.clip.high"),
    read("algorithm.clip_ratio_c", "algorithm.clip.dual", text="unset: 3 with FSDP"),
    read("algorithm.kl_beta", "algorithm.kl.coefficient", 0.0),
    read(
        "algorithm.reinpp_kl_beta",
        "algorithm.kl.coefficient, algorithm.kl.where",
        0.0,
        text="with adv_type reinpp: in the reward",
    ),
    read("algorithm.use_reinpp_baseline", "algorithm.advantage", False, text="reinforce++-baseline"),
    read("algorithm.kl_penalty_type", "algorithm.kl.estimator", "low_var_kl"),
    becomes("algorithm.entropy_bonus", "algorithm.entropyCoefficient", 0.0),
    read("algorithm.loss_agg_func", "algorithm.aggregation", "token-mean"),
    read("algorithm.loss_type", "algorithm.loss", "actor"),
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
    implied(
        "algorithm.sampling_params.max_new_tokens",
        "is runner.seq_length - data.max_prompt_length",
        equals="rollout.sampling.maxTokens",
    ),
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
    becomes("algorithm.sampling_params.stop", "rollout.sampling.stop", convert=items),
    lacks("algorithm.sampling_params.stop_token_ids", "name texts in rollout.sampling.stop", []),
    lacks("algorithm.loss_scales", "see algorithm.aggregation", []),
    lacks("algorithm.advantage_mode", "advantages are of whole responses"),
    lacks("algorithm.clip_log_ratio_min", "see algorithm.clip"),
    lacks("algorithm.clip_log_ratio_max", "see algorithm.clip"),
    lacks(
        "algorithm.down_sampling.do_down_sampling", "all samples of a prompt are trained; see algorithm.dynamicSampling"
    ),
    implied("algorithm.down_sampling.*"),
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
    implied("rollout.model.model_type"),
    read("rollout.model.precision", "", text="servers have the policy's type: model.dtype"),
    *(implied(f"rollout.{key}") for key in ("seed", "validate_weight_first_sync", "use_fixed_worker", "is_eval")),
    lacks("rollout.custom_chat_template", "name a file in data.chatTemplate.path, with the template in it"),
    *(
        implied(f"rollout.{key}")
        for key in ("load_format", "weight_reload", "recompute_logprobs", "unload_weight", "backend")
    ),
)

ROWS = (*RUNNER, *DATA, *ALGORITHM, *ROLLOUT, *ACTOR)
