"""Specs that cost as much as their authors can make them cost: up to the largest object that the API server takes, and of every shape."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from api.specs import raw_spec

LARGEST = 1_400_000
"""Bytes of an object, about, that etcd takes."""
PLACES: dict[str, tuple[str | int, ...]] = {
    "an unknown field": ("unknown",),
    "an unknown field of a section": ("train", "unknown"),
    "verbatim keys of Megatron": ("trainer", "transformerConfig"),
    "verbatim keys of vLLM": ("rollout", "vllmArgs"),
    "an affinity": ("trainer", "template", "affinity"),
    "labels": ("trainer", "template", "labels"),
    "node selectors": ("rollout", "template", "nodeSelector"),
    "annotations": ("trainer", "template", "annotations"),
    "tolerations": ("trainer", "template", "tolerations"),
    "requests": ("trainer", "template", "resources", "requests"),
    "a number": ("trainer", "nodes"),
    "a fraction": ("rollout", "sampling", "temperature"),
    "a truth value": ("suspend",),
    "a choice": ("task",),
    "a quantity": ("trainer", "shmSize"),
    "a path": ("model", "path"),
    "a source": ("model", "source"),
    "an image": ("image",),
    "a pattern": ("runtimeClassName",),
    "topology levels": ("scheduling", "topologyLevels"),
    "the environment": ("env",),
    "volumes": ("volumes",),
    "rewards": ("rewards",),
    "pools": ("pools",),
    "data": ("data", "train"),
    "evaluation sets": ("evaluation", "sets"),
    "sources": ("data", "sources"),
    "stops": ("rollout", "sampling", "stop"),
    "the whole train section": ("train",),
}
NEAR = "moe_router_topk_scaling_"
"""Near to keys of Megatron, so that a comparison takes as long as it can."""
ENTRIES: tuple[Any, ...] = (
    {},
    1,
    "",
    "x",
    None,
    [],
    {"name": "A"},
    {"name": "data", "mountPath": "/data", "source": {"emptyDir": {}}},
    {"rule": "exactMatch", "unknown": 1},
    {"source": "hf://a/b", "path": "/data"},
    {"name": "judge", "model": "/m", "unknown": {}},
    {"vllm": {"pool": "judge", "judge": {"prompt": "p", "score": "(" * 100}}},
)


def texts(size: int) -> Iterator[str]:
    """Texts that make expressions with repetitions inside repetitions, or next to each other, try every division."""
    for part in ("1", "a", " ", "-", "a-", "a.", "1.", "/", "\n ", "\x1b[", "(", "(a+)+", "a{9}", "é", NEAR):
        body = part * (size // len(part.encode()))
        yield body
        yield body + "!"
        yield "a" + body


def wide(size: int) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for i in count():
        if (size := size - len(NEAR) - 12) < 0:
            return keys
        keys[f"{NEAR}{i}"] = 1
    raise AssertionError


def deep(depth: int, inner: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = inner(value)
    return value


def values(size: int) -> Iterator[tuple[str, Any]]:
    """Name and value, each of about `size` bytes of JSON, as far as its shape allows."""
    for text in texts(size):
        yield f"text {text[:6]!r}...{text[-3:]!r}", text
    yield "wide", wide(size)
    yield "wide, with lists", {key: [[]] for key in wide(size // 2)}
    yield "one long key", {NEAR * (size // len(NEAR)): 1}
    for entry in ENTRIES:
        yield f"list of {entry!r}"[:60], [entry] * (size // max(3, len(repr(entry))))
    for depth in (30, 400):
        yield f"objects of depth {depth}", deep(depth, lambda value: {"a": value})
        yield f"lists of depth {depth}", deep(depth, lambda value: [value])
    yield "deep and wide", {f"k{i}": deep(30, lambda value: {"a": value}) for i in range(size // 200)}


def placed(place: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """A valid spec with the value in place of what is there."""
    spec = raw_spec()
    section: Any = spec
    for key in place[:-1]:
        section[key] = dict(section.get(key, {}))
        section = section[key]
    section[place[-1]] = value
    return spec


def hostile_specs(size: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """What it is, and the spec: every value in every place."""
    for name, value in values(size):
        for place, path in PLACES.items():
            yield f"{place}: {name}", placed(path, value)
