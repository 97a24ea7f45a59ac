"""A tensor of which only a slice is there, for vLLM's loaders, which read their own part of every tensor at its place in the whole."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from rljob_api.callbacks import nothing
from rljob_trainer.wire.weights.slices import Slice

NOWHERE = torch.device("meta")
Region = tuple[tuple[int, int], ...]
"""[first, end) along each dimension of a tensor."""
_WHOLE_COPIES = (torch.ops.aten.clone.default, torch.ops.aten._to_copy.default)


class NotReceivedError(RuntimeError):
    """A loader reads what was not sent: it has not read that when it was asked what it needs."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What there is of a tensor."""

    name: str
    shape: tuple[int, ...]
    """Of the whole."""
    slice: Slice
    there: Tensor
    """The slice. Contiguous."""
    noted: Callable[[Region], None]
    """Called with what is read of the whole."""


class PartialTensor(Tensor):
    """Has the shape of the whole, or of a view of it, and no memory. Views are views of the whole; any other operator reads from the slice, and gets
    a plain tensor. A copy of the whole, in another type or elsewhere, is partial as well."""

    origin: Origin
    form: Tensor
    """The same view of a tensor without memory."""

    @staticmethod
    def of(
        name: str, shape: Sequence[int], part: Slice, there: Tensor, noted: Callable[[Region], None] = nothing
    ) -> "PartialTensor":
        """`there`: the slice `part` of a tensor of this shape. `noted` is called with what is read."""
        form = torch.empty(tuple(shape), dtype=there.dtype, device=NOWHERE)
        return PartialTensor(form, Origin(name, tuple(shape), part, there, noted))

    @staticmethod
    def __new__(cls, form: Tensor, origin: Origin) -> "PartialTensor":
        made: PartialTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            form.size(),
            strides=form.stride(),
            storage_offset=form.storage_offset(),
            dtype=form.dtype,
            device=origin.there.device,
        )
        made.form, made.origin = form, origin
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs, own = kwargs or {}, args[0] if args else None
        if func.is_view and isinstance(own, PartialTensor):
            forms = func(own.form, *args[1:], **kwargs)
            return tree_map_only(Tensor, lambda form: PartialTensor(form, own.origin), forms)
        if func in _WHOLE_COPIES and isinstance(own, PartialTensor) and own._is_whole:
            return own._copied(func(own.origin.there, **kwargs))
        args, kwargs = tree_map_only(PartialTensor, PartialTensor._read, (args, kwargs))
        return func(*args, **kwargs)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"PartialTensor({self.origin.name}, {list(self.form.shape)}, {self.origin.slice})"

    @property
    def _is_whole(self) -> bool:
        """Whether this is no view of a part."""
        return self.form.shape == self.origin.shape and self.form.is_contiguous()

    def _copied(self, there: Tensor) -> "PartialTensor":
        return PartialTensor(torch.empty_like(self.form, dtype=there.dtype), replace(self.origin, there=there))

    def _read(self) -> Tensor:
        """What this view has in the slice. Raises NotReceivedError."""
        origin, form = self.origin, self.form
        if not form.numel():  # a row is sent for it: a loader that is never called does not fill what is left over
            origin.noted(tuple((0, min(1, size)) for size in origin.shape))
            return form.new_empty(form.shape, device=origin.there.device)
        if form.dtype.itemsize != origin.there.dtype.itemsize:  # then its numbers are not those of the tensor
            origin.noted(tuple((0, size) for size in origin.shape))
            return self._of_all()
        view = _View.of(origin.shape, form)
        origin.noted(view.region)
        first, at = self._place(view.region[origin.slice.dim])
        offset, strides = view.within(origin.slice.of(origin.shape), origin.slice.dim, first - at)
        start = origin.there.storage_offset() + offset
        return origin.there.as_strided(form.shape, strides, start).view(form.dtype)

    def _place(self, wanted: tuple[int, int]) -> tuple[int, int]:
        """Where the range begins that has `wanted`, in the whole and in the slice."""
        at = 0
        for first, end in self.origin.slice.ranges:
            if first <= wanted[0] and wanted[1] <= end:
                return first, at
            at += end - first
        raise NotReceivedError(
            f"vLLM's loaders read {list(wanted)} along dimension {self.origin.slice.dim} of {self.origin.name}, of which "
            f"this worker has {self.origin.slice}"
        )

    def _of_all(self) -> Tensor:
        if self.origin.slice.of(self.origin.shape) != self.origin.shape:
            raise NotReceivedError(f"vLLM's loaders read all of {self.origin.name}, and this worker has a slice")
        all_of = self.origin.there.view(self.form.dtype)
        return all_of.as_strided(self.form.shape, self.form.stride(), self.form.storage_offset())


@dataclass(frozen=True, slots=True)
class _View:
    """Where the elements of a view are in the whole."""

    region: Region
    """Contains all of them."""
    corner: tuple[int, ...]
    """Of the first one, along each dimension of the whole; or along the whole's memory, if there is no other way to tell."""
    steps: tuple[tuple[int, ...], ...]
    """From one to the next along each dimension of the view, counted as the corner is."""

    @staticmethod
    def of(shape: tuple[int, ...], form: Tensor) -> "_View":
        """`form`: a view of a contiguous tensor of this shape."""
        sizes = form.shape
        corner = _places(int(form.storage_offset()), shape)
        steps = tuple(
            _places(stride if size > 1 else 0, shape) for size, stride in zip(sizes, form.stride(), strict=True)
        )
        last = [c + sum((n - 1) * step[d] for n, step in zip(sizes, steps, strict=True)) for d, c in enumerate(corner)]
        if all(at < size for at, size in zip(last, shape, strict=True)):
            return _View(tuple((first, at + 1) for first, at in zip(corner, last, strict=True)), corner, steps)
        row, offset = math.prod(shape[1:]), int(form.storage_offset())
        end = offset + sum((n - 1) * stride for n, stride in zip(sizes, form.stride(), strict=True))
        rows = (offset // row, end // row + 1)
        in_memory = tuple((stride,) for stride in form.stride())
        return _View((rows, *((0, size) for size in shape[1:])), (offset,), in_memory)

    def within(self, shape: tuple[int, ...], dim: int, before: int) -> tuple[int, list[int]]:
        """Offset and strides of this view in a slice of this shape, without `before` elements along `dim` that the whole has before it."""
        if len(self.corner) < len(shape):
            return self.corner[0] - before * math.prod(shape[1:]), [step for (step,) in self.steps]
        strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
        offset = sum(c * s for c, s in zip(self.corner, strides, strict=True)) - before * strides[dim]
        return offset, [sum(n * s for n, s in zip(step, strides, strict=True)) for step in self.steps]


def _places(distance: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Along each dimension, of a distance in the memory of a contiguous tensor. The first may be as large as it likes."""
    places: list[int] = []
    for size in reversed(shape[1:]):
        distance, rest = divmod(distance, size)
        places.append(rest)
    return (distance, *reversed(places))
