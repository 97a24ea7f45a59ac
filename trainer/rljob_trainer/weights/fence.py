"""The highest attempt seen wins."""

from rljob_trainer.weights.wire import FencedOut


class Fence:
    """Remembers the highest attempt and lets no lower one in."""

    def __init__(self, highest: int = 0) -> None:
        self.highest = highest

    def admit(self, attempt: int) -> None:
        """Raises FencedOut for a lower attempt; a higher one becomes the highest."""
        if attempt < self.highest:
            raise FencedOut(attempt, self.highest)
        self.highest = attempt
