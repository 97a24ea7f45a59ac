"""Statuses that can wait are written one after another, and leave the API server time; no other one waits."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.status import JobStatus, RoleStatus
from rljob_api.status_parts import ProgressStatus
from rljob_operator.kube.api import Key
from rljob_operator.policies.change import set_
from rljob_operator.policies.describe import can_wait
from rljob_operator.reconcile.status_pace import DISPLAY_SPACING, SHARE, StatusPace

BEFORE = JobStatus(state="Running", progress=ProgressStatus(step=1))
NUMBERS = set_(BEFORE, progress=ProgressStatus(step=2))
COUNTS = set_(BEFORE, message="1 of 2 pods is ready", trainer=RoleStatus(ready=1, desired=2))
WARNED = set_(BEFORE, progress=ProgressStatus(step=2, warnings=["the gradient is 0"]))


@dataclass
class Jobs:
    """Jobs that try to write a status as soon as they may, by a clock of their own; each write takes so many seconds."""

    takes: float
    now: float = 1000.0
    written: list[tuple[float, Key]] = field(default_factory=list)
    tries: int = 0

    def __post_init__(self) -> None:
        self.pace = StatusPace(30.0, lambda: self.now)

    def write(self, key: Key) -> None:
        with self.pace.writing(key):
            self.written.append((self.now, key))
            self.now += self.takes

    def until_all_are_written(self, keys: list[Key], new: JobStatus = NUMBERS) -> None:
        """While one is written, others try."""
        due, writing = dict.fromkeys(keys, self.now), list[tuple[float, Key, ExitStack]]()
        while due or writing:
            key = min(due, key=due.__getitem__, default=None)
            if writing and (key is None or writing[0][0] <= due[key]):
                self.now, _, stack = writing.pop(0)
                stack.close()
                continue
            assert key is not None
            self.now = max(self.now, due[key])
            self.tries += 1
            if wait := self.pace.wait(key, BEFORE, new):
                due[key] = self.now + wait
                continue
            assert not writing, "one at a time"
            del due[key]
            stack = ExitStack()
            stack.enter_context(self.pace.writing(key))
            writing.append((self.now + self.takes, key, stack))
            self.written.append((self.now, key))


def keys(count: int) -> list[Key]:
    return [("team", f"job-{i}") for i in range(count)]


@given(st.integers(1, 60), st.floats(0.001, 1.0), st.floats(0.001, 1.0))
def test_jobs_that_report_at_the_same_moment_are_written_one_at_a_time_in_a_share_of_the_time(
    count: int, before: float, takes: float
) -> None:
    """Also where writes take longer than they did."""
    jobs = Jobs(before)
    jobs.until_all_are_written(keys(20))
    began, jobs.takes, jobs.tries = jobs.now + 10.0, takes, 0
    jobs.now, jobs.written = began, []
    jobs.until_all_are_written(keys(count))
    assert sorted(key for _, key in jobs.written) == sorted(keys(count)), "each once"
    starts = [at for at, _ in jobs.written]
    assert all(later - earlier >= takes / SHARE - 1e-6 for earlier, later in pairwise(starts))
    assert jobs.tries <= 15 * count, "nobody asks again and again"
    assert jobs.now - began <= 5 * count * max(before, takes) / SHARE + 1.0


@pytest.mark.parametrize(
    ("new", "waits"),
    [
        (NUMBERS, True),
        (COUNTS, True),
        (WARNED, False),
        (set_(NUMBERS, state="Failed"), False),
        (set_(BEFORE, resume_step=3), False),
    ],
)
def test_only_numbers_counts_and_sentences_wait(new: JobStatus, waits: bool) -> None:
    jobs = Jobs(takes=1.0)
    first, second = keys(2)
    assert can_wait(BEFORE, new) is waits
    assert jobs.pace.wait(first, BEFORE, NUMBERS) == 0.0
    with jobs.pace.writing(first):
        assert (jobs.pace.wait(second, BEFORE, new) > 0.0) is waits


def test_who_waits_and_writes_what_cannot_wait_leaves_the_turn_of_the_one_being_written_alone() -> None:
    jobs = Jobs(takes=1.0)
    first, second, third = keys(3)
    jobs.pace.wait(first, BEFORE, NUMBERS)
    with jobs.pace.writing(first):
        jobs.pace.wait(second, BEFORE, NUMBERS)
        jobs.now += 5.0
        with jobs.pace.writing(second):
            pass
        assert jobs.pace.wait(third, BEFORE, NUMBERS) > 0.0


def test_counts_of_one_job_are_rare_and_its_numbers_are_not_kept_by_them() -> None:
    jobs = Jobs(takes=0.0)
    jobs.write(("team", "job"))
    assert jobs.pace.wait(("team", "job"), BEFORE, COUNTS) == DISPLAY_SPACING
    assert jobs.pace.wait(("team", "job"), BEFORE, NUMBERS) == 0.0


def test_a_write_that_fails_keeps_nobody_waiting() -> None:
    jobs = Jobs(takes=1.0)
    first, second = keys(2)
    jobs.pace.wait(first, BEFORE, NUMBERS)
    with pytest.raises(ValueError, match="refused"), jobs.pace.writing(first):
        raise ValueError("refused")
    assert jobs.pace.wait(second, BEFORE, NUMBERS) == 0.0


def test_what_is_deleted_gives_up_its_turn() -> None:
    jobs = Jobs(takes=1.0)
    first, second = keys(2)
    jobs.pace.wait(first, BEFORE, NUMBERS)
    with jobs.pace.writing(first):
        assert jobs.pace.wait(second, BEFORE, NUMBERS) > 0.0
        jobs.pace.forget(second)
        assert not jobs.pace._turns
