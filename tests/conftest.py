"""What holds for all tests: Hypothesis judges none of them by its time, which is the machine's."""

from hypothesis import settings

settings.register_profile("timeless", deadline=None)
settings.load_profile("timeless")
