"""Messages of an update and the answers to them, both ends in one process."""

import threading
import time

import pytest

from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.messages import (
    ABANDONED,
    COMPLETE,
    PHASE_OVER,
    AbandonedError,
    BucketRefusedError,
    Inbox,
    Outbox,
    SenderMessage,
)
from rljob_trainer.wire.weights.rendezvous import RemoteStore, SenderStore

HERE = "127.0.0.1"


def never() -> bool:
    return False


def nothing() -> None:
    """Called while a worker waits."""


def ends(workers: int = 1, name: str = "u") -> tuple[SenderStore, Outbox, list[Inbox]]:
    home = SenderStore(HERE)
    inboxes = [Inbox(RemoteStore(HERE, home.port).store, name, worker) for worker in range(workers)]
    return home, Outbox(home.store, name, workers), inboxes


def read(inbox: Inbox) -> list[SenderMessage]:
    found: list[SenderMessage] = []
    while not found or found[-1] != COMPLETE:
        found.append(inbox.next(nothing))
    return found


def test_every_worker_reads_all_messages_in_order_and_then_the_end() -> None:
    _, outbox, inboxes = ends(workers=2)
    outbox.post({"number": 0})
    outbox.end_phase()
    outbox.post({"number": 1})
    outbox.end(COMPLETE)
    assert [read(inbox) for inbox in inboxes] == [[{"number": 0}, PHASE_OVER, {"number": 1}, COMPLETE]] * 2


def test_a_bucket_is_sent_when_every_worker_takes_it_and_verified_when_every_worker_says_so() -> None:
    _, outbox, (first, second) = ends(workers=2)
    outbox.post({})
    for inbox in (first, second):
        inbox.next(nothing)
    for done, wait in (
        (Inbox.ready, outbox.await_workers),
        (Inbox.acknowledge, lambda given_up: outbox.confirm(0, given_up)),
    ):
        done(first)
        waited = threading.Event()

        def given_up(done: object = done, waited: threading.Event = waited) -> bool:
            if not waited.is_set():
                waited.set()
                done(second)  # type: ignore[operator]
            return False

        wait(given_up)  # type: ignore[operator]
        assert waited.is_set(), "one worker's answer was taken for both"


def test_the_last_buckets_may_be_verified_later() -> None:
    _, outbox, (inbox,) = ends()
    outbox.post({})
    outbox.confirm(1, lambda: pytest.fail("it waited"))
    outbox.end_phase()
    outbox.post({})
    inbox.next(nothing)
    inbox.acknowledge()  # arrives over the inbox's own connection, some time
    outbox.confirm(1, never)


def test_why_one_worker_refuses_an_update_is_what_the_sender_raises() -> None:
    _, outbox, (first, second) = ends(workers=2)
    outbox.post({})
    for inbox in (first, second):
        inbox.next(nothing)
    first.acknowledge()
    second.refuse("w: checksum differs from the sender's")
    with pytest.raises(BucketRefusedError, match="^w: checksum differs from the sender's$"):
        outbox.confirm(0, never)
    assert outbox.refusal() == "w: checksum differs from the sender's"


def test_a_worker_that_waits_for_another_sender_shows_that_it_lives() -> None:
    _, outbox, (_first, second) = ends(workers=2)
    before = outbox.signs()
    second.alive()
    while outbox.signs() == before:
        pass
    assert [sign > old for sign, old in zip(outbox.signs(), before, strict=True)] == [False, True]


def test_a_bucket_that_does_not_come_in_time_ends_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "NEXT_SECONDS", 0.2)
    monkeypatch.setattr(protocol, "ALIVE_SECONDS", 0.1)
    _, outbox, (inbox,) = ends()
    outbox.post({})
    assert inbox.next(nothing) == {} and not inbox.has_next
    waited: list[None] = []
    with pytest.raises(RuntimeError, match="timeout"):
        inbox.next(lambda: waited.append(None))
    assert waited, "other senders would give this worker up"


@pytest.mark.parametrize("gone", [False, True])
def test_a_worker_that_waits_learns_that_the_sender_gave_up_or_is_gone(gone: bool) -> None:
    home, outbox, (inbox,) = ends()
    found: list[BaseException] = []

    def wait() -> None:
        try:
            inbox.next(nothing)
        except RuntimeError as error:
            found.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    began = time.monotonic()
    if gone:
        del home, outbox
    else:
        outbox.end(ABANDONED)
    waiting.join(60)
    assert time.monotonic() - began < protocol.NEXT_SECONDS / 2 and len(found) == 1
    assert gone or isinstance(found[0], AbandonedError)


def test_nothing_of_a_complete_update_stays_in_the_store() -> None:
    home, outbox, inboxes = ends(workers=2)
    before = home.store.num_keys()
    for _ in range(3):
        outbox.post({})
        for inbox in inboxes:
            inbox.next(nothing)
            inbox.ready()
            inbox.acknowledge()
    outbox.end_phase()
    outbox.end(COMPLETE)
    for inbox in inboxes:
        assert [inbox.next(nothing) for _ in range(2)] == [PHASE_OVER, COMPLETE]
        inbox.acknowledge()
    outbox.confirm(0, never)
    assert home.store.num_keys() > before
    outbox.clear()
    assert home.store.num_keys() == before
