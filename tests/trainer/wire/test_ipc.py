"""Buckets through CUDA IPC, with workers in processes of their own."""

import multiprocessing
from multiprocessing.connection import Connection

import pytest
import torch

from rljob_trainer.wire.weights.door import Door, Membership
from rljob_trainer.wire.weights.ipc import SenderEnd, WorkerEnd
from rljob_trainer.wire.weights.polling import CalledOffError
from rljob_trainer.wire.weights.protocol import Offer, ServerWorker
from rljob_trainer.wire.weights.rendezvous import RemoteStore, SenderStore

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: run on such a machine")
HERE = "127.0.0.1"
NAME = "group"
SIZE = 64 * 2**20


def never() -> bool:
    return False


def group(workers: int) -> list[ServerWorker]:
    return [ServerWorker("server", worker, HERE, 1) for worker in range(workers)]


def work(offer: Offer, worker: int, workers: int, connection: Connection) -> None:
    """A server's worker: copies what a message names, and says what it got."""
    end = WorkerEnd(Membership(RemoteStore(offer), NAME, group(workers), worker, Door(HERE)), never)
    payload = torch.empty(SIZE, dtype=torch.uint8, device="cuda:0")
    while message := connection.recv():
        end.receive(payload, message)
        end.wait(never)
        connection.send(int(payload.sum()))


@pytest.mark.parametrize("readers", [0, 1])
def test_a_payload_that_a_worker_refuses_does_not_stay_allocated(readers: int) -> None:
    """Of two workers, `readers` copy the payload before the update is abandoned."""
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    home, before = SenderStore(HERE), torch.cuda.memory_allocated()
    process = context.Process(target=work, args=(home.offer, 0, 2, far))
    process.start()
    sender = SenderEnd(home, NAME, group(2), never)
    message = sender.describe(torch.full((SIZE,), 1, dtype=torch.uint8, device="cuda:0"))
    if readers:
        near.send(message)
        assert near.recv() == SIZE
    with pytest.raises(CalledOffError):
        sender.wait(lambda: True)
    assert torch.cuda.memory_allocated() > before
    sender.close()
    assert torch.cuda.memory_allocated() == before
    near.send(None)
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_every_worker_gets_the_payload_and_the_trainer_gets_its_memory_back(workers: int) -> None:
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(workers)]
    home, before = SenderStore(HERE), torch.cuda.memory_allocated()
    processes = [context.Process(target=work, args=(home.offer, i, workers, far)) for i, (_, far) in enumerate(pipes)]
    for process in processes:
        process.start()
    sender = SenderEnd(home, NAME, group(workers), never)
    for step in range(1, 4):
        message = sender.describe(torch.full((SIZE,), step, dtype=torch.uint8, device="cuda:0"))
        for near, _ in pipes:
            near.send(message)
        sender.wait(never)
        assert [near.recv() for near, _ in pipes] == [step * SIZE] * workers
        assert torch.cuda.memory_allocated() == before
    for near, _ in pipes:
        near.send(None)
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
