"""What holds for all tests: Hypothesis judges none of them by its time, which is the machine's; and what is extra is slow as well."""

import pytest
from hypothesis import settings

settings.register_profile("timeless", deadline=None)
settings.load_profile("timeless")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before `-m` selects: `not slow` leaves out what is only marked `extra`."""
    for item in items:
        if item.get_closest_marker("extra"):
            item.add_marker(pytest.mark.slow)
