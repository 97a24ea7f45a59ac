"""What other systems and people call the fields of the spec: verl, OpenRLHF, TRL, slime, LLaMA-Factory, Megatron, vLLM, Kubernetes. Case, `_` and `-`
do not count."""

WORDS: dict[str, str] = {
    "model.path": "model_path hf_checkpoint model_name model_name_or_path pretrained_model base_model",
    "model.dtype": "torch_dtype precision bf16 params_dtype",
    "data.train": "train_files train_file train_data dataset dataset_path prompt_data",
    "data.validation": "val_files val_data val eval_data eval_files test_files validation_files",
    "data.promptKey": "input_key prompt_column",
    "data.answerKey": "label_key ground_truth_key answer_column",
    "data.dataSourceKey": "reward_fn_key",
    "data.chatTemplate.texts": "apply_chat_template",
    "data.chatTemplate.path": "custom_chat_template chat_template_path",
    "data.chatTemplate.arguments": "apply_chat_template_kwargs chat_template_kwargs",
    "data.chatTemplate.systemPrompt": "default_system system",
    "data.maxPromptTokens": "max_prompt_length prompt_max_len prompt_length max_prompt_len rollout_max_prompt_len",
    "data.maxTokens": "max_seq_length max_seq_len max_length cutoff_len seq_length sequence_length block_size",
    "rewards": "reward reward_fn reward_fns reward_function reward_functions reward_funcs custom_reward_function reward_model",
    "rewards.rule": "rm_type",
    "algorithm.advantage": "adv_estimator advantage_estimator advantage_type",
    "algorithm.gaeLambda": "lam lambda lambd gae_lam",
    "algorithm.group.divideByStd": "norm_adv_by_std norm_adv_by_std_in_grpo scale_rewards",
    "algorithm.loss": "loss_type loss_mode policy_loss",
    "algorithm.clip.low": "clip_ratio clip_range eps_clip clip_ratio_low",
    "algorithm.clip.high": "clip_ratio_high eps_clip_high epsilon_high",
    "algorithm.clip.dual": "clip_ratio_c dual_clip eps_clip_c",
    "algorithm.kl.coefficient": "kl_coef kl_coeff kl_loss_coef init_kl_coef kl_coefficient kl_beta kl_penalty_coef",
    "algorithm.kl.estimator": "kl_loss_type kl_penalty kl_type kl_estimator",
    "algorithm.kl.where": "use_kl_loss use_kl_in_reward",
    "algorithm.kl.adaptive": "kl_ctrl adaptive_kl",
    "algorithm.entropyCoefficient": "entropy_coef entropy_coeff ent_coef entropy_bonus entropy_loss_coef",
    "algorithm.aggregation": "loss_agg_mode loss_aggregation loss_reduction",
    "algorithm.rolloutCorrection.importanceSampling": "tis use_tis rollout_is truncated_importance_sampling",
    "algorithm.rolloutCorrection.cap": "tis_imp_ratio_cap rollout_is_threshold tis_clip",
    "algorithm.dynamicSampling": "filter_groups dynamic_filter",
    "algorithm.dynamicSampling.maxRounds": "max_num_gen_batches",
    "algorithm.overlong": "overlong_buffer soft_overlong_punishment",
    "dpo.beta": "pref_beta dpo_beta",
    "dpo.loss": "pref_loss dpo_loss",
    "dpo.margin": "simpo_gamma gamma_beta_ratio",
    "dpo.sftCoefficient": "pref_ftx rpo_alpha nll_loss_coef",
    "train.steps": "max_steps total_steps num_steps total_training_steps train_steps train_iters iterations max_iterations num_rollout",
    "train.epochs": "num_epochs total_epochs num_train_epochs n_epochs max_epochs num_epoch",
    "train.promptsPerStep": "train_batch_size rollout_batch_size batch_size prompts_per_batch num_prompts_per_step",
    "train.samplesPerStep": "train_batch_size batch_size global_batch_size",
    "train.samplesPerPrompt": "n num_generations n_samples_per_prompt rollout_n group_size num_return_sequences best_of",
    "train.miniBatches": "num_minibatches num_mini_batches n_minibatches",
    "train.epochsPerStep": "ppo_epochs update_epochs num_inner_epochs inner_epochs",
    "train.tokensPerMicroBatch": "max_token_len_per_gpu ppo_max_token_len_per_gpu max_tokens_per_gpu max_tokens_per_micro_batch",
    "train.staleness": "max_staleness staleness_threshold max_head_offpolicyness off_policy_steps async_steps",
    "train.overSampling": "over_sampling_ratio oversampling_ratio",
    "train.partialRollouts": "partial_rollout",
    "train.optimizer.learningRate": "lr actor_lr policy_lr actor_learning_rate max_lr",
    "critic.optimizer.learningRate": "critic_lr value_lr critic_learning_rate",
    "train.optimizer.minLearningRate": "min_lr lr_end",
    "train.optimizer.warmupSteps": "lr_warmup_steps num_warmup_steps lr_warmup_iters warmup_iters warmup",
    "train.optimizer.decay": "lr_scheduler lr_scheduler_type lr_decay_style lr_warmup_style scheduler warmup_style",
    "train.optimizer.weightDecay": "wd",
    "train.optimizer.beta1": "adam_beta1 betas",
    "train.optimizer.beta2": "adam_beta2",
    "train.optimizer.epsilon": "eps adam_eps adam_epsilon",
    "train.optimizer.clipGrad": "max_grad_norm grad_clip gradient_clipping max_norm grad_norm_clip",
    "evaluation.samplesPerPrompt": "n_samples_per_eval_prompt eval_n val_n",
    "evaluation.sets": "eval_tasksets eval_sets eval_datasets",
    "rollout.sampling.stop": "stop_strings stop_sequences stop_words",
    "evaluation.everySteps": "test_freq eval_interval eval_steps eval_freq eval_every val_check_interval",
    "trainer.nodes": "nnodes num_nodes n_nodes actor_num_nodes",
    "trainer.processesPerNode": "gpus num_gpus gpus_per_node n_gpus_per_node num_gpus_per_node nproc_per_node",
    "trainer.parallelism.tensor": "tp tp_size tensor_parallel tensor_parallel_size tensor_model_parallel_size",
    "trainer.parallelism.pipeline": "pp pp_size pipeline_parallel pipeline_parallel_size pipeline_model_parallel_size",
    "trainer.parallelism.virtualPipeline": "vpp virtual_pipeline_model_parallel_size interleave",
    "trainer.parallelism.context": "cp cp_size context_parallel context_parallel_size ulysses_sequence_parallel_size",
    "trainer.parallelism.expert": "ep ep_size expert_parallel expert_parallel_size expert_model_parallel_size",
    "trainer.parallelism.expertTensor": "etp expert_tensor_parallel expert_tensor_parallel_size",
    "trainer.parallelism.sequence": "sequence_parallel sp",
    "trainer.recompute": "gradient_checkpointing enable_gradient_checkpointing activation_checkpointing activation_recompute",
    "trainer.recompute.granularity": "recompute_granularity",
    "trainer.offload.parameters": "param_offload offload_params",
    "trainer.offload.gradients": "grad_offload offload_grads",
    "trainer.offload.optimizer": "optimizer_offload adam_offload",
    "critic.path": "critic_model critic_model_path critic_pretrain",
    "reference.path": "ref_model reference_model ref_model_path ref_load",
    "rollout.placement": "colocate colocated colocate_all hybrid_engine",
    "rollout.replicas": "num_engines vllm_num_engines num_replicas num_servers servers",
    "rollout.tensorParallel": "tp tp_size tensor_parallel_size tensor_model_parallel_size vllm_tensor_parallel_size gpus_per_engine",
    "rollout.sampling.maxTokens": "max_new_tokens max_response_length response_length max_completion_length max_response_len generate_max_len",
    "rollout.vllmArgs": "engine_kwargs vllm_kwargs engine_args extra_args",
    "checkpoint.path": "output_dir save_dir save_path default_local_dir ckpt_path checkpoint_dir",
    "checkpoint.everySteps": "save_freq save_interval save_steps save_every",
    "checkpoint.keepLast": "save_total_limit max_actor_ckpt_to_keep max_ckpt_num keep_checkpoints",
    "checkpoint.resume": "resume_mode auto_resume",
    "checkpoint.resumeFrom": "resume_from_checkpoint resume_from_path load_path",
    "lifecycle.maxRestarts": "backoff_limit max_failures restart_limit",
    "scheduling.queue": "queue_name local_queue",
}
"""Fields with the same meaning, by our path."""

