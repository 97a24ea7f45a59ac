"""How many trainers and rollouts each node gets so that all fit, for the rare cluster on which filling greedily fails.

Dynamic programming over nodes: best[a] is the largest number of rollouts that fit alongside `a` trainers on the nodes so far. Nodes that hold only
one of the two kinds are counted, not searched. Of most gangs that do not fit a bound says so before.
"""

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from math import floor

from rljob_placement.space import PlacementProblem


def quotas(problem: PlacementProblem) -> list[tuple[int, int]] | None:
    """Numbers of further trainers and rollouts by node, so that all fit; None: they do not."""
    s = problem.space
    trainers = problem.loose - sum(s.kept)
    rollouts = sum(pod not in problem.fixed for pod in range(problem.trainers, problem.pods))
    if sum(len(r) - 1 for r in s.capacity) < trainers or sum(r[0] for r in s.capacity) < rollouts:
        return None
    if _most_rollouts(s.capacity, trainers) < rollouts:
        return None
    best: list[int] = [0] + [-1] * trainers
    chosen: list[list[int]] = []
    for row in s.capacity:
        best, choice = _with_node(best, row)
        chosen.append(choice)
    if best[trainers] < rollouts:
        return None
    counts, left = [(0, 0)] * len(s.capacity), trainers
    for n in reversed(range(len(s.capacity))):
        count = chosen[n][left]
        counts[n], left = (count, s.capacity[n][count]), left - count
    return counts


def _most_rollouts(rows: list[list[int]], trainers: int) -> int:
    """A bound on the rollouts that fit alongside these trainers, as if parts of pods could be placed: each trainer goes where it costs the least part
    of a rollout."""
    alike = Counter(map(tuple, rows))
    losses = sorted((loss, width * count) for row, count in alike.items() for loss, width in _losses(row))
    most = Fraction(sum(row[0] * count for row, count in alike.items()))
    for loss, places in losses:
        most -= loss * min(trainers, places)
        trainers -= min(trainers, places)
    return floor(most)


def _losses(row: tuple[int, ...]) -> Iterator[tuple[Fraction, int]]:
    """Rollouts that each further trainer on a node costs, and for how many trainers: the slopes of the concave hull, which become steeper."""
    here = 0
    while here < len(row) - 1:
        steps = ((Fraction(row[here] - row[there], there - here), -there) for there in range(here + 1, len(row)))
        loss, there = min(steps)
        yield loss, -there - here
        here = -there


def _with_node(best: list[int], row: list[int]) -> tuple[list[int], list[int]]:
    """`best` with one more node, and the number of trainers on that node for each total."""
    if len(row) == 1:
        return [b + row[0] if b >= 0 else b for b in best], [0] * len(best)
    new, choice = [-1] * len(best), [0] * len(best)
    for total in range(len(best)):
        for here in range(min(total, len(row) - 1) + 1):
            before = best[total - here]
            if before >= 0 and before + row[here] > new[total]:
                new[total], choice[total] = before + row[here], here
    return new, choice
