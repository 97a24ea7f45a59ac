"""vLLM's schedulers, whose outputs leave the engine in pieces (`--scheduler-cls`); pieces.py says why and how.

Can go when vLLM hands out the outputs of several steps at once (a final-only request still costs a message for each token).
"""

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import LogprobsLists

from rljob_trainer.patches import Patch
from rljob_trainer.server.compat import VERSIONS
from rljob_trainer.server.compat.pieces import InPieces


class SchedulerInPieces(InPieces, Scheduler):
    """For an engine that schedules a step when the one before has ended, as on CPU."""

    new_outputs, new_rows = EngineCoreOutputs, LogprobsLists


class AsyncSchedulerInPieces(InPieces, AsyncScheduler):
    """For an engine that schedules a step while the one before runs, as on a GPU."""

    new_outputs, new_rows = EngineCoreOutputs, LogprobsLists


def scheduler(vllm_config: Any, **more: Any) -> Scheduler:
    """The one for this engine, chosen as vLLM chooses (config/scheduler.py, get_scheduler_cls). It calls what we name in place of a class."""
    kind = AsyncSchedulerInPieces if vllm_config.scheduler_config.async_scheduling else SchedulerInPieces
    return kind(vllm_config=vllm_config, **more)


PATCHES = (
    Patch(
        "outputs in pieces",
        "vllm",
        VERSIONS,
        replaces={
            "vllm/v1/core/sched/scheduler.py:Scheduler.update_from_output": "4bb55e02c6a82b91",
            "vllm/v1/core/sched/scheduler.py:Scheduler.finish_requests": "282393baad638783",
            "vllm/v1/engine/__init__.py:EngineCoreOutput": "8c134667ff099e96",
            "vllm/v1/outputs.py:LogprobsLists": "8487fac20ac007a1",
        },
    ),
    Patch(
        "nothing held back in a pause",
        "vllm",
        VERSIONS,
        replaces={
            "vllm/v1/core/sched/scheduler.py:Scheduler.set_pause_state": "773a7b504af4c304",
            "vllm/v1/core/sched/scheduler.py:Scheduler.has_requests": "2fabdf9440a786f5",
            "vllm/v1/engine/core.py:EngineCoreProc.has_work": "816d2ca95a6c5562",
            "vllm/v1/engine/core.py:EngineCoreProc.pause_scheduler": "d3535cd96ff32545",
            "vllm/v1/engine/core.py:EngineCore._attach_weight_version": "699ed46f9dcc3aef",
            "vllm/v1/engine/output_processor.py:RequestState.track_weight_version": "d980e31f6014fe2b",
            "vllm/v1/engine/output_processor.py:RequestState._weight_version_spans": "e364fb070a269747",
        },
    ),
)
