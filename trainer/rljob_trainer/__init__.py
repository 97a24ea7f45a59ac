"""The trainer: launcher, driver, loop, algorithms, Megatron, rollouts, weights, checkpoints, data, rewards, reports."""
