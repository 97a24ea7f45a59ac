"""One request to receive: what ends it, and when. The server answers nothing; its workers are in threads of this process."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest
import torch

from rljob_trainer.pod import health
from rljob_trainer.rank.weights.call import Call, ReplicaError, ReplicaGoneError, ReplicaRefusedError
from rljob_trainer.rank.weights.receiving import Receiving
from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.bucket import Bucket, pack
from rljob_trainer.wire.weights.gloo import TrainerEnd, WorkerEnd
from rljob_trainer.wire.weights.messages import Inbox, Outbox

HERE = "127.0.0.1"
SECONDS = 60.0


def bucket() -> Bucket:
    return next(pack(iter([("w", torch.ones(4))]), 2**20, torch.device("cpu")))


@contextmanager
def silent_server() -> Iterator[Callable[[], Call]]:
    """Takes requests."""
    with socket.create_server((HERE, 0)) as listening:
        port = listening.getsockname()[1]
        yield lambda: Call(f"http://{HERE}:{port}", "t", 1, protocol.RECEIVE, SECONDS, {})


Work = Callable[[WorkerEnd, Inbox], None]


@contextmanager
def receiving(*works: Work) -> Iterator[Receiving]:
    """By a worker for each of `works`, which leaves when it has done that and all is over."""
    trainer, over = TrainerEnd(HERE), threading.Event()

    def run(worker: int, work: Work) -> None:
        end = WorkerEnd(HERE, trainer.rendezvous.port, worker, len(works))
        with suppress(RuntimeError):  # the others may have left
            work(end, Inbox(end.store, "u", worker))
        over.wait(SECONDS)
        end.close()

    with silent_server() as ask, ThreadPoolExecutor(len(works)) as pool:
        for number, work in enumerate(works):
            pool.submit(run, number, work)
        trainer.accept(lambda: False)
        call = ask()
        yield Receiving(trainer, Outbox(trainer.rendezvous.store, "u", len(works)), call)
        over.set()
        call.close()
        trainer.close()


def take(end: WorkerEnd, payload_bytes: int = 64) -> None:
    end.receive(torch.empty(payload_bytes, dtype=torch.uint8), {})
    end.wait()


def test_a_worker_that_refuses_ends_a_bucket_that_another_worker_still_waits_for() -> None:
    """The server answers when both are done, and the transfer to the worker that refused never ends."""
    size = bucket().payload.numel()

    def refuse(_: WorkerEnd, inbox: Inbox) -> None:
        next(iter(inbox))
        inbox.refuse("w: has shape [3], this model takes [4]")

    with receiving(lambda end, _: take(end, size), refuse) as request:
        began = time.monotonic()
        with pytest.raises(ReplicaRefusedError, match="w: has shape"):
            request.send(bucket(), began + SECONDS)
        assert time.monotonic() - began < SECONDS / 4


def test_a_bucket_and_the_one_before_have_one_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "ABORT_SECONDS", 0.1)
    size, limit = bucket().payload.numel(), 2.0
    asked = threading.Event()

    def never_acknowledge(end: WorkerEnd, _: Inbox) -> None:
        take(end, size)
        asked.wait(SECONDS)
        time.sleep(0.75 * limit)
        take(end, size)

    with receiving(never_acknowledge) as request:
        request.send(bucket(), time.monotonic() + SECONDS)
        began = time.monotonic()
        asked.set()
        with pytest.raises(ReplicaError, match="did not receive or verify a bucket in time"):
            request.send(bucket(), began + limit)
        assert limit < time.monotonic() - began < 1.6 * limit


def test_time_limits_add_up() -> None:
    """One replica's failure costs no other its update, and no server is killed that others keep waiting."""
    send = protocol.CONNECT_SECONDS + protocol.TRANSFER_SECONDS + protocol.ABORT_SECONDS
    assert send < protocol.NEXT_SECONDS
    assert max(protocol.SILENT_SECONDS, protocol.COMMIT_SECONDS) < health.BUSY_SECONDS < protocol.OPEN_SECONDS
    assert protocol.SILENT_SECONDS >= protocol.RECEIVE_SECONDS + protocol.NEXT_SECONDS + 2 * protocol.TRANSFER_SECONDS


def test_a_request_that_was_given_up_has_no_answer_and_asks_no_descriptor() -> None:
    with silent_server() as ask:
        call = ask()
        assert not call.answered()
        call.close()
        near, far = socket.socketpair()  # may have the descriptor that is free now
        assert call.answered() and call.answered(SECONDS)
        with pytest.raises(ReplicaGoneError, match="not asked for any more"):
            call.result()
        near.close()
        far.close()


def test_the_answer_of_a_request_is_waited_for_until_the_earlier_time_limit() -> None:
    with silent_server() as ask:
        began = time.monotonic()
        with pytest.raises(ReplicaGoneError, match="TimeoutError"):
            ask().result(began + 0.2)
        assert time.monotonic() - began < SECONDS / 4
