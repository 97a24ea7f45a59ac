"""Trajectories as flat little-endian arrays, for files and sockets, without an object per token. No torch here.

per trajectory [n]        segments       how many it has
                          expert_shapes  tokens, layers and experts per token of its routed experts: three numbers, 0 without
per segment [m]           lengths        tokens of it
                          sources        index of its source in trajectory.SOURCES
                          policy_steps   Segment.policy_step
                          rewards        Segment.reward
                          image_counts   images in it
per place of an image     image_places   in its segment
                          image_numbers  which of the images below; trajectories of one prompt share theirs
per image                 image_grids    rows and columns of patches, and how many of either become one token: three numbers
                          pixels         of all patches
per token [T]             tokens
per token of a policy [P] log_probs
per expert of a token  [E] routed_experts, where these are replayed; of models with more than 256 experts many_routed_experts
per response token    [R] measurements of models on other gangs, each under its name (Batch.measured)
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from math import prod
from typing import Any

import numpy as np

from rljob_trainer.wire.batch import Array, Columns
from rljob_trainer.wire.images import Image
from rljob_trainer.wire.trajectory import SOURCES, Experts, Segment, Trajectory

CHUNK_BYTES = 2**20
"""Size of the chunks in which arrays are written."""
KINDS: dict[str, type[np.generic]] = {
    "segments": np.int32,
    "expert_shapes": np.int32,
    "lengths": np.int32,
    "policy_steps": np.int32,
    "rewards": np.float32,
    "tokens": np.int32,
    "log_probs": np.float32,
    "image_counts": np.int32,
    "image_places": np.int32,
    "image_numbers": np.int32,
    "image_grids": np.int32,
    "pixels": np.float32,
    "many_routed_experts": np.int16,
    "sources": np.int8,
    "routed_experts": np.uint8,
}
"""The arrays and their types, in the order in which they are sent: the widest types first, so that all are aligned."""

EXPERTS = ("routed_experts", "many_routed_experts")
"""Those of the types that Trajectory.routed_experts may have."""


def rows(trajectories: Sequence[Trajectory]) -> dict[str, Iterator[Array]]:
    """[name] -> the array in pieces."""
    segments = [s for t in trajectories for s in t.segments]
    images = _distinct(segments)
    numbers = {identity: number for number, identity in enumerate(images)}
    placed = [place for s in segments for place in s.images]
    return {
        "segments": iter([np.array([len(t.segments) for t in trajectories], np.int32)]),
        "expert_shapes": iter([np.array([_expert_shape(t) for t in trajectories], np.int32).reshape(-1)]),
        "lengths": iter([np.array([len(s.tokens) for s in segments], np.int32)]),
        "policy_steps": iter([np.array([s.policy_step for s in segments], np.int32)]),
        "rewards": iter([np.array([s.reward for s in segments], np.float32)]),
        "tokens": (_joined([s.tokens for s in t.segments], np.int32) for t in trajectories),
        "log_probs": (
            _joined([s.log_probs for s in t.segments if s.log_probs is not None], np.float32) for t in trajectories
        ),
        "image_counts": iter([np.array([len(s.images) for s in segments], np.int32)]),
        "image_places": iter([np.array([start for start, _ in placed], np.int32)]),
        "image_numbers": iter([np.array([numbers[id(image)] for _, image in placed], np.int32)]),
        "image_grids": iter([np.array([(*i.grid, i.merge) for i in images.values()], np.int32).reshape(-1)]),
        "pixels": (image.pixels.reshape(-1) for image in images.values()),
        "sources": iter([np.array([SOURCES.index(s.source) for s in segments], np.int8)]),
        **{name: _flat_experts(trajectories, name) for name in EXPERTS},
    }


def _joined(pieces: Sequence[Array], kind: type[np.generic]) -> Array:
    """A piece for each trajectory: an agent has hundreds of short ones, and each costs as much as a long one."""
    return np.concatenate(pieces) if pieces else np.empty(0, kind)


def _flat_experts(trajectories: Sequence[Trajectory], name: str) -> Iterator[Array]:
    """Those that are of the type of this array."""
    routings = (t.routed_experts for t in trajectories if t.routed_experts is not None)
    return (experts.reshape(-1) for experts in routings if experts.dtype == kind_of(name))


def sizes(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """[name] -> length of the array, in the order of KINDS."""
    segments = [s for t in trajectories for s in t.segments]
    images, places = _distinct(segments), sum(len(s.images) for s in segments)
    by_name = {
        "segments": len(trajectories),
        "expert_shapes": 3 * len(trajectories),
        "tokens": sum(map(len, trajectories)),
        "log_probs": sum(len(s.tokens) for s in segments if s.log_probs is not None),
        "image_grids": 3 * len(images),
        "pixels": sum(image.pixels.size for image in images.values()),
        **dict.fromkeys(("lengths", "policy_steps", "rewards", "sources", "image_counts"), len(segments)),
        **dict.fromkeys(("image_places", "image_numbers"), places),
        **{name: sum(map(len, _flat_experts(trajectories, name))) for name in EXPERTS},
    }
    return {name: by_name[name] for name in KINDS}


def _expert_shape(trajectory: Trajectory) -> tuple[int, ...]:
    return (0, 0, 0) if trajectory.routed_experts is None else trajectory.routed_experts.shape


def _distinct(segments: Iterable[Segment]) -> dict[int, Image]:
    """[id] -> each distinct image object: samples of one prompt share theirs."""
    return {id(image): image for segment in segments for _, image in segment.images}


def nbytes(counts: Mapping[str, int]) -> int:
    """Bytes of all arrays. `counts`: [name] -> length."""
    return sum(kind_of(name).itemsize * count for name, count in counts.items())


def cut(block: Array, counts: Mapping[str, int]) -> dict[str, Array]:
    """The arrays in a block of bytes, in which they are concatenated in the order of `counts` ([name] -> length). Views, no copies."""
    ends = accumulate((kind_of(name).itemsize * count for name, count in counts.items()), initial=0)
    return {name: block[a:b].view(kind_of(name)) for name, (a, b) in zip(counts, pairwise(ends), strict=True)}


def kind_of(name: str) -> np.dtype[Any]:
    """Type of the array of this name: one of KINDS, or float32 for a measurement."""
    return np.dtype(KINDS.get(name, np.float32))


def split(values: Array, counts: Sequence[int]) -> list[Array]:
    """Split concatenated values, `counts` for each trajectory. Views, no copies."""
    return [values[a:b] for a, b in pairwise(accumulate(counts, initial=0))]


@dataclass(frozen=True, slots=True)
class Stream:
    """Arrays whose bytes become known while they are sent."""

    described: list[list[Any]]
    """As `described` below."""
    pieces: Iterable[Array]
    """Of all arrays, one after another."""

    @staticmethod
    def of(arrays: Mapping[str, Array]) -> "Stream":
        return Stream(described(arrays), arrays.values())


def described(arrays: Mapping[str, Array]) -> list[list[Any]]:
    """[name, type, length] of each array, as JSON."""
    return [[name, array.dtype.str, len(array)] for name, array in arrays.items()]


def allocated(description: Iterable[list[Any]]) -> dict[str, Array]:
    """Uninitialized arrays for a description that `described` returned."""
    return {name: np.empty(length, kind) for name, kind, length in description}


def raw(array: Array) -> memoryview:
    """The bytes of an array, as a memoryview."""
    return memoryview(array.view(np.uint8)).cast("B")


def chunks(pieces: Iterable[Array]) -> Iterator[bytes]:
    """The bytes of all pieces, about CHUNK_BYTES at a time."""
    held: list[memoryview] = []
    size = 0
    for piece in pieces:
        for start in range(0, piece.nbytes, CHUNK_BYTES):
            held.append(raw(piece)[start : start + CHUNK_BYTES])
            size += len(held[-1])
            if size >= CHUNK_BYTES:
                yield b"".join(held)
                held, size = [], 0
    yield b"".join(held)


def trajectories_of(arrays: Mapping[str, Array], columns: Columns, indices: Sequence[int]) -> dict[int, Trajectory]:
    """The inverse of `rows`, with views of the arrays. `indices`: the rows of `columns` to which the trajectories belong."""
    segments = list(_segments(arrays))
    ends = accumulate(arrays["segments"].tolist(), initial=0)
    return {
        i: Trajectory(segments=tuple(segments[start:end]), routed_experts=experts, **columns.at(i))
        for i, (start, end), experts in zip(indices, pairwise(ends), _routed_experts(arrays), strict=True)
    }


def _routed_experts(arrays: Mapping[str, Array]) -> Iterator[Experts | None]:
    shapes = arrays["expert_shapes"].reshape(-1, 3).tolist()
    name = next((name for name in EXPERTS if len(arrays[name])), EXPERTS[0])  # all are of one model
    parts = split(arrays[name], list(map(prod, shapes)))
    for shape, part in zip(shapes, parts, strict=True):
        yield part.reshape(shape) if len(part) else None


def _segments(arrays: Mapping[str, Array]) -> Iterator[Segment]:
    token = sampled = 0
    images = list(_images(arrays))
    numbers = zip(arrays["image_places"].tolist(), arrays["image_numbers"].tolist(), strict=True)
    names = ("lengths", "sources", "policy_steps", "image_counts", "rewards")
    described = zip(*(arrays[name].tolist() for name in names), strict=True)
    for length, number, policy_step, count, reward in described:
        tokens, source = arrays["tokens"][token : token + length], SOURCES[number]
        placed = tuple((place, images[i]) for place, i in islice(numbers, count))
        token += length
        if source == "policy":
            log_probs = arrays["log_probs"][sampled : sampled + length]
            yield Segment(tokens, source, log_probs, policy_step, placed, reward)
            sampled += length
        else:
            yield Segment(tokens, source, images=placed)


def _images(arrays: Mapping[str, Array]) -> Iterator[Image]:
    """All of one width: they are of one model."""
    grids = arrays["image_grids"].reshape(-1, 3).tolist()
    patches = [rows * columns for rows, columns, _ in grids]
    pixels = arrays["pixels"].reshape(sum(patches), -1) if grids else arrays["pixels"]
    for (rows, columns, merge), (a, b) in zip(grids, pairwise(accumulate(patches, initial=0)), strict=True):
        yield Image(pixels[a:b], (rows, columns), merge)
