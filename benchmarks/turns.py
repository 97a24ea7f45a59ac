"""Alternatives that take turns on one GPU, so that machine and moment are the same for all; and how far their results are apart."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from benchmarks.training import synchronize


def by_turns(steps: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each step of each round, after a round that does not count."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds + 1):
        for name, step in steps.items():
            synchronize()
            began = time.perf_counter()
            step()
            synchronize()
            times[name].append(time.perf_counter() - began)
    return {name: measured[1:] for name, measured in times.items()}


def distances(results: dict[str, Iterable[torch.Tensor]], start: Sequence[torch.Tensor]) -> dict[str, float]:
    """Of each result from the first one, as a share of the first one's distance from `start`."""
    apart, changed = dict.fromkeys(results, 0.0), 0.0
    for began, first, *others in zip(start, *results.values(), strict=True):
        changed += _square(first, began.to(first.device))
        for name, tensor in zip(results, (first, *others), strict=True):
            apart[name] += _square(tensor, first)
    return {name: (distance / changed) ** 0.5 for name, distance in apart.items()}


def _square(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.detach().float() - b.detach().float()).norm()) ** 2
