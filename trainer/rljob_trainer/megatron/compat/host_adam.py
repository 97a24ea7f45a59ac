"""AdamW whose float32 weights stay in host memory with the moments, in place of megatron's HybridDeviceOptimizer (`optimizer_cpu_offload`).

megatron's (core/optimizer/cpu_offloading/hybrid_optimizer.py) does not start without a GPU, keeps a pinned float32 copy of all gradients besides
(16 bytes per parameter on the host in place of 12), pins each tensor in a block whose size torch rounds up to a power of two, and copies everything
once more whenever a checkpoint is loaded. Ours answers what DistributedOptimizer asks of it with `use_precision_aware_optimizer`: parameters are the
model's own, gradients are `decoupled_grad`, and `state` has `master_param`, `exp_avg` and `exp_avg_sq`, so that checkpoints have the usual format.
Can go when upstream's runs on CPU and holds no more than it needs.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from rljob_trainer.machine import cpus
from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.patches import Patch

MOST = 2**22
"""Numbers in a piece. Its gradients are 16 MiB of pinned memory, which the host's caches may still hold when they are used."""
MOMENTS = ("exp_avg", "exp_avg_sq")
KEPT = ("master_param", *MOMENTS)
"""Keys of what a parameter has in host memory."""
LANES = 2
"""Pieces under way: the gradients of the next one arrive while one is computed, and the weights of the one before leave."""


class HostAdam(torch.optim.AdamW):
    """Implements what megatron's DistributedOptimizer uses of HybridDeviceOptimizer. A parameter's state is made by `allocate`, not before."""

    def __init__(
        self, params: Any, lr: float, betas: tuple[float, float], eps: float, weight_decay: float, **_: Any
    ) -> None:
        """`_`: how megatron's own would share the work between host and GPU."""
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        self.moments = torch.float32
        """Type in which both moments are kept between steps, which compute in float32; set before `allocate`."""
        self._lanes: list[_Lane] = []

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Without torch's checks: the shard of a float32 parameter is no leaf."""
        self.param_groups.append({**self.defaults, **param_group, "params": list(param_group["params"])})

    @property
    def sub_optimizers(self) -> list["HostAdam"]:
        """Where DistributedOptimizer finds the number of steps."""
        return [self]

    @torch.no_grad()
    def allocate(self) -> None:
        """Give every parameter its state, unless it has one."""
        with share_of_cpus():
            for p in (p for group in self.param_groups for p in group["params"] if not self.state[p]):
                kept = {"master_param": _zeros(p, torch.float32)} | {key: _zeros(p, self.moments) for key in MOMENTS}
                self.state[p] = {"step": torch.tensor(0.0, device="cpu")} | kept
                self.state[p]["master_param"].copy_(p)

    @torch.no_grad()
    def update_fp32_param_by_new_param(self) -> None:
        """Take the model's weights, which have changed, into the float32 ones."""
        for p, state in self.state.items():
            state["master_param"].copy_(p)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Settings only: states are put into the tensors that are there. torch would bring them to the parameters' device and type."""
        for group, loaded in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({key: value for key, value in loaded.items() if key not in ("params", "step")})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the weights of all parameters that have gradients. Copies back may be under way in the end, before whatever the current stream
        does next."""
        self.allocate()
        pieces = [piece for group in self.param_groups for piece in self._pieces(group)]
        with share_of_cpus():
            lanes = self._ready_lanes()
            for lane, piece in zip(lanes, pieces, strict=False):
                lane.fetch(piece)
            for i, piece in enumerate(pieces):
                lanes[i % LANES].update(piece)
                if i + LANES < len(pieces):
                    lanes[i % LANES].fetch(pieces[i + LANES])
        if self._lanes:
            torch.cuda.current_stream().wait_stream(self._lanes[0].back)

    def _ready_lanes(self) -> list["_Lane"]:
        """Whose copies begin after what the current stream has done so far."""
        if not self._lanes:
            there, back = torch.cuda.Stream(), torch.cuda.Stream()
            self._lanes = [_Lane(there, back, self.moments) for _ in range(LANES)]
        for stream in (self._lanes[0].there, self._lanes[0].back):
            stream.wait_stream(torch.cuda.current_stream())
        return self._lanes

    def _pieces(self, group: dict[str, Any]) -> Iterator["_Piece"]:
        """Of the parameters of a group that have gradients; counts their steps."""
        learnt = [p for p in group["params"] if getattr(p, "decoupled_grad", None) is not None]
        for p in learnt:
            self.state[p]["step"] += 1
        for spans in cut([p.numel() for p in learnt], MOST):
            own = [(learnt[i], self.state[learnt[i]], numbers) for i, numbers in spans]
            masters, averages, squares = ([state[key][span] for _, state, span in own] for key in KEPT)
            yield _Piece(
                group,
                [state["step"] for _, state, _ in own],
                masters,
                averages,
                squares,
                [p.decoupled_grad[span] for p, _, span in own],
                [p.detach()[span] for p, _, span in own],
            )


class _Piece(NamedTuple):
    """Runs of numbers of some parameters of a group."""

    group: dict[str, Any]
    steps: list[torch.Tensor]
    masters: list[torch.Tensor]
    averages: list[torch.Tensor]
    squares: list[torch.Tensor]
    gradients: list[torch.Tensor]
    """On the model's device, as are the weights."""
    weights: list[torch.Tensor]


