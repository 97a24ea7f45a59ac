"""The mathematics of training, as pure functions of tensors: advantages, losses, KL and corrections, each with its formula and its paper."""
