"""What holds for all tests: Hypothesis judges none of them by its time, which is the machine's, and draws the same examples in each run, so that a
commit passes or does not (`make fuzz` draws new ones); and what is extra is slow as well.

torch compiles nothing, as on ranks without a GPU: what those set is read when megatron-core is imported, which some test modules do before.

The modules of all tests are millions of objects and no garbage. Whoever looks for garbage does not go through them: neither these processes nor
those that they fork, each of which would copy them all.
"""

import gc
import os

import pytest
from hypothesis import settings

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
settings.register_profile("fuzz", deadline=None)
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")
os.register_at_fork(after_in_child=gc.freeze)
gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before `-m` selects: `not slow` leaves out what is only marked `extra`."""
    for item in items:
        if item.get_closest_marker("extra"):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Everything is imported."""
    gc.freeze()
    gc.enable()
