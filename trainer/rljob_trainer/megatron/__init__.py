"""The policy on megatron-core: the only package that imports megatron. Start with `engine.Engine`; call `compat.install` before anything else."""
