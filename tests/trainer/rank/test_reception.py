"""What a worker does about senders that it cannot reach, or that it cannot be connected with at once."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from rljob_trainer.rank.weights.attendance import LossCause
from rljob_trainer.rank.weights.publisher import Publisher
from rljob_trainer.wire.weights import chain, protocol, rendezvous
from rljob_trainer.wire.weights.plan import GatherPhase
from rljob_trainer.wire.weights.protocol import Offer
from rljob_trainer.wire.weights.rendezvous import SenderStore
from rljob_trainer.wire.weights.transport import over_tcp
from trainer.rank.standing import Standing, publish_together

HERE = "127.0.0.1"
PARTS = [{f"{i}": torch.rand(1000)} for i in range(2)]


def gone() -> Offer:
    """Of a sender that has ended. Its thread closes the port a moment later, and may accept a connection until then that nobody answers."""
    offer = SenderStore(HERE).offer
    for _ in range(1000):
        try:
            socket.create_connection((offer.address, offer.port), 1.0).close()
        except OSError:
            return offer
        time.sleep(0.01)
    raise AssertionError("its port is still open")


@contextmanager
def unreachable() -> Iterator[Offer]:
    """Of a machine that answers nothing: what connects waits until its time is up."""
    with socket.create_server((HERE, 0), backlog=0) as full, socket.create_connection(full.getsockname()):
        yield Offer(*full.getsockname())


def sent_by(index: int) -> list[GatherPhase]:
    return [GatherPhase(iter(PARTS[index].items()), sends=True)]


@pytest.mark.parametrize("place", range(3))
def test_all_senders_hear_at_once_which_other_one_cannot_be_reached(place: int) -> None:
    publishers = [Publisher(1, "t", over_tcp(HERE)) for _ in PARTS]
    offers = [publisher.sender.offer for publisher in publishers]
    offers.insert(place, lost := gone())
    with Standing("one") as one:
        began = time.monotonic()
        with publishers[0].update([one.endpoint]) as update:
            opened = update.open(offers)
            for i, publisher in enumerate(publishers):
                (loss,) = publisher.sender.send(sent_by(i), opened, i, lambda: None).failed.values()
                assert loss.cause == LossCause.REFUSED
                assert loss.why.startswith(f"the sender at {lost.address} cannot be reached: ")
        assert time.monotonic() - began < protocol.SILENT_SECONDS


@pytest.mark.parametrize("reachable_first", [True, False])
def test_all_senders_hear_in_time_that_many_others_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch, reachable_first: bool
) -> None:
    """One after the other they would take longer than a worker may be silent."""
    monkeypatch.setattr(rendezvous, "FIND_SECONDS", 2.0)
    monkeypatch.setattr(protocol, "SILENT_SECONDS", 6.0)
    publishers = [Publisher(1, "t", over_tcp(HERE)) for _ in PARTS]
    with Standing("one") as one, unreachable() as lost, publishers[0].update([one.endpoint]) as update:
        found, missing = [publisher.sender.offer for publisher in publishers], [lost] * 5
        opened = update.open(found + missing if reachable_first else missing + found)
        for i, publisher in enumerate(publishers):
            (loss,) = publisher.sender.send(sent_by(i), opened, i, lambda: None).failed.values()
            assert loss.cause == LossCause.REFUSED
            assert loss.why.startswith(f"the sender at {lost.address} cannot be reached: ")


def test_connections_of_an_earlier_update_are_closed_when_the_next_one_fails() -> None:
    publishers = [Publisher(1, "t", over_tcp(HERE)) for _ in PARTS]
    with Standing("one") as one:
        publish_together(publishers, sent_by, [one.endpoint])
        (worker,) = one.workers
        ends = [end._before for found in worker.connections.values() for end in found.groups.values()]  # type: ignore[union-attr]
        assert [end.fileno() > 0 for end in ends] == [True, True]
        with publishers[0].update([one.endpoint]) as update:
            update.open([gone(), *(publisher.sender.offer for publisher in publishers)])
            assert worker.reception
            with pytest.raises(RuntimeError, match="cannot be reached"):
                worker.reception.result(20)
        assert [end.fileno() for end in ends] == [-1, -1]


@pytest.mark.parametrize("number", range(4))
def test_a_connection_that_cannot_be_made_once_costs_its_sender_another_group_and_the_other_sender_nothing(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Of two senders, each of which connects to one server, and that to the next."""
    monkeypatch.setattr(chain, "enter", failing(chain.enter, number))
    publishers = [Publisher(1, "t", over_tcp(HERE)) for _ in PARTS]
    with Standing("a") as a, Standing("b") as b:
        published, _ = publish_together(publishers, sent_by, [a.endpoint, b.endpoint])
        assert published.failed == {} and a.served == b.served == [published.version.digest]
        (groups,) = a.groups
        assert sorted(name.rpartition("/")[2] for name in groups) == ["0", "1"]


def failing(real: Callable[..., Any], number: int) -> Callable[..., Any]:
    """The same, but one of its calls fails."""
    calls = iter(range(100))

    def enter(*args: Any) -> Any:
        if next(calls) == number:
            raise ConnectionResetError("for once")
        return real(*args)

    return enter


def test_a_large_transfer_has_time_for_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    relay, seconds = chain.WorkerEnd._relay, 3.0

    def slowly(self: chain.WorkerEnd, payload: memoryview) -> None:
        time.sleep(seconds + 1.0)
        relay(self, payload)

    monkeypatch.setattr(chain.WorkerEnd, "_relay", slowly)
    monkeypatch.setattr(protocol, "SILENT_SECONDS", seconds)
    monkeypatch.setattr(protocol, "ALIVE_SECONDS", 0.1)
    monkeypatch.setattr(protocol, "SLOWEST_BYTES_PER_SECOND", 1e6)
    with Standing("one") as one:
        tensors = iter([("t", torch.rand(5_000_000))])
        assert Publisher(1, "t", over_tcp(HERE)).publish(0, tensors, [one.endpoint], lambda: None).ok == ["one"]
        (groups,) = one.groups
        assert groups[0].endswith("/0"), "no transfer was called off"


def test_the_slowest_network_of_the_documentation_carries_the_largest_tensor_in_time() -> None:
    """2.1 GB over 1 Gb/s."""
    assert protocol.transfer_seconds(int(2.1e9)) > 2 * 8 * 2.1e9 / 1e9 > protocol.transfer_seconds(0)
