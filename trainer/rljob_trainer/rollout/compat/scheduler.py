"""vLLM's schedulers, whose outputs leave the engine in pieces (`--scheduler-cls`)."""

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs

from rljob_trainer.rollout.compat.pieces import InPieces


class SchedulerInPieces(InPieces, Scheduler):
    """For an engine that schedules a step when the one before has ended, as on CPU."""

    new_outputs = EngineCoreOutputs


class AsyncSchedulerInPieces(InPieces, AsyncScheduler):
    """For an engine that schedules a step while the one before runs, as on a GPU."""

    new_outputs = EngineCoreOutputs


def scheduler(vllm_config: Any, **more: Any) -> Scheduler:
    """The one for this engine, chosen as vLLM chooses among its own (config/scheduler.py:180). It calls what we name in place of a class."""
    kind = AsyncSchedulerInPieces if vllm_config.scheduler_config.async_scheduling else SchedulerInPieces
    return kind(vllm_config=vllm_config, **more)
