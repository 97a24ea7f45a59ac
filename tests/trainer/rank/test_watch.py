"""Workers of a server that has not answered yet."""

import socket
from collections.abc import Iterator

import pytest

from rljob_trainer.rank.weights.watch import Watch
from rljob_trainer.wire.weights import door as doors
from rljob_trainer.wire.weights.door import Door
from rljob_trainer.wire.weights.protocol import SILENT_SECONDS, ServerWorker
from trainer.rank.clock import Time

HERE = "127.0.0.1"


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door(HERE)
    yield made
    made.close()


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Where nobody answers, as on a node that is off: connections beyond the backlog wait."""
    monkeypatch.setattr(doors, "KNOCK_SECONDS", 0.1)
    with socket.create_server((HERE, 0), backlog=0) as listener, socket.create_connection(listener.getsockname()):
        yield listener


def test_a_worker_that_has_died_is_named_at_once(door: Door) -> None:
    other = Door(HERE)
    watch = Watch([ServerWorker("s", 0, *door.address), ServerWorker("s", 1, *other.address)])
    assert watch.lost() == ""
    other.close()
    assert watch.lost() == "worker 1 has died"


def test_one_that_cannot_be_reached_is_given_its_time(door: Door, silent: socket.socket) -> None:
    time = Time()
    watch = Watch([ServerWorker("s", 0, *door.address), ServerWorker("s", 1, *silent.getsockname())], time)
    assert watch.lost() == ""
    time.now += SILENT_SECONDS
    assert watch.lost() == ""
    time.now += 0.1
    assert watch.lost() == "worker 1 cannot be reached"


def test_the_time_counts_from_when_all_were_reached(silent: socket.socket) -> None:
    time = Time()
    watch = Watch([ServerWorker("s", 0, *silent.getsockname())], time)
    time.now += SILENT_SECONDS - 1.0
    silent.accept()[0].close()
    assert watch.lost() == "", "it is there, and what waits outside now keeps others out again"
    time.now += SILENT_SECONDS
    assert watch.lost() == ""
    time.now += 0.1
    assert watch.lost() == "worker 0 cannot be reached"
