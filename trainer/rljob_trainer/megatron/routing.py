"""Router replay: a pass sends tokens to the same experts as an earlier pass.

Routers change a little with every update, and vLLM rounds bfloat16 differently. A token that is routed to another expert gets another probability,
which is noise in importance ratios. Replay fixes the choice of experts; their weights are still computed by the current router, so that it learns.
The micro-batch carries the experts: those of the pass that measured the old log-probabilities (arXiv 2507.18071, section 5.3; R2 in arXiv
2510.11370), or those that the rollouts returned (R3).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction

from rljob_api.sizing.shape import BYTE_EXPERTS
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.megatron.packing import MicroBatch, PackedRow
from rljob_trainer.megatron.parallel_state import ParallelState
from rljob_trainer.wire.trajectory import Trajectory


class Routing:
    """Router replay of one model; does nothing for models without replaying routers."""

    def __init__(self, chunks: Sequence[torch.nn.Module]) -> None:
        self._routers = {id(chunk): routers_of(chunk) for chunk in chunks}
        self._index = _index_type(chunks)
        self._action: RouterReplayAction | None = None

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """A context in which passes record the chosen experts in each micro-batch."""
        with self._doing(RouterReplayAction.RECORD):
            yield

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """A context in which passes, including recomputation, use the experts recorded in each micro-batch."""
        with self._doing(RouterReplayAction.REPLAY_FORWARD):
            yield

    @contextmanager
    def of(self, chunk: torch.nn.Module, micro: MicroBatch) -> Iterator[None]:
        """A context for the forward pass of a micro-batch through one model chunk."""
        routers = self._routers[id(chunk)]
        for layer, router in routers.items():
            router.router_replay_action = self._action
            if self._action is RouterReplayAction.REPLAY_FORWARD:
                _replay(router, micro.routed_experts.get(layer))
        yield
        if self._action is RouterReplayAction.RECORD:
            micro.routed_experts = micro.routed_experts | {
                layer: _recorded(router, self._index) for layer, router in routers.items()
            }

    @contextmanager
    def _doing(self, action: RouterReplayAction) -> Iterator[None]:
        routers = [router for of_chunk in self._routers.values() for router in of_chunk.values()]
        self._action = action
        try:
            yield
        finally:
            self._action = None
            for router in routers:
                router.router_replay_action = router.target_topk_idx = None


def _replay(router: RouterReplay, experts: torch.Tensor | None) -> None:
    """Set the experts of the next pass. RouterReplay.set_target_indices is not used, since it also queues them for a backward pass. A micro-batch of
    padding only has no experts."""
    if experts is None:
        router.router_replay_action = None
    else:
        router.target_topk_idx = experts.long()


def routers_of(chunk: torch.nn.Module) -> dict[int, RouterReplay]:
    """[layer number, from 1] -> its replaying router."""
    routers = (getattr(module, "router_replay", None) for module in chunk.modules())
    return {router.layer_number: router for router in routers if router is not None}


def _index_type(chunks: Sequence[torch.nn.Module]) -> torch.dtype:
    """Of the numbers of experts, as in trajectory.Experts."""
    modules: Iterator[Any] = (module for chunk in chunks for module in chunk.modules())
    many = any(hasattr(m, "router_replay") and m.config.num_moe_experts > BYTE_EXPERTS for m in modules)
    return torch.int16 if many else torch.uint8


def returned_experts(
    row: PackedRow, trajectories: Mapping[int, Trajectory], parallel: ParallelState
) -> dict[int, torch.Tensor]:
    """MicroBatch.routed_experts from the experts that the rollouts returned. Raises ConfigurationError when trajectories have none."""
    own = [trajectories[i].routed_experts for i in row.rows]
    returned = [experts for experts in own if experts is not None]
    if len(returned) < len(own):
        rule = "the batches were recorded without the experts of their rollouts"
        raise ConfigurationError(
            "spec.algorithm.rolloutCorrection.routerReplay", "rollout", rule, "set trainer or none"
        )
    if not returned:
        return {}
    _, layers, count = returned[0].shape
    valid = torch.arange(count, dtype=torch.from_numpy(returned[0]).dtype)
    whole = valid.expand(row.length, layers, count).clone()  # padding needs valid experts, too
    for start, experts in zip(row.starts, returned, strict=True):
        whole[start : start + len(experts)] = torch.from_numpy(experts)
    # with tensor parallelism, layers with experts are sequence-parallel
    part = whole[row.share].chunk(parallel.layout.tensor)[dist.get_rank(parallel.tensor_group)]
    # in one copy to the device: with one per layer, every pass would wait for it in each layer
    by_layer = part.transpose(0, 1).contiguous().to(parallel.device)
    return dict(enumerate(by_layer, 1))


def _recorded(router: RouterReplay, index: torch.dtype) -> torch.Tensor:
    """Take the recorded experts from a router."""
    experts, router.recorded_topk_idx = router.recorded_topk_idx, None
    assert experts is not None, "every micro-batch is routed"
    return experts.to(index)
