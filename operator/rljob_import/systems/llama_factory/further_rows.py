"""Keys of LLaMA-Factory and transformers that its examples seldom have, each with why an RLJob has no such field."""

from rljob_import.table import Row, implied, lacks

VOCABULARY = "the model is trained as its directory is: add tokens to tokenizer and embeddings there"
ALL_PARTS = "adapters are on linear layers alone, and all other weights stay as they are"
METRICS = "metrics are written to TensorBoard and metrics.jsonl"
UNUSED = "of inference, export, other stages or other optimizers"


def _lacks(text: str, *keys: str, off: tuple[object, ...] = (False,)) -> tuple[Row, ...]:
    return tuple(lacks(key, text, *off) for key in keys)


def _implied(text: str, *keys: str) -> tuple[Row, ...]:
    return tuple(implied(key, text) for key in keys)


TRAINED = (
    *_lacks(VOCABULARY, "add_tokens", "add_special_tokens", "new_special_tokens_config", "split_special_tokens"),
    *_lacks("weights are read from the model's directory", "train_from_scratch"),
    *_lacks("attention is the model's", "shift_attn"),
    *_lacks("parameters have one type: model.dtype", "upcast_layernorm", "upcast_lmhead_output"),
    *_lacks("set moe_aux_loss_coeff in trainer.transformerConfig", "moe_aux_loss_coef", off=(0, 0.0)),
    *_lacks("all parameters are trained", "freeze_extra_modules"),
    *_lacks(ALL_PARTS, "additional_target"),
    *_lacks("adapters are LoRA's", "oft_rank", "module_dropout", off=(0, 0.0)),
    *_lacks("the loss of pairs has no such part", "pref_bco_weight", "ld_alpha", off=(0, 0.0)),
    *_lacks("merge the adapters into reference.path first", "ref_model_adapters"),
    *_lacks("the whole run is trained, and its last checkpoint exported", "early_stopping_steps"),
    *_lacks("the optimizer is AdamW", "optim_args"),
    *_lacks("steps have train.samplesPerStep samples", "auto_find_batch_size"),
    *_lacks("name the tokens in the loss by data.lossOn", "label_names"),
    *_lacks("set data.chatTemplate.arguments to what the template reads", "preserve_thinking"),
    *_lacks("the trainer is Megatron: see trainer.parallelism", "use_hyper_parallel"),
    *_lacks("put images next to the data, or give absolute paths", "media_dir"),
    *_lacks("checkpoints are on the volume", "push_to_hub"),
    *_lacks(METRICS, *(f"swanlab_{key}" for key in ("project", "workspace", "run_name", "mode", "logdir", "api_key"))),
    *_lacks("all held-out data are one set", "eval_on_each_dataset"),
)
QUIET = (
    *_implied("read with streaming only", "buffer_size"),
    *_implied("read with load_best_model_at_end only", "metric_for_best_model", "greater_is_better"),
    *_implied("read with the switch of its method only", "init_special_tokens", "loraplus_lr_embedding", "eaft_alpha"),
    *_implied("read with the switch of its method only", "hyper_parallel_args", "hyper_parallel_cp_size"),
    *_implied(UNUSED, *(f"quantization_{key}" for key in ("type", "device_map"))),
    *_implied(UNUSED, *(f"{name}_{key}" for name in ("galore", "apollo") for key in ("update_interval", "proj_type"))),
    *_implied(
        UNUSED, "apollo_proj", "apollo_scale_front", "badam_start_block", "badam_update_ratio", "badam_mask_mode"
    ),
    *_implied(UNUSED, *(f"kto_{side}_weight" for side in ("chosen", "rejected"))),
    *_implied(UNUSED, *(f"ppo_{key}" for key in ("buffer_size", "epochs", "score_norm", "target", "whiten_rewards"))),
    *_implied(UNUSED, *(f"reward_model{key}" for key in ("", "_adapters", "_quantization_bit", "_type"))),
    *_implied(UNUSED, "ref_model_quantization_bit", "offload_folder", "use_kv_cache", "infer_dtype"),
    *_implied(UNUSED, "do_sample", "temperature", "top_p", "top_k", "num_beams", "max_length", "max_new_tokens"),
    *_implied(UNUSED, "repetition_penalty", "length_penalty", "skip_special_tokens", "eval_num_beams"),
    *_implied("an RLJob needs no such setting", "use_unsloth_gc", "print_param_status", "data_shared_file_system"),
    *_implied("an RLJob needs no such setting", "compute_accuracy", "include_effective_tokens_per_second"),
    *_implied("an RLJob needs no such setting", *(f"{hub}_hub_token" for hub in ("hf", "ms", "om"))),
    *_implied("an RLJob needs no such setting", "master_addr", "master_port", "local_rank", "hub_model_id"),
    *_implied("an RLJob needs no such setting", *(f"logging_{key}" for key in ("strategy", "nan_inf_filter"))),
    *_implied("an RLJob needs no such setting", "log_level", "disable_tqdm", "log_on_each_node", "save_on_each_node"),
    *_implied(
        "an RLJob needs no such setting", *(f"dataloader_{k}" for k in ("persistent_workers", "prefetch_factor"))
    ),
    *_implied("an RLJob needs no such setting", "save_safetensors", "eval_accumulation_steps", "prediction_loss_only"),
    *_implied("an RLJob needs no such setting", "batch_eval_metrics", "bf16_full_eval", "torch_empty_cache_steps"),
    *_implied("an RLJob needs no such setting", "tf32", "torch_compile", "use_liger_kernel", "length_column_name"),
    *_implied("the last incomplete step of an epoch is left out", "dataloader_drop_last"),
)
