#!/bin/bash
# Usage: sft.sh GPUS DIRECTORY [overrides]
if [ "$#" -lt 2 ]; then
    echo "Usage: $0 GPUS DIRECTORY"
fi
gpus=$1
directory=$2
shift 2
ENGINE="engine=megatron optim=megatron \
    optim.lr=2e-5 optim.lr_warmup_steps=10 optim.betas='[0.9,0.95]' optim.clip_grad=1.0 \
    optim.lr_decay_style=cosine optim.min_lr=2e-6 \
    engine.tensor_model_parallel_size=2 engine.pipeline_model_parallel_size=2 \
    engine.context_parallel_size=1 engine.use_mbridge=True"
torchrun --nnodes=2 --nproc_per_node=$gpus \
    -m verl.trainer.sft_trainer \
    data.train_files=~/chats/train.parquet \
    data.val_files=~/chats/test.parquet \
    +data.apply_chat_template_kwargs.enable_thinking=False \
    data.train_batch_size=128 \
    data.max_length=4096 \
    data.use_dynamic_bsz=True \
    data.max_token_len_per_gpu=8192 \
    data.messages_key=messages \
    model.path=Qwen/Qwen3-4B \
    $ENGINE \
    trainer.default_local_dir=$directory \
    trainer.experiment_name=chat-sft \
    trainer.total_epochs=2 trainer.save_freq=500 trainer.test_freq=100 "$@"
