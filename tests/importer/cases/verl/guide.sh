python3 -m verl.trainer.main_ppo \
  data.train_files=/data/oss/eurus/train.parquet \
  data.val_files=/data/oss/eurus/validation.parquet \
  algorithm.adv_estimator=gae \
  algorithm.ppo.clip_coef=0.1 \
  model.actor.pretrained=/path/to/pretrained/hf/model \
  trainer.num_epochs=1 \
  system.dp_size=8 \
  system.pp_size=2 \
  system.tp_size=4
