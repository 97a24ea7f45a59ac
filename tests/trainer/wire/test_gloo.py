"""Both ends of a group, in threads of one process."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from rljob_trainer.wire.weights import rendezvous
from rljob_trainer.wire.weights.gloo import TrainerEnd, WorkerEnd
from rljob_trainer.wire.weights.rendezvous import TrainerStore, join

HERE = "127.0.0.1"


@pytest.mark.parametrize("here", [HERE, "::1"])
def test_a_payload_reaches_every_worker_of_a_replica(here: str) -> None:
    trainer = TrainerEnd(here)
    sent = torch.arange(100, dtype=torch.uint8)

    def work(worker: int) -> torch.Tensor:
        end = WorkerEnd(here, trainer.rendezvous.port, worker, 2)
        payload = torch.empty(100, dtype=torch.uint8)
        end.receive(payload, {})
        end.wait()
        return payload

    with ThreadPoolExecutor(2) as pool:
        received = [pool.submit(work, i) for i in range(2)]
        trainer.accept(lambda: False)
        trainer.send(sent)
        trainer.wait(lambda: False)
        assert all(torch.equal(r.result(20), sent) for r in received)
    trainer.close()


def test_waiting_ends_when_nobody_will_come() -> None:
    trainer = TrainerEnd(HERE)
    trainer.accept(lambda: True)
    trainer.close()


JOINED_AND_KILLED = """
import os, signal, sys
from rljob_trainer.wire.weights.rendezvous import join
join("127.0.0.1", int(sys.argv[1]), 0, 1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_server_that_is_killed_while_the_group_is_made_is_given_up_at_once() -> None:
    """Gloo would wait for it for TRANSFER_SECONDS, several times."""
    trainer = TrainerEnd(HERE)
    server = subprocess.Popen([sys.executable, "-c", JOINED_AND_KILLED, str(trainer.rendezvous.port)])
    killed: list[float] = []

    def is_gone() -> bool:
        if server.poll() is not None:
            killed.append(time.monotonic())
        return bool(killed)

    trainer.accept(is_gone)
    assert time.monotonic() - killed[0] < 15
    trainer.close()


def test_workers_that_come_just_before_it_is_given_up_have_come() -> None:
    trainer = TrainerStore(HERE)

    def come_and_give_up() -> bool:
        join(HERE, trainer.port, 0, 1)
        return True

    assert trainer.size(come_and_give_up) == 2 and trainer.workers == 1


def test_a_worker_that_leaves_is_an_error_and_not_a_hang() -> None:
    trainer, connected = TrainerEnd(HERE), threading.Event()

    def join_and_leave() -> None:
        end = WorkerEnd(HERE, trainer.rendezvous.port, 0, 1)
        connected.wait(20)
        end.close()

    worker = threading.Thread(target=join_and_leave)
    worker.start()
    trainer.accept(lambda: False)
    connected.set()
    worker.join(20)
    with pytest.raises(RuntimeError):
        for _ in range(20):
            trainer.send(torch.zeros(2**22, dtype=torch.uint8))
            trainer.wait(lambda: False)
    trainer.close()


def test_a_worker_that_does_not_take_what_is_sent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "TRANSFER_SECONDS", 1.0)
    trainer, stop = TrainerEnd(HERE), threading.Event()

    def idle() -> None:
        end = WorkerEnd(HERE, trainer.rendezvous.port, 0, 1)
        stop.wait(20)
        del end

    worker = threading.Thread(target=idle)
    worker.start()
    trainer.accept(lambda: False)
    trainer.send(torch.zeros(2**26, dtype=torch.uint8))
    with pytest.raises(RuntimeError):
        trainer.wait(lambda: False)
    stop.set()
    worker.join(20)
    trainer.close()


def test_a_trainer_that_has_gone_is_noticed_at_once() -> None:
    trainer = TrainerEnd(HERE)
    port = trainer.rendezvous.port
    trainer.close()
    del trainer
    with pytest.raises(OSError):
        WorkerEnd(HERE, port, 0, 1)