_WHOLE = (
    "remove it: training compares probabilities of the whole distribution, so that its samples are drawn from all of it"
)
_EVALUATED = f"{_WHOLE}; spec.evaluation.sampling may have it"
_PACKED = "remove it, and set spec.train.tokensPerMicroBatch: micro-batches are packed up to so many tokens"
_VLLM = "set {} in spec.rollout.vllmArgs"

ADVICE: dict[str, str] = {
    **dict.fromkeys(("top_p", "top_k", "min_p"), _EVALUATED),
    **dict.fromkeys(("repetition_penalty", "presence_penalty", "frequency_penalty"), _WHOLE),
    **dict.fromkeys(
        ("micro_batch_size", "ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu", "per_device_train_batch_size"), _PACKED
    ),
    **dict.fromkeys(("gradient_accumulation_steps", "micro_train_batch_size", "use_dynamic_bsz"), _PACKED),
    **dict.fromkeys(
        ("mini_batch_size", "ppo_mini_batch_size"),
        "set the number of mini-batches of a step, spec.train.miniBatches, in place of their size",
    ),
    **dict.fromkeys(
        ("warmup_ratio", "lr_warmup_ratio", "lr_warmup_steps_ratio"),
        "set the number of optimizer steps, spec.train.optimizer.warmupSteps, in place of their share",
    ),
    **dict.fromkeys(
        ("dp", "dp_size", "data_parallel", "data_parallel_size"),
        "remove it: data parallel are the copies that nodes x processesPerNode / (tensor x pipeline x context) leaves",
    ),
    **{
        key: _VLLM.format(key.replace("_", "-"))
        for key in ("gpu_memory_utilization", "enforce_eager", "max_num_seqs", "max_num_batched_tokens", "kv_cache_dtype")
    },
}  # fmt: skip
"""What to do about fields that mean something else or do not exist here."""
