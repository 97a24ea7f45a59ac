"""Both ends of a group, in threads of one process."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.gloo import SenderEnd, WorkerEnd
from rljob_trainer.wire.weights.rendezvous import NOT_JOINED, RemoteStore, SenderStore

HERE = "127.0.0.1"


NAME = "group"


def never() -> bool:
    return False


@pytest.mark.parametrize("here", [HERE, "::1"])
def test_a_payload_reaches_every_worker_of_a_server(here: str) -> None:
    home = SenderStore(here)
    sent = torch.arange(100, dtype=torch.uint8)

    def work(worker: int) -> torch.Tensor:
        end = WorkerEnd(RemoteStore(here, home.port), NAME, worker, 2)
        payload = torch.empty(100, dtype=torch.uint8)
        end.receive(payload, {})
        end.wait()
        return payload

    with ThreadPoolExecutor(2) as pool:
        received = [pool.submit(work, i) for i in range(2)]
        sender = SenderEnd(home, NAME, never)
        assert sender.workers == 2
        sender.send(sent)
        sender.wait(never)
        assert all(torch.equal(r.result(20), sent) for r in received)
    sender.close()


def test_waiting_ends_when_nobody_will_come() -> None:
    with pytest.raises(RuntimeError, match=NOT_JOINED):
        SenderEnd(SenderStore(HERE), NAME, lambda: True)


JOINED_AND_KILLED = """
import os, signal, sys
from rljob_trainer.wire.weights.rendezvous import RemoteStore
RemoteStore("127.0.0.1", int(sys.argv[1])).join("group", 0, 1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_server_that_is_killed_while_the_group_is_made_is_given_up_at_once_and_delays_no_other() -> None:
    """Gloo would wait for it, several times, and keep the store for itself meanwhile."""
    home = SenderStore(HERE)
    server = subprocess.Popen([sys.executable, "-c", JOINED_AND_KILLED, str(home.port)])
    killed: list[float] = []

    def is_gone() -> bool:
        if server.poll() is not None:
            killed.append(time.monotonic())
            home.store.set("another", "server")
        return bool(killed)

    with pytest.raises(RuntimeError, match=NOT_JOINED):
        SenderEnd(home, NAME, is_gone)
    assert time.monotonic() - killed[0] < 15


def test_a_worker_that_leaves_is_an_error_and_not_a_hang() -> None:
    home, connected = SenderStore(HERE), threading.Event()

    def join_and_leave() -> None:
        end = WorkerEnd(RemoteStore(HERE, home.port), NAME, 0, 1)
        connected.wait(20)
        end.close()

    worker = threading.Thread(target=join_and_leave)
    worker.start()
    sender = SenderEnd(home, NAME, never)
    connected.set()
    worker.join(20)
    with pytest.raises(RuntimeError):
        for _ in range(20):
            sender.send(torch.zeros(2**22, dtype=torch.uint8))
            sender.wait(never)
    sender.close()


def test_a_worker_that_does_not_take_what_is_sent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "SILENT_SECONDS", 1.0)
    home, stop = SenderStore(HERE), threading.Event()

    def idle() -> None:
        end = WorkerEnd(RemoteStore(HERE, home.port), NAME, 0, 1)
        stop.wait(20)
        del end

    worker = threading.Thread(target=idle)
    worker.start()
    sender = SenderEnd(home, NAME, never)
    sender.send(torch.zeros(2**26, dtype=torch.uint8))
    with pytest.raises(RuntimeError):
        sender.wait(never)
    stop.set()
    worker.join(20)
    sender.close()


def test_a_sender_that_has_gone_is_noticed_at_once() -> None:
    home = SenderStore(HERE)
    port = home.port
    del home
    with pytest.raises(OSError):
        RemoteStore(HERE, port)