class _Lane:
    """Memory of one piece, pinned where a device copies."""

    def __init__(self, there: Any, back: Any, moments: torch.dtype) -> None:
        """`there`, `back`: the streams of copies to the host and to the device, which all lanes share; `moments`: their type."""
        pinned = torch.cuda.is_available()
        self._moments = [] if moments == torch.float32 else [torch.empty(MOST, device="cpu") for _ in MOMENTS]
        self.there, self.back = there, back
        self._gradients = torch.empty(MOST, dtype=torch.float32, device="cpu", pin_memory=pinned)
        self._weights = torch.empty(MOST, dtype=torch.float32, device="cpu", pin_memory=pinned)
        self._arrived = self._left = back.record_event()

    def fetch(self, piece: _Piece) -> None:
        """Begin to copy its gradients. The piece before must be updated."""
        with torch.cuda.stream(self.there):
            for here, gradient in zip(_split(self._gradients, piece.gradients), piece.gradients, strict=True):
                here.copy_(gradient, non_blocking=True)
        self._arrived = self.there.record_event()

    def update(self, piece: _Piece) -> None:
        """Compute what was fetched, and begin to copy its weights."""
        self._arrived.synchronize()
        with self._in_float32(piece) as (averages, squares):
            _adamw(piece, _split(self._gradients, piece.masters), averages, squares)
        self._left.synchronize()
        with torch.cuda.stream(self.back):
            for room, master, weight in zip(
                _split(self._weights, piece.weights), piece.masters, piece.weights, strict=True
            ):
                rounded = room.view(weight.dtype)[: len(weight)]
                weight.copy_(rounded.copy_(master), non_blocking=True)
        self._left = self.back.record_event()

    @contextmanager
    def _in_float32(self, piece: _Piece) -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
        """Both moments of a piece to compute with. Narrower ones are copies, and are rounded to the nearest in the end."""
        if not self._moments:
            yield piece.averages, piece.squares
            return
        averages, squares = (_split(memory, piece.masters) for memory in self._moments)
        torch._foreach_copy_([*averages, *squares], [*piece.averages, *piece.squares])
        yield averages, squares
        torch._foreach_copy_([*piece.averages, *piece.squares], [*averages, *squares])


def _adamw(
    piece: _Piece, gradients: list[torch.Tensor], averages: list[torch.Tensor], squares: list[torch.Tensor]
) -> None:
    group = piece.group
    torch._fused_adamw_(
        piece.masters,
        gradients,
        averages,
        squares,
        [],
        piece.steps,
        lr=float(group["lr"]),
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
    )


def cut(lengths: Sequence[int], most: int) -> Iterator[list[tuple[int, slice]]]:
    """Pieces of at most `most` numbers of arrays of these lengths, in their order: which arrays, and which of their numbers."""
    piece: list[tuple[int, slice]] = []
    room = most
    for i, length in enumerate(lengths):
        start = 0
        while start < length:
            end = min(length, start + room)
            piece.append((i, slice(start, end)))
            room, start = room - (end - start), end
            if not room:
                yield piece
                piece, room = [], most
    if piece:
        yield piece


def _zeros(like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """In host memory whose pages exist: all threads make them. torch.zeros leaves that to the first step."""
    return torch.empty(like.shape, dtype=dtype, device="cpu").zero_()


def _split(memory: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Parts of `memory` as long as these, one behind the other."""
    lengths = [len(tensor) for tensor in like]
    return list(memory[: sum(lengths)].split(lengths))


@contextmanager
def share_of_cpus() -> Iterator[None]:
    """A context in which this thread computes on as many threads as there are CPUs for each rank of the pod. Ranks compute on one otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, cpus() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _patch() -> None:
    from megatron.core import optimizer
    from megatron.core.optimizer import distrib_optimizer

    optimizer.HybridDeviceOptimizer = distrib_optimizer.HybridDeviceOptimizer = HostAdam


PATCHES = (
    Patch(
        "optimizer steps on the host",
        "megatron-core",
        VERSIONS["megatron-core"],
        _patch,
        replaces={
            "megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py:HybridDeviceOptimizer": "6ef58d7609892dc0",
            "megatron/core/optimizer/distrib_optimizer.py:DistributedOptimizer.__init__": "24c39c1b40565618",
            "megatron/core/optimizer/distrib_optimizer.py:DistributedOptimizer.state_dict": "e297ea31cd439318",
            "megatron/core/optimizer/distrib_optimizer.py:DistributedOptimizer.load_state_dict": "20d8abc13513c146",
            "megatron/core/optimizer/distrib_optimizer.py:DistributedOptimizer._get_main_param_and_optimizer_states": "adf1497718f69b80",
            "megatron/core/optimizer/distrib_optimizer.py:DistributedOptimizer._set_main_param_and_optimizer_states": "c8046d34876d239f",
        },
    ),
)
