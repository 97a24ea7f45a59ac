"""Who takes part in an update, by the lines of workers alone."""

import threading
from collections.abc import Iterator
from itertools import permutations

import pytest

from rljob_trainer.rank.weights.attendance import Attendance, Loss, LossCause, losses
from rljob_trainer.wire.weights.door import Door
from rljob_trainer.wire.weights.messages import GIVEN_UP, MessageState, WorkerPosition
from rljob_trainer.wire.weights.protocol import SILENT_SECONDS, ServerWorker
from trainer.rank.clock import Time

HERE = "127.0.0.1"


@pytest.fixture
def doors() -> Iterator[dict[str, Door]]:
    made = {name: Door(HERE) for name in ("a/0", "a/1", "b/0", "c/0")}
    yield made
    for door in made.values():
        door.close()


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def attendance(doors: dict[str, Door], time: Time) -> Attendance:
    """Of three servers, of which the first has two workers."""
    servers: dict[str, list[ServerWorker]] = {}
    for name, door in doors.items():
        uid, worker = name.split("/")
        servers.setdefault(f"pod-{uid}", []).append(ServerWorker(uid, int(worker), *door.address))
    return Attendance(servers, time)


def lines(message: int, sign: int = 1, **states: MessageState) -> dict[str, WorkerPosition]:
    """All have done `message`, but those named."""
    return {
        name: WorkerPosition(message, states.get(name.replace("/", ""), MessageState.DONE), sign, "why")
        for name in ("a/0", "a/1", "b/0", "c/0")
    }


def test_all_workers_are_knocked_at_together(attendance: Attendance, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each on a node that is off takes seconds."""
    together = threading.Barrier(4)

    def silent(*_: object) -> str:
        together.wait(60.0)
        return "silent"

    monkeypatch.setattr("rljob_trainer.rank.weights.attendance.knock", silent)
    assert not attendance.leave_out() and len(attendance.live) == 3


def test_all_means_all_workers_and_the_newest_message(attendance: Attendance) -> None:
    assert not attendance.all(MessageState.READY)
    attendance.see(3, lines(3))
    assert attendance.all(MessageState.DONE) and attendance.all(MessageState.READY)
    attendance.see(3, lines(3, a1=MessageState.READY))
    assert not attendance.all(MessageState.DONE) and attendance.all(MessageState.READY)
    assert attendance.others(MessageState.DONE) == ["pod-a"]
    attendance.see(4, lines(3))
    assert not attendance.all(MessageState.READY) and len(attendance.others(MessageState.READY)) == 3


def test_a_failure_breaks_off_and_leaves_nobody_out_whose_fault_it_may_not_be(attendance: Attendance) -> None:
    attendance.see(3, lines(3, b0=MessageState.FAILED))
    assert attendance.broken() and not attendance.leave_out() and len(attendance.live) == 3
    attendance.see(4, lines(3, b0=MessageState.FAILED))
    assert not attendance.broken(), "it concerned an earlier message"


def test_who_refuses_is_left_out_with_the_reason(attendance: Attendance) -> None:
    attendance.see(4, lines(3, a1=MessageState.REFUSED))
    assert attendance.broken() and attendance.leave_out()
    assert attendance.failed == {"pod-a": (LossCause.REFUSED, "why")} and [m.name for m in attendance.members] == [
        "b/0",
        "c/0",
    ]


def test_a_cause_is_said_and_not_what_follows_from_it(attendance: Attendance) -> None:
    given_up = lines(3, a1=MessageState.REFUSED) | {"a/0": WorkerPosition(3, MessageState.REFUSED, 1, GIVEN_UP)}
    attendance.see(3, given_up)
    attendance.leave_out()
    assert attendance.failed == {"pod-a": (LossCause.REFUSED, "why")}


SEEN = [
    Loss(LossCause.GIVEN_UP, GIVEN_UP),
    Loss(LossCause.BEHIND, "it could not be connected"),
    Loss(LossCause.SILENT, "worker 0 is silent"),
    Loss(LossCause.GONE, "worker 1 has died"),
    Loss(LossCause.REFUSED, "no room"),
]


@pytest.mark.parametrize("causes", range(2, len(SEEN) + 1))
def test_of_what_several_senders_saw_the_cause_is_reported(causes: int) -> None:
    for senders in permutations(SEEN[:causes]):
        assert losses({"pod-a": loss} for loss in senders) == {"pod-a": SEEN[causes - 1].why}


def test_of_several_workers_that_of_which_others_are_the_consequence_is_reported(
    attendance: Attendance, time: Time
) -> None:
    time.now += SILENT_SECONDS + 1
    attendance.see(3, {"a/1": WorkerPosition(3, MessageState.REFUSED, 0, "no room")})
    assert attendance.leave_out() and attendance.failed["pod-a"] == (LossCause.REFUSED, "no room")


def test_silence_is_counted_from_the_last_sign_however_rarely_one_looks(attendance: Attendance, time: Time) -> None:
    attendance.see(3, lines(3, sign=1))
    time.now += SILENT_SECONDS + 1
    silent = {
        name: WorkerPosition(3, state, 1, "")
        for name, state in (("b/0", MessageState.READY), ("c/0", MessageState.DONE))
    }
    attendance.see(3, lines(3, sign=2) | silent)
    assert attendance.broken() and attendance.leave_out()
    assert list(attendance.failed) == ["pod-b"], "a worker that has done everything has nothing to show"
    attendance.see(4, lines(3, sign=2) | silent)
    assert list(attendance.live) == ["pod-a", "pod-c"] and attendance.leave_out() and "pod-c" in attendance.failed
    time.now += SILENT_SECONDS - 1
    assert not attendance.broken()


def test_a_worker_that_never_writes_is_silent(attendance: Attendance, time: Time) -> None:
    time.now += SILENT_SECONDS + 1
    attendance.see(0, {name: line for name, line in lines(0).items() if name != "c/0"})
    assert attendance.leave_out() and list(attendance.failed) == ["pod-c"]


def test_a_worker_whose_door_is_closed_has_died(attendance: Attendance, doors: dict[str, Door]) -> None:
    doors["a/0"].close()
    attendance.see(3, lines(3, b0=MessageState.FAILED))
    assert attendance.leave_out() and attendance.failed == {"pod-a": (LossCause.GONE, "worker 0 has died")}


@pytest.mark.parametrize("all_done", [False, True])
def test_in_the_end_those_are_left_out_that_are_behind(attendance: Attendance, all_done: bool) -> None:
    """All of them, if it is this end that cannot be connected."""
    attendance.see(3, lines(3) if all_done else lines(3, b0=MessageState.FAILED, c0=MessageState.READY))
    attendance.leave_out_others(MessageState.DONE)
    assert list(attendance.live) == ([] if all_done else ["pod-a"])
    assert all("could not be connected" in loss.why for loss in attendance.failed.values())
