"""A sender's side of an update, without workers."""

import pytest

from rljob_trainer.rank.weights.delivery import Delivery
from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.messages import COMPLETE, AbandonedError, Inbox
from rljob_trainer.wire.weights.protocol import ServerWorker
from rljob_trainer.wire.weights.rendezvous import RemoteStore, SenderStore
from rljob_trainer.wire.weights.transport import over_tcp

HERE = "127.0.0.1"


def test_a_worker_that_was_taken_for_lost_with_all_others_reads_that_the_update_is_abandoned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "SILENT_SECONDS", 0.2)
    home, slow = SenderStore(HERE), ServerWorker("uid-a", 0, HERE, 1)
    delivery = Delivery(over_tcp(HERE), home, "u", {"a": [slow]}, lambda _: None, {})
    delivery.complete()
    assert delivery.failed.keys() == {"a"}
    inbox = Inbox(RemoteStore(home.offer), "u", slow.name)
    assert inbox.next(_still_waiting) == COMPLETE
    with pytest.raises(AbandonedError):
        inbox.next(_still_waiting)


def _still_waiting() -> None:
    raise AssertionError("there is nothing to read")
