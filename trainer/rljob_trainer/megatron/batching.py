"""Which trajectories go into which micro-batch of which data-parallel rank. Pure arithmetic without torch: driver and ranks compute the same."""

from collections.abc import Sequence

Plan = list[list[list[int]]]
"""[data-parallel rank][micro-batch] -> indices of samples, ascending; a micro-batch may be empty."""


def plan(lengths: Sequence[int], budget: int, alignment: int, ranks: int, multiple: int = 1) -> Plan:
    """Spread samples of `lengths` tokens over as few micro-batches as the budget allows, equally many on every rank, of about equal size.

    No micro-batch has more than `budget` tokens after it was filled up to a multiple of `alignment`. Equal counts, multiples of
    `multiple`, are what the schedules and the collectives of megatron need; micro-batches without samples are run on filling that has no weight.

    Raises:
        ValueError: a sample alone is longer than the budget.
    """
    room = budget // alignment * alignment
    if lengths and max(lengths) > room:
        raise ValueError(f"a sample has {max(lengths)} tokens, more than a micro-batch of {room} can hold")
    group = ranks * multiple
    count = group * max(1, -(-sum(lengths) // (room * group)))
    while (batches := _spread(lengths, count, room)) is None:
        count += group
    return [batches[rank::ranks] for rank in range(ranks)]


def _spread(lengths: Sequence[int], count: int, room: int) -> list[list[int]] | None:
    """Longest first, each into the emptiest micro-batch (Graham 1969: at most 4/3 of the best balance); None when something does not fit."""
    batches: list[list[int]] = [[] for _ in range(count)]
    sizes = [0] * count
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        emptiest = min(range(count), key=lambda b: sizes[b])
        if sizes[emptiest] + lengths[i] > room:
            return None
        batches[emptiest].append(i)
        sizes[emptiest] += lengths[i]
    order = sorted(range(count), key=lambda b: -sizes[b])
    return [sorted(batches[b]) for b in order]
