"""Python's garbage collector in processes with many open requests."""

import gc

FULL_COLLECTIONS = 1000
"""Collections of younger objects between two full ones: those of some 60,000 requests. With 10, by default, each goes through all open requests."""


def exempt_from_collection() -> None:
    """Have the garbage collector pass over all objects that exist: imports and data are a million, and going through them held the driver's event
    loop for 0.3 s, several times a step."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, FULL_COLLECTIONS)
