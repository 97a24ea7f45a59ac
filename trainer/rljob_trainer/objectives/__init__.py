"""The mathematics, as pure functions of tensors: a file per estimator or loss, with its formula and its paper."""
