"""Counts of what was done for clients, for the status of the job."""

import time
from dataclasses import dataclass, field


@dataclass
class ServiceTally:
    """What was answered that nobody had an answer to before. A repetition counts for nothing."""

    attempt: int = 0
    """Of the driver that asked for work last."""
    answered: int = 0
    """By its ranks."""
    trained_tokens: int = 0
    sampled_tokens: int = 0
    active: float = field(default_factory=time.monotonic)
    """When somebody was answered last, or the gateway began."""

    def begin(self) -> None:
        """The ranks of another attempt."""
        self.answered = 0

    def trained(self, tokens: int) -> None:
        """A request of a model was answered."""
        self.answered += 1
        self.trained_tokens += tokens
        self.active = time.monotonic()

    def sampled(self, tokens: int) -> None:
        self.sampled_tokens += tokens
        self.active = time.monotonic()
