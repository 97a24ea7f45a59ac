"""Which ranks own the tensors of a policy that is exported: those of one copy in all, or of one in each pod, for servers that are on its GPUs."""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu

HOME = 0
"""Where all ranks are when a policy is exported once."""


class Coordinates(NamedTuple):
    """A rank's coordinates."""

    home: int
    """Whose servers get the whole policy from its own ranks."""
    stage: int
    tensor: int
    data: int
    """Of the copies of a stage, with context parallelism."""
    expert_tensor: int
    expert: int
    expert_data: int

    @staticmethod
    def here(home: int) -> "Coordinates":
        """This rank's."""
        return Coordinates(
            home,
            mpu.get_pipeline_model_parallel_rank(),
            mpu.get_tensor_model_parallel_rank(),
            mpu.get_data_parallel_rank(with_context_parallel=True),
            mpu.get_expert_tensor_parallel_rank(),
            mpu.get_expert_model_parallel_rank(),
            mpu.get_expert_data_parallel_rank(),
        )


class Ownership(NamedTuple):
    """What a rank has to do with an export. Ranks of a copy gather tensors among themselves, and one of them owns the result."""

    gathers: bool
    """Takes part in what all ranks of its stage share."""
    gathers_experts: bool
    """Takes part in what its experts are."""
    owns: bool
    """What it gathers of the shared."""
    owns_experts: bool
    """What it gathers of single experts."""


def everywhere(place: Coordinates) -> Ownership:
    """Of a rank, when the policy is exported once: the first copy of each stage is exported."""
    return _of(place, 0, 0)


def exported_once() -> Ownership:
    """This rank's, in an export of the first copies."""
    return everywhere(Coordinates.here(HOME))


def within_homes(home: int, device: torch.device) -> Ownership | None:
    """This rank's, when each home is to have a whole policy from its own ranks; None on all ranks: a home lacks a part. Collective."""
    own = torch.tensor(Coordinates.here(home), device=device)
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    owners = ownership([Coordinates(*numbers.tolist()) for numbers in every])
    return owners[dist.get_rank()] if owners else None


def ownership(places: Sequence[Coordinates]) -> list[Ownership] | None:
    """[rank] -> its part in an export to all homes, each of which exports the copy that its first rank of a stage belongs to. None: where ranks of
    that copy are in another home, which cannot reach the servers."""
    firsts = {(p.home, p.stage): p for p in reversed(places)}
    if not all((home, stage) in firsts for home, stage in product({p.home for p in places}, {p.stage for p in places})):
        return None
    if not all(_is_whole(first, places) for first in firsts.values()):
        return None
    return [_of(p, firsts[p.home, p.stage].data, firsts[p.home, p.stage].expert_data) for p in places]


def _is_whole(first: Coordinates, places: Iterable[Coordinates]) -> bool:
    """Whether the copy of a stage that this rank belongs to is in its home."""
    copy = [p for p in places if p.stage == first.stage and p.data == first.data]
    experts = [p for p in places if p.stage == first.stage and p.expert_data == first.expert_data]
    return all(p.home == first.home for p in (*copy, *experts))


def _of(place: Coordinates, data: int, expert_data: int) -> Ownership:
    """Where these copies are exported."""
    gathers, gathers_experts = place.data == data, place.expert_data == expert_data
    return Ownership(
        gathers,
        gathers_experts,
        owns=gathers and place.tensor == 0,
        owns_experts=gathers_experts and place.expert_tensor == 0,
    )
