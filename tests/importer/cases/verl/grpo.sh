#!/usr/bin/env bash
# GRPO of an 8B model on one node: arrays, defaults, a branch, and arguments of the caller.
set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NCCL_DEBUG=WARN

BACKEND=${BACKEND:-vllm}
MODEL=${MODEL:-Qwen/Qwen3-8B}
NODES=${NODES:-1}
prompt=$((1024 * 1))
response=$((prompt * 3))
budget=${BUDGET:-$(((prompt + response) * 4))}
DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}
run=qwen3_8b_${BACKEND}_$(date +%Y%m%d)

TRAIN="['$HOME/sets/gsm8k/train.parquet', '$HOME/sets/math/train.parquet']"

DATA=(
    algorithm.adv_estimator=grpo
    +data.apply_chat_template_kwargs.enable_thinking=False \
    data.train_files="$TRAIN"   # two sets
    data.val_files="$HOME/sets/gsm8k/test.parquet"
    data.train_batch_size=512
    data.max_prompt_length=${prompt}
    data.max_response_length=${response}
    data.truncation='error'
)
ACTOR=(
    actor_rollout_ref.model.path="$MODEL"
    actor_rollout_ref.actor.optim.lr=2e-6
    actor_rollout_ref.actor.ppo_mini_batch_size=128
    actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$budget
    actor_rollout_ref.actor.use_kl_loss=True
    actor_rollout_ref.actor.kl_loss_type=low_var_kl
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2
    actor_rollout_ref.ref.megatron.tensor_model_parallel_size=4
    actor_rollout_ref.ref.megatron.pipeline_model_parallel_size=2
    actor_rollout_ref.ref.megatron.param_offload=False
)

EXTRA=()
case "${DEVICE}" in
    gpu) EXTRA+=(actor_rollout_ref.rollout.enforce_eager=False) ;;
    npu) EXTRA+=(trainer.n_gpus_per_node=16) ;;
esac
if [ "$BACKEND" = sglang ]; then
    EXTRA+=(actor_rollout_ref.rollout.name=sglang)
elif [ "$BACKEND" = vllm ] && [ "$NODES" -lt 2 ]; then
    EXTRA+=(actor_rollout_ref.rollout.name=vllm)
fi
LAUNCH=(python3)
if [ -n "${USE_UV:-}" ]; then
    LAUNCH=(uv run python3)
fi

"${LAUNCH[@]}" -m verl.trainer.main_ppo model_engine=megatron \
    "${DATA[@]}" \
    "${ACTOR[@]}" \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
    actor_rollout_ref.rollout.val_kwargs.top_p=0.7 \
    +actor_rollout_ref.rollout.engine_kwargs.vllm.block_size=32 \
    trainer.logger='["console","wandb","mlflow","swanlab"]' \
    trainer.project_name=reasoning \
    trainer.experiment_name="$run" \
    trainer.n_gpus_per_node=8 trainer.nnodes=$NODES \
    trainer.save_freq=20 trainer.test_freq=5 \
    trainer.total_epochs=15 \
    "${EXTRA[@]}" "$@"
