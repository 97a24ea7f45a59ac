"""Messages of an update and the lines of workers, both ends in one process."""

import threading
import time

import pytest

from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.messages import (
    ABANDONED,
    COMPLETE,
    PHASE_OVER,
    TURN_OVER,
    AbandonedError,
    Inbox,
    MessageState,
    Outbox,
    WorkerPosition,
)
from rljob_trainer.wire.weights.rendezvous import RemoteStore, SenderStore

HERE = "127.0.0.1"


def nothing() -> None:
    """Called while a worker waits."""


def ends(*workers: str) -> tuple[SenderStore, Outbox, list[Inbox]]:
    home = SenderStore(HERE)
    return home, Outbox(home, "u"), [Inbox(RemoteStore(home.offer), "u", worker) for worker in workers]


def lines(outbox: Outbox, *inboxes: Inbox) -> dict[str, WorkerPosition]:
    """What these have written so far: a store hears a worker in order, and answers the last."""
    for inbox in inboxes:
        _ = inbox.has_next
    return outbox.lines(["a/0", "a/1", "b/0"])


def test_every_worker_reads_all_messages_in_order() -> None:
    _, outbox, inboxes = ends("a/0", "a/1")
    said = [{"group": "g"}, {"bucket": 0}, TURN_OVER, PHASE_OVER, COMPLETE]
    for message in said:
        outbox.say(message)
    assert [[inbox.next(nothing) for _ in said] for inbox in inboxes] == [said] * 2
    assert not inboxes[0].has_next


def test_a_line_says_how_far_its_worker_is_with_the_message_that_it_has_read() -> None:
    _, outbox, (first, _) = ends("a/0", "a/1")
    assert lines(outbox, first) == {}, "nobody has written one"
    for number in range(2):
        outbox.say({"bucket": number})
        first.next(nothing)
        for write, state in ((first.ready, MessageState.READY), (first.done, MessageState.DONE)):
            write()
            line = lines(outbox, first)["a/0"]
            assert (line.message, line.state) == (number, state)


@pytest.mark.parametrize("write", [Inbox.failed, Inbox.refuse])
def test_a_reason_is_kept_as_it_is(write: object) -> None:
    _, outbox, (inbox,) = ends("a/0")
    outbox.say(TURN_OVER)
    inbox.next(nothing)
    write(inbox, "w:  checksum differs\nfrom the sender's ")  # type: ignore[operator]
    inbox.alive()
    line = lines(outbox, inbox)["a/0"]
    assert line.reason == "w:  checksum differs\nfrom the sender's " and WorkerPosition.parse(str(line)) == line


def test_a_worker_that_waits_for_another_sender_shows_that_it_lives() -> None:
    _, outbox, (first, second) = ends("a/0", "a/1")
    outbox.say(TURN_OVER)
    for inbox in (first, second):
        inbox.next(nothing)
    before = lines(outbox, first, second)
    second.alive()
    after = lines(outbox, second)
    assert after["a/0"] == before["a/0"] and after["a/1"] == before["a/1"]._replace(sign=after["a/1"].sign)
    assert after["a/1"].sign > before["a/1"].sign


def test_a_message_that_does_not_come_in_time_ends_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "NEXT_SECONDS", 0.2)
    monkeypatch.setattr(protocol, "ALIVE_SECONDS", 0.1)
    _, outbox, (inbox,) = ends("a/0")
    outbox.say(TURN_OVER)
    assert inbox.next(nothing) == TURN_OVER and not inbox.has_next
    waited: list[None] = []
    with pytest.raises(RuntimeError, match="said nothing in time"):
        inbox.next(lambda: waited.append(None))
    assert waited, "other senders would leave this worker out"


@pytest.mark.parametrize("gone", [False, True])
def test_a_worker_that_waits_learns_that_the_sender_gave_up_or_is_gone(gone: bool) -> None:
    home, outbox, (inbox,) = ends("a/0")
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            inbox.next(nothing)
        except (OSError, RuntimeError) as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    began = time.monotonic()
    if gone:
        del home, outbox
    else:
        outbox.say(ABANDONED)
    waiting.join(60)
    assert time.monotonic() - began < protocol.NEXT_SECONDS / 2 and len(raised) == 1
    assert gone or isinstance(raised[0], AbandonedError)
