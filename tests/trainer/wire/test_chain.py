"""A chain of a sender and workers, in threads of one process."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from rljob_trainer.wire.weights.chain import SenderEnd, WorkerEnd
from rljob_trainer.wire.weights.door import Door, Membership
from rljob_trainer.wire.weights.polling import CalledOffError
from rljob_trainer.wire.weights.protocol import ServerWorker
from rljob_trainer.wire.weights.rendezvous import RemoteStore, SenderStore

HERE = "127.0.0.1"
SIZE = 3 * 2**20 + 5


def never() -> bool:
    return False


@contextmanager
def chain(count: int, here: str = HERE) -> Iterator[tuple[SenderEnd, list[WorkerEnd]]]:
    home = SenderStore(here)
    doors = [Door(here) for _ in range(count)]
    members = [ServerWorker(f"server-{i}", 0, *door.address) for i, door in enumerate(doors)]

    def join(place: int) -> WorkerEnd:
        return WorkerEnd(Membership(RemoteStore(home.offer), "g", members, place, doors[place]), never)

    with ThreadPoolExecutor(count) as pool:
        workers = [pool.submit(join, i) for i in range(count)]
        sender = SenderEnd(home, "g", members, never)
        ends = [worker.result(20) for worker in workers]
    try:
        yield sender, ends
    finally:
        for end in (sender, *ends):
            end.close()
        for door in doors:
            door.close()


def begin(ends: Sequence[WorkerEnd]) -> list[torch.Tensor]:
    payloads = [torch.empty(SIZE, dtype=torch.uint8) for _ in ends]
    for end, payload in zip(ends, payloads, strict=True):
        end.receive(payload, {})
    return payloads


@pytest.mark.parametrize("here", [HERE, "::1"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_payload_reaches_every_worker(here: str, count: int) -> None:
    with chain(count, here) as (sender, ends):
        for value in range(3):
            payloads = begin(ends)
            sent = torch.full((SIZE,), value, dtype=torch.uint8)
            sender.send(sent)
            for end in (sender, *ends):
                end.wait(never)
            assert all(torch.equal(payload, sent) for payload in payloads)


@pytest.mark.parametrize("place", range(3))
def test_whoever_leaves_is_noticed_at_once_by_both_neighbours(place: int) -> None:
    with chain(3) as (sender, ends):
        begin([end for i, end in enumerate(ends) if i != place])
        ends[place].close()
        sender.send(torch.zeros(2**26, dtype=torch.uint8))
        began = time.monotonic()
        neighbours: list[SenderEnd | WorkerEnd] = [sender, *ends][place : place + 1] + ends[place + 1 : place + 2]  # type: ignore[assignment]
        for end in neighbours:
            with pytest.raises(OSError):
                end.wait(never)
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("place", range(3))
def test_one_that_takes_nothing_keeps_nobody_who_is_called_off(place: int) -> None:
    with chain(3) as (sender, ends):
        others = [end for i, end in enumerate(ends) if i != place]
        for end in others:
            end.receive(torch.empty(2**26, dtype=torch.uint8), {})
        sender.send(torch.zeros(2**26, dtype=torch.uint8))
        for end in (sender, *others) if place == 0 else (sender, *others[place:]):
            with pytest.raises(CalledOffError):
                end.wait(soon())


def soon() -> Callable[[], bool]:
    over = threading.Event()
    threading.Timer(0.2, over.set).start()
    return over.is_set


def test_a_chain_cannot_be_made_with_a_worker_that_is_gone() -> None:
    home, door, gone = SenderStore(HERE), Door(HERE), Door(HERE)
    members = [ServerWorker("a", 0, *door.address), ServerWorker("b", 0, *gone.address)]
    gone.close()
    with pytest.raises(ConnectionRefusedError):
        WorkerEnd(Membership(RemoteStore(home.offer), "g", members, 0, door), never)
    with pytest.raises(ConnectionRefusedError):
        SenderEnd(home, "g", members[1:], never)
    door.close()


def test_a_sender_that_has_gone_is_noticed_at_once() -> None:
    home = SenderStore(HERE)
    offer = home.offer
    del home
    with pytest.raises(OSError):
        RemoteStore(offer).get("key")
