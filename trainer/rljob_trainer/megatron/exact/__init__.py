"""The policy computed with vLLM's own kernels, so that the trainer's log-probabilities are those of the rollouts, bit by bit (`rollout.exact`).

`cpu` and `gpu` hold the kernels, and are the only modules of a rank that import vLLM. Each has the same functions, whose result for a row depends
on that row alone. `functions` gives them gradients, and `model` puts them into a model.
"""
