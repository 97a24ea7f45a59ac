"""Contexts and conversations of one trajectory begin alike: each is the one before and what was said since. What they have in common is kept once, so
that memory grows as the trajectory does, and not as the square of its turns: the driver has all that are under way."""

from collections.abc import Collection

import numpy as np

from rljob_trainer.wire.trajectory import Ints


def within(longer: Ints, kept: Collection[Ints]) -> list[Ints]:
    """`kept`, each as a view of `longer` where that begins with it."""
    addresses = [own.ctypes.data for own in kept]
    longest: dict[int, Ints] = {}  # of views of one array only this one is compared
    for address, own in zip(addresses, kept, strict=True):
        if address not in longest or len(longest[address]) < len(own):
            longest[address] = own
    begins = {address for address, own in longest.items() if _begins_with(longer, own)}
    return [
        longer[: len(own)] if address in begins or _begins_with(longer, own) else own
        for address, own in zip(addresses, kept, strict=True)
    ]


def _begins_with(longer: Ints, own: Ints) -> bool:
    return len(own) <= len(longer) and np.array_equal(own, longer[: len(own)])


def with_objects_of[T](said: list[T], kept: Collection[list[T]]) -> list[T]:
    """`said`, with the objects of the longest of `kept` that it begins with."""
    known = next((k for k in sorted(kept, key=len, reverse=True) if said[: len(k)] == k), [])
    return [*known, *said[len(known) :]]
