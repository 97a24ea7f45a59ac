"""AdamW on megatron's distributed optimizer, and the schedule of its learning rate."""

from collections.abc import Sequence
from typing import Any

from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from rljob_api.spec.algorithm import Optimizer


def build_optimizer(
    o: Optimizer, chunks: Sequence[DistributedDataParallel], steps: int
) -> tuple[Any, OptimizerParamScheduler]:
    """`steps`: optimizer steps of the whole job, over which the rate falls after its linear warm-up."""
    model = chunks[0].config
    config = OptimizerConfig(
        optimizer="adam",
        lr=o.learning_rate,
        min_lr=o.min_learning_rate,
        weight_decay=o.weight_decay,
        adam_beta1=o.beta1,
        adam_beta2=o.beta2,
        adam_eps=o.epsilon,
        clip_grad=o.clip_grad,
        bf16=model.bf16,
        params_dtype=model.params_dtype,
        use_distributed_optimizer=True,
        overlap_param_gather=chunks[0].ddp_config.overlap_param_gather,
    )
    optimizer = get_megatron_optimizer(config, list(chunks))
    last = max(steps, o.warmup_steps + 1)
    scheduler = OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=o.learning_rate,
        min_lr=o.min_learning_rate,
        lr_warmup_steps=o.warmup_steps,
        lr_decay_steps=last,
        lr_decay_style=o.decay,
        start_wd=o.weight_decay,
        end_wd=o.weight_decay,
        wd_incr_steps=last,
        wd_incr_style="constant",
        use_checkpoint_opt_param_scheduler=False,
        override_opt_param_scheduler=True,  # after a resume the spec's numbers hold, not the checkpoint's; the count of steps is the checkpoint's
    )
    return optimizer, scheduler
