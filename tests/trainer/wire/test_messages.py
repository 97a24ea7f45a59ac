"""Messages of an update and the answers to them, both ends in one process."""

import threading
import time
from collections.abc import Callable

import pytest

from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.messages import ABANDONED, COMPLETE, AbandonedError, BucketRefusedError, Inbox, Outbox
from rljob_trainer.wire.weights.rendezvous import TrainerStore, join

HERE = "127.0.0.1"


def never() -> bool:
    return False


def ends(workers: int = 1, name: str = "u") -> tuple[TrainerStore, Outbox, list[Inbox]]:
    trainer = TrainerStore(HERE)
    stores = [join(HERE, trainer.port, worker, workers)[0] for worker in range(workers)]
    assert trainer.size(never) == workers + 1
    inboxes = [Inbox(store, name, worker) for worker, store in enumerate(stores)]
    return trainer, Outbox(trainer.store, name, trainer.workers), inboxes


def test_every_worker_reads_all_messages_in_order_and_then_the_end() -> None:
    _, outbox, inboxes = ends(workers=2)
    for number in range(3):
        outbox.post({"number": number})
    outbox.end(COMPLETE)
    assert [[m["number"] for m in inbox] for inbox in inboxes] == [[0, 1, 2]] * 2


def test_a_bucket_is_verified_when_every_worker_says_so() -> None:
    _, outbox, (first, second) = ends(workers=2)
    outbox.post({})
    first.acknowledge()
    waited = threading.Event()

    def given_up() -> bool:
        if not waited.is_set():
            waited.set()
            second.acknowledge()
        return False

    outbox.confirm(0, given_up)
    assert waited.is_set(), "one worker's answer was taken for both"


def failing_after(seconds: float, how: str) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end and pytest.fail(how)


def test_the_last_buckets_may_be_verified_later() -> None:
    _, outbox, (inbox,) = ends()
    outbox.post({})
    outbox.confirm(1, lambda: pytest.fail("it waited"))
    outbox.post({})
    inbox.acknowledge()  # arrives over the inbox's own connection, some time
    outbox.confirm(1, failing_after(60, "it waited for the last bucket too"))


def test_why_one_worker_refuses_a_bucket_is_what_the_trainer_raises() -> None:
    _, outbox, (first, second) = ends(workers=2)
    outbox.post({})
    first.acknowledge()
    with pytest.raises(ValueError), second.report_failure():
        raise ValueError("w: checksum differs from the sender's")
    with pytest.raises(BucketRefusedError, match="^w: checksum differs from the sender's$"):
        outbox.confirm(0, never)
    assert outbox.refusal() == "w: checksum differs from the sender's"


def test_an_answer_is_waited_for_no_longer_than_the_server_works() -> None:
    _, outbox, _ = ends()
    outbox.post({})
    outbox.confirm(0, lambda: True)


def test_a_bucket_that_does_not_come_in_time_ends_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "NEXT_SECONDS", 0.2)
    _, outbox, (inbox,) = ends()
    outbox.post({})
    messages = iter(inbox)
    assert next(messages) == {}
    with pytest.raises(RuntimeError, match="timeout"):
        next(messages)


def test_a_worker_that_waits_learns_that_the_trainer_gave_up_or_is_gone() -> None:
    for gone in (False, True):
        trainer, outbox, (inbox,) = ends()
        found: list[BaseException] = []

        def wait(inbox: Inbox = inbox, found: list[BaseException] = found) -> None:
            try:
                list(inbox)
            except RuntimeError as error:
                found.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        began = time.monotonic()
        if gone:
            del trainer, outbox
        else:
            outbox.end(ABANDONED)
        waiting.join(60)
        assert time.monotonic() - began < protocol.NEXT_SECONDS / 2 and len(found) == 1
        assert gone or isinstance(found[0], AbandonedError)


def test_nothing_of_a_complete_update_stays_in_the_store() -> None:
    trainer, outbox, inboxes = ends(workers=2)
    before = trainer.store.num_keys()
    for _ in range(3):
        outbox.post({})
        for inbox in inboxes:
            inbox.acknowledge()
    outbox.end(COMPLETE)
    assert trainer.store.num_keys() > before
    outbox.clear()
    assert trainer.store.num_keys() == before
