"""What the operator remembers between passes. Nothing here is needed for correctness: it is empty after a restart."""

from dataclasses import dataclass, field

from rljob_operator.queue import Key

BLIND = 60.0
"""Seconds without a look at a job after which its heartbeat's age says nothing: an outage of ours or of the API is not a stall."""


@dataclass(slots=True)
class Beat:
    """One attempt's heartbeat, on the operator's clock."""

    attempt: tuple[str, int]
    value: int | None
    moved: float
    looked: float


@dataclass(slots=True)
class Memory:
    """By job."""

    beats: dict[Key, Beat] = field(default_factory=dict)
    conflicts: dict[Key, tuple[str, ...]] = field(default_factory=dict)

    def beat_age(self, key: Key, attempt: tuple[str, int], value: int | None, now: float) -> float:
        """Seconds since the heartbeat of this attempt (job uid and number) was seen to move."""
        beat = self.beats.get(key)
        blind = beat is None or now - beat.looked > BLIND
        if beat is None or blind or beat.attempt != attempt or beat.value != value:
            beat = self.beats[key] = Beat(attempt, value, now, now)
        beat.looked = now
        return now - beat.moved

    def forget(self, key: Key) -> None:
        self.beats.pop(key, None)
        self.conflicts.pop(key, None)
