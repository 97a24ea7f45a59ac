"""Whether trainers and rollouts fit together: exactly, for the rare cluster on which filling greedily fails."""

from rljob_api.placement.state import Problem


def quotas(problem: Problem) -> list[tuple[int, int]] | None:
    """Further trainers and rollouts by node, or None if there is no way.

    Dynamic programming over nodes: best[a] is the most rollouts beside a trainers so far. Nodes that hold only one of the two kinds are counted,
    not searched.
    """
    s = problem.space
    trainers = problem.loose - sum(s.kept)
    rollouts = sum(pod not in problem.fixed for pod in range(problem.trainers, problem.pods))
    if sum(len(r) - 1 for r in s.room) < trainers or sum(r[0] for r in s.room) < rollouts:
        return None
    best: list[int] = [0] + [-1] * trainers
    chosen: list[list[int]] = []
    for room in s.room:
        best, choice = _beside(best, room)
        chosen.append(choice)
    if best[trainers] < rollouts:
        return None
    found, left = [(0, 0)] * len(s.room), trainers
    for n in reversed(range(len(s.room))):
        count = chosen[n][left]
        found[n], left = (count, s.room[n][count]), left - count
    return found


def _beside(best: list[int], room: list[int]) -> tuple[list[int], list[int]]:
    """With one more node: the new best, and how many trainers it takes for each total."""
    if len(room) == 1:
        return [b + room[0] if b >= 0 else b for b in best], [0] * len(best)
    new, choice = [-1] * len(best), [0] * len(best)
    for total in range(len(best)):
        for here in range(min(total, len(room) - 1) + 1):
            before = best[total - here]
            if before >= 0 and before + room[here] > new[total]:
                new[total], choice[total] = before + room[here], here
    return new, choice
