#!/bin/bash
# verl's older trainer of conversations, for questions and answers in columns.
declare -A RATES=([full]=1e-5 [lora]=1e-4)
tuning=${1:-lora}
read -r -d '' DATA <<EOF
    data.train_files=$HOME/gsm8k/train.parquet data.val_files=$HOME/gsm8k/test.parquet
    data.prompt_key=extra_info data.prompt_dict_keys=['question']
    data.response_key=extra_info +data.response_dict_keys=['answer']
EOF
torchrun --standalone --nnodes=1 --nproc_per_node=8 \
    -m verl.trainer.fsdp_sft_trainer \
    $DATA \
    data.train_batch_size=64 data.micro_batch_size_per_gpu=4 \
    data.max_length=2048 data.truncation=right \
    model.partial_pretrain=Qwen/Qwen2.5-0.5B-Instruct \
    model.lora_rank=32 model.lora_alpha=16 model.target_modules=all-linear \
    optim.lr=${RATES[$tuning]} optim.warmup_steps_ratio=0.05 optim.weight_decay=0.1 \
    ulysses_sequence_parallel_size=2 use_remove_padding=true \
    trainer.default_local_dir=/data/sft trainer.experiment_name=gsm8k-sft \
    trainer.total_epochs=3 trainer.logger=console trainer.default_hdfs_dir=null "$@"
