# Prompts are streamed to a trainer that publishes weights after so many mini-batches
TRAIN_GPUS=${TRAIN_GPUS:-8}
per_update=64
python3 -m verl.experimental.fully_async_policy.fully_async_main \
    --config-name=fully_async_ppo_megatron_trainer \
    data.train_files=/data/math/train.parquet \
    data.train_batch_size=0 data.gen_batch_size=1 \
    data.max_prompt_length=512 data.max_response_length=1536 \
    actor_rollout_ref.model.path=/data/models/small \
    actor_rollout_ref.hybrid_engine=False \
    actor_rollout_ref.actor.ppo_mini_batch_size=$per_update \
    actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    algorithm.adv_estimator=grpo \
    trainer.nnodes=1 trainer.n_gpus_per_node=$TRAIN_GPUS trainer.test_freq=False \
    trainer.experiment_name=streamed trainer.default_local_dir=/data/runs/streamed \
    rollout.nnodes=1 rollout.n_gpus_per_node=4 rollout.total_rollout_steps=$((per_update * 2 * 100)) \
    async_training.require_batches=1 async_training.trigger_parameter_sync_step=2 \
    async_training.staleness_threshold=0.5 async_training.partial_rollout=True
