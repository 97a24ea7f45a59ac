"""Pipeline stages that know the shape of every message, in place of asking each other.

Micro-batches differ in length, for which megatron-core has `variable_seq_lengths`: before each message the stages exchange its shape, wait for the
device, and read the shape on the host (core/pipeline_parallel/p2p_communication.py:264). The GPU then idles until the host has launched
kernels again, twice for each micro-batch and stage. But every stage has the same plan of micro-batches, so that all shapes are known beforehand.

Messages between two stages arrive in the order in which they were sent. It is that of the schedule: micro-batches one after another, or, where a
stage has several chunks (interleaving), the schedule's own table. Then the last stage sends to the first one, all but what the last chunk makes.

Can go when upstream takes the lengths of micro-batches.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from megatron.core.pipeline_parallel import schedules
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.patches import Patch

NOTHING = [0, 0, 0]


class PlannedCommunicator(P2PCommunicator):
    """The messages of one pass between this rank's stage and its neighbours.

    `lengths`: tokens of each micro-batch that a rank sends on, in order. `chunks`: how many a stage has, 1 without interleaving. Raises RuntimeError
    where a stage is about to send what the plan does not have.
    """

    def __init__(self, group: Any, config: Any, lengths: Sequence[int], chunks: int) -> None:
        super().__init__(pp_group=group, config=config)
        in_turn = config.microbatch_group_size_per_vp_stage
        ends = messages(lengths, chunks, in_turn, self.is_pp_first_stage, self.is_pp_last_stage)
        prev, next_ = ([[length, 1, config.hidden_size] for length in end] for end in ends)
        self._recv_prev, self._send_prev = iter(prev), iter(prev)
        self._recv_next, self._send_next = iter(next_), iter(next_)

    def _communicate_shapes(
        self,
        tensor_send_next: torch.Tensor | None,
        tensor_send_prev: torch.Tensor | None,
        recv_prev: bool,
        recv_next: bool,
    ) -> tuple[list[int], list[int]]:
        """Of what comes from the previous and from the next stage."""
        require(tensor_send_next, self._send_next)
        require(tensor_send_prev, self._send_prev)
        return next(self._recv_prev) if recv_prev else NOTHING, next(self._recv_next) if recv_next else NOTHING


def messages(lengths: Sequence[int], chunks: int, in_turn: int, first: bool, last: bool) -> tuple[list[int], list[int]]:
    """Lengths of the messages between a stage and the previous one, and between it and the next one. Gradients go back in the same order.

    `in_turn`: micro-batches that pass a chunk before the next chunk has its turn (microbatch_group_size_per_vp_stage).
    """
    passes = (
        schedules.get_schedule_table(len(lengths), chunks, in_turn)
        if chunks > 1
        else [(m, 0) for m in range(len(lengths))]
    )
    between = [lengths[micro_batch] for micro_batch, _ in passes]
    around = [lengths[micro_batch] for micro_batch, chunk in passes if chunk < chunks - 1]
    return around if first else between, around if last else between


def require(tensor: torch.Tensor | None, planned: Iterator[list[int]]) -> None:
    """That the next message has this shape: the peer would wait for the rest of it, or read less."""
    if tensor is None:
        return
    shape = next(planned)
    if list(tensor.shape) != shape:
        raise RuntimeError(f"a stage sends {list(tensor.shape)} where the plan of micro-batches has {shape}")


def arguments(config: Any, lengths: Sequence[int], chunks: int) -> dict[str, Any]:
    """What a schedule takes for it; nothing without pipeline parallelism."""
    if config.pipeline_model_parallel_size == 1:
        return {}
    groups = schedules._build_default_pg_collection()
    return {
        "p2p_communicator": PlannedCommunicator(groups.pp, config, lengths, chunks),
        "pg_collection": groups,
    }


_P2P, _SCHEDULES = (
    "megatron/core/pipeline_parallel/p2p_communication.py",
    "megatron/core/pipeline_parallel/schedules.py",
)
PATCHES = (
    Patch(
        "shapes of messages between pipeline stages",
        "megatron-core",
        VERSIONS["megatron-core"],
        replaces={
            f"{_P2P}:P2PCommunicator": "cd37515747d117b1",
            f"{_SCHEDULES}:_build_default_pg_collection": "3a1e59a8af245cea",
            f"{_SCHEDULES}:get_schedule_table": "855b180018aafe7d",
            f"{_SCHEDULES}:forward_backward_pipelining_with_interleaving": "c65685c607681f9c",
            f"{_SCHEDULES}:forward_backward_pipelining_without_interleaving": "4495c5d6a879bddf",
        },
    ),
)
