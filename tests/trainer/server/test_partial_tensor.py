"""Loaders read a slice as they read the whole tensor, and are refused what is not there."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rljob_trainer.server.weights.partial_tensor import NOWHERE, NotReceivedError, PartialTensor, Region
from rljob_trainer.wire.weights.slices import NOTHING, Slice, covering

Read = Callable[[Tensor], Tensor]
READS: dict[str, Read] = {
    "rows": lambda t: t.narrow(0, 4, 2),
    "columns": lambda t: t.narrow(1, 3, 3).clone(),
    "columns of a transposed matrix": lambda t: t.t()[2:4],
    "every other row": lambda t: t[1::2],
    "a row": lambda t: t[5],
    "an element": lambda t: t[5, 1],
    "a chunk": lambda t: t.chunk(4)[2],
    "rows of heads": lambda t: t.view(4, 2, 6)[1].unsqueeze(0),
    "a flat part": lambda t: t.view(-1)[12:30],
    "rows as one dimension": lambda t: t.narrow(0, 2, 3).reshape(-1),
    "columns as one dimension": lambda t: t.narrow(1, 2, 2).reshape(-1),
    "two parts": lambda t: torch.cat([t[0:2], t[6:8]]),
    "in another type": lambda t: t.to(torch.float64).narrow(0, 2, 2),
    "of a copy": lambda t: t.clone().contiguous()[2:4],
    "the same for all": lambda t: t[3:4].expand(5, 6),
    "in the same number of bytes": lambda t: t.narrow(0, 4, 2).view(torch.int32),
    "picked rows": lambda t: t[torch.tensor([1, 6])],
    "everything": lambda t: t * 2,
    "bytes": lambda t: t.view(torch.uint8)[2:3],
    "nothing": lambda t: t[8:],
}
WHOLE = {"picked rows", "everything", "bytes"}


def asked(read: Read, shape: tuple[int, ...]) -> Slice | None:
    """What a loader reads of a tensor, as a worker finds out."""
    boxes: list[Region] = []
    nowhere = torch.empty(shape, device=NOWHERE)
    partial = PartialTensor.of("w", shape, Slice(0, ((0, shape[0]),)), nowhere, boxes.append)
    torch.empty_like(read(partial)).copy_(read(partial))
    return covering(shape, boxes)


def given(tensor: Tensor, part: Slice) -> PartialTensor:
    rows = torch.cat([tensor.narrow(part.dim, a, b - a) for a, b in part.ranges], part.dim)
    in_a_bucket = torch.cat([torch.zeros(7), rows.flatten()])[7:].view(rows.shape)
    return PartialTensor.of("w", tuple(tensor.shape), part, in_a_bucket)


@pytest.mark.parametrize("name", READS)
def test_what_a_loader_reads_of_a_slice_is_what_it_reads_of_the_whole(name: str) -> None:
    tensor, read = torch.rand(8, 6), READS[name]
    part = asked(lambda t: read(t) if name != "picked rows" else t[torch.tensor([1, 6], device=t.device)], (8, 6))
    if name in WHOLE:
        assert part is None
    else:
        assert part and part.length < tensor.shape[part.dim]
        if part != NOTHING:
            expected, found = read(tensor), read(given(tensor, part))
            assert torch.equal(torch.empty_like(expected).copy_(found), expected)


@pytest.mark.parametrize("seed", range(30))
def test_any_views_of_a_tensor_of_any_shape_are_read_from_the_slice_that_covers_them(seed: int) -> None:
    of = random.Random(seed)
    shape = tuple(of.choice([1, 2, 3, 4, 6, 8]) for _ in range(of.randint(1, 4)))
    tensor, steps = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape), of.randint(1, 5)

    def read(tensor: Tensor) -> Tensor:
        draw = random.Random(seed + 100)
        for _ in range(steps):
            dim = draw.randrange(tensor.dim()) if tensor.dim() else 0
            match draw.randrange(5) if tensor.dim() else 4:
                case 0:
                    first = draw.randrange(tensor.shape[dim])
                    tensor = tensor.narrow(dim, first, draw.randint(1, tensor.shape[dim] - first))
                case 1:
                    tensor = tensor.transpose(dim, draw.randrange(tensor.dim()))
                case 2:
                    tensor = tensor.select(dim, draw.randrange(tensor.shape[dim]))
                case 3:
                    tensor = tensor.chunk(draw.choice([1, 2, 3]), dim)[-1]
                case _:
                    tensor = tensor.unsqueeze(0) if draw.random() < 0.5 or not tensor.dim() else tensor.flatten()
        return tensor

    part = asked(read, shape)
    assert part != NOTHING
    expected = read(tensor)
    found = read(given(tensor, part) if part else tensor)
    assert torch.equal(torch.empty_like(expected).copy_(found), expected)


def test_a_loader_that_reads_what_was_not_sent_is_refused() -> None:
    partial = given(torch.rand(8, 6), Slice(0, ((2, 4), (6, 8))))
    for read in (lambda t: t[3:5], lambda t: t[2:8], lambda t: t + 1, lambda t: t.view(torch.uint8)[0], lambda t: t[0]):
        with pytest.raises(NotReceivedError, match=r"of w"):
            read(partial).clone()
    assert repr(partial) == "PartialTensor(w, [8, 6], 0:2-4,6-8)" and partial.clone().shape == (8, 6)


def test_a_copy_of_a_partial_tensor_outlives_the_bucket_that_it_came_in() -> None:
    """vLLM keeps the tensors of a layer until it has all of them."""
    tensor = torch.rand(8, 6)
    partial = given(tensor, Slice(0, ((2, 4),)))
    kept = partial.clone()
    partial.origin.there.fill_(7)
    assert torch.equal(kept[2:4].clone(), tensor[2:4])
