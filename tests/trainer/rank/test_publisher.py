"""What the publisher does without a server. With real ones: tests/trainer/server/test_publish.py."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer import failure
from rljob_trainer.failure import RolloutLost
from rljob_trainer.machine import free_port
from rljob_trainer.rank.weights import publisher as publisher_module
from rljob_trainer.rank.weights.publisher import Publisher
from rljob_trainer.wire.weights import gloo, protocol
from rljob_trainer.wire.weights.bucket import Entry, payload_size
from rljob_trainer.wire.weights.messages import Inbox
from rljob_trainer.wire.weights.protocol import AttemptSuperseded
from rljob_trainer.wire.weights.transport import over_gloo

TENSORS = [(f"t{i}", torch.full((4,), float(i))) for i in range(5)]


def exported(log: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in TENSORS:
        log.append(name)
        yield name, tensor


def dead_endpoint() -> RolloutEndpoint:
    return RolloutEndpoint(pod="rollout-0", pod_uid="uid", url=f"http://127.0.0.1:{free_port()}")


def test_without_replicas_the_digest_is_computed_and_the_export_drained() -> None:
    log: list[str] = []
    beats: list[None] = []
    published = Publisher(3, "t", over_gloo("127.0.0.1")).publish(7, exported(log), [], lambda: beats.append(None))
    assert len(log) == 5 and beats
    assert (published.version.attempt, published.version.step, published.ok, published.failed) == (3, 7, [], {})
    assert len(published.version.digest) == 64


def test_a_replica_that_is_not_there_fails_alone_and_the_export_is_drained() -> None:
    log: list[str] = []
    published = Publisher(3, "t", over_gloo("127.0.0.1")).publish(7, exported(log), [dead_endpoint()], lambda: None)
    assert len(log) == 5 and published.ok == []
    assert "ConnectionRefusedError" in published.failed["rollout-0"]


def test_an_error_of_the_export_is_not_swallowed() -> None:
    def broken() -> Iterator[tuple[str, torch.Tensor]]:
        yield TENSORS[0]
        raise RuntimeError("a rank died")

    with pytest.raises(RuntimeError, match="a rank died"):
        Publisher(3, "t", over_gloo("127.0.0.1")).publish(7, broken(), [dead_endpoint()], lambda: None)


def test_a_rank_whose_server_is_gone_is_not_the_cause() -> None:
    with pytest.raises(RolloutLost, match="/rljob/sleep: ConnectionRefusedError") as raised:
        Publisher(3, "t", over_gloo("127.0.0.1")).sleep([dead_endpoint()])
    assert failure.classify(raised.value).kind == "collective"


class Worker(BaseHTTPRequestHandler):
    """A replica of one worker, which takes what it is sent and says yes. `asked`: where the trainer listens, each time that it was told."""

    server: "Replica"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == protocol.OPEN:
            self.server.asked.append(body["port"])
            self.server.answering.wait(20)
            time.sleep(self.server.opening)
            if not body["known"]:
                self.server.end = gloo.WorkerEnd(body["address"], body["port"], 0, 1)
        with nullcontext() if self.path == protocol.OPEN else self.server.lock:
            receives = self.path == protocol.RECEIVE
            status = self.receive(Inbox(self.server.end.store, body["messages"], 0)) if receives else 200
            self.server.answered.append(self.path)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b'{"attempt": 4}')

    def receive(self, inbox: Inbox) -> int:
        try:
            for message in inbox:
                size = payload_size(Entry.from_json(e).size for e in message["entries"])
                self.server.end.receive(torch.empty(size, dtype=torch.uint8), {})
                self.server.end.wait()
                self.server.buckets += 1
                if self.server.fenced:
                    return 409
                if self.server.refuses:
                    inbox.refuse(self.server.refuses)
                    self.server.end.close()
                    return 500
                time.sleep(self.server.seconds)
                inbox.acknowledge()
        except RuntimeError:
            return 500
        return 200

    def log_message(self, *_: object) -> None:
        """Quiet."""


class Replica(ThreadingHTTPServer):
    end: gloo.WorkerEnd

    def __init__(
        self, pod: str, seconds: float = 0.0, opening: float = 0.0, fenced: bool = False, refuses: str = ""
    ) -> None:
        """`seconds`: that a bucket takes; `opening`: that OPEN takes; `fenced`: it learns of attempt 4 with the first bucket; `refuses`: why it
        refuses that."""
        super().__init__(("127.0.0.1", 0), Worker)
        self.seconds, self.opening, self.fenced, self.refuses = seconds, opening, fenced, refuses
        self.asked: list[int] = []
        self.lock = threading.Lock()
        self.buckets = 0
        self.answered: list[str] = []
        self.answering = threading.Event()
        self.answering.set()
        self.endpoint = RolloutEndpoint(pod=pod, pod_uid=f"uid-{pod}", url=f"http://127.0.0.1:{self.server_port}")
        threading.Thread(target=self.serve_forever, daemon=True).start()


def test_a_replica_that_takes_long_is_named_until_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "NAMED_SECONDS", 0.2)
    said: list[str] = []
    slow, quick = Replica("slow", seconds=2.0), Replica("quick")
    publisher = Publisher(3, "t", over_gloo("127.0.0.1"), said.append)
    assert publisher.publish(7, iter(TENSORS), [slow.endpoint, quick.endpoint], lambda: None).failed == {}
    assert "slow to verify weights" in said and said[-1] == ""
    assert not any("quick" in what for what in said[said.index("slow to verify weights") :])


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_replica_keeps_its_connection_until_a_step_comes_that_it_is_not_there_for() -> None:
    publisher = Publisher(3, "t", over_gloo("127.0.0.1"))

    def publish(step: int, *replicas: Replica) -> None:
        found = publisher.publish(step, iter(TENSORS), [r.endpoint for r in replicas], lambda: None)
        assert len(found.ok) == len(replicas), found.failed

    with Replica("leaves") as leaves, Replica("stays") as stays, Replica("comes") as comes:
        publish(0, leaves, stays)
        publish(0, comes)
        publish(1, leaves, stays, comes)
        assert all(len(set(r.asked)) == 1 and listens(r.asked[0]) for r in (leaves, stays, comes))
        publish(2, stays, comes)
        assert [listens(r.asked[0]) for r in (leaves, stays, comes)] == [False, True, True]
        publish(3, leaves)
        assert listens(leaves.asked[-1]) and not listens(stays.asked[0])
        for replica in (leaves, stays, comes):
            replica.shutdown()


def test_a_replica_that_does_not_answer_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that answers that it is not in the group is asked again, to join a new one: tests/trainer/server/test_publish.py."""
    monkeypatch.setattr(protocol, "OPEN_SECONDS", 0.5)
    publisher = Publisher(3, "t", over_gloo("127.0.0.1"))
    with Replica("rollout-0") as replica:
        assert publisher.publish(0, iter(TENSORS), [replica.endpoint], lambda: None).ok
        replica.answering.clear()
        published = publisher.publish(1, iter(TENSORS), [replica.endpoint], lambda: None)
        replica.answering.set()
        assert "TimeoutError" in published.failed["rollout-0"] and len(replica.asked) == 2
        replica.shutdown()


def test_an_update_that_ends_early_is_abandoned_by_each_replica_after_what_it_is_doing() -> None:
    """A connection is not for two threads."""
    publisher = Publisher(3, "t", over_gloo("127.0.0.1"))
    with Replica("fenced", fenced=True) as fenced, Replica("slow", seconds=0.5) as slow:
        with pytest.raises(AttemptSuperseded, match="attempt 4 holds"):
            publisher.publish(0, iter(TENSORS), [fenced.endpoint, slow.endpoint], lambda: None)
        assert slow.answered == [protocol.OPEN, protocol.RECEIVE, protocol.ABORT]
        fenced.shutdown()
        slow.shutdown()


@pytest.mark.parametrize("buckets", [1, 5])
def test_an_update_takes_three_requests_whatever_its_buckets(buckets: int) -> None:
    transport = replace(over_gloo("127.0.0.1"), bucket_bytes=1 if buckets > 1 else 2**30)
    publisher = Publisher(3, "t", transport)
    with Replica("rollout-0") as replica:
        for step in range(2):
            replica.answered.clear()
            assert publisher.publish(step, iter(TENSORS), [replica.endpoint], lambda: None).ok
            assert replica.answered == [protocol.OPEN, protocol.RECEIVE, protocol.COMMIT]
            assert replica.buckets == buckets * (step + 1)
        replica.shutdown()


@pytest.mark.parametrize("bucket_bytes", [1, 2**30])
def test_why_a_worker_refuses_a_bucket_is_the_cause_and_harms_no_other_replica(bucket_bytes: int) -> None:
    """Its connection breaks as well, and the answer to the request comes later."""
    publisher = Publisher(3, "t", replace(over_gloo("127.0.0.1"), bucket_bytes=bucket_bytes))
    with Replica("refuses", refuses="t0: checksum differs from the sender's") as refuses, Replica("fine") as fine:
        found = publisher.publish(0, iter(TENSORS), [refuses.endpoint, fine.endpoint], lambda: None)
        assert found.ok == ["fine"]
        assert found.failed == {"refuses": f"{protocol.RECEIVE}: t0: checksum differs from the sender's"}
        refuses.shutdown()
        fine.shutdown()


def test_an_engine_that_receives_for_long_gets_to_answer_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "RECEIVE_SECONDS", 0.0)
    publisher = Publisher(3, "t", replace(over_gloo("127.0.0.1"), bucket_bytes=1))
    with Replica("rollout-0") as replica:
        assert publisher.publish(0, iter(TENSORS), [replica.endpoint], lambda: None).ok
        assert replica.buckets == 5 and replica.answered.count(protocol.RECEIVE) > 1
        replica.shutdown()


def test_a_server_that_never_answers_a_first_update_fails_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "OPEN_SECONDS", 0.5)
    with Replica("rollout-0") as replica:
        replica.answering.clear()
        found = Publisher(3, "t", over_gloo("127.0.0.1")).publish(0, iter(TENSORS), [replica.endpoint], lambda: None)
        replica.answering.set()
        assert "TimeoutError" in found.failed["rollout-0"]
        replica.shutdown()


def test_a_server_that_is_slow_to_open_costs_no_other_its_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker waits for a bucket for NEXT_SECONDS, and buckets come when all servers are open."""
    monkeypatch.setattr(protocol, "NEXT_SECONDS", 1.0)
    with Replica("slow", opening=3.0) as slow, Replica("fine") as fine:
        found = Publisher(3, "t", over_gloo("127.0.0.1")).publish(
            0, iter(TENSORS), [slow.endpoint, fine.endpoint], lambda: None
        )
        assert (sorted(found.ok), found.failed) == (["fine", "slow"], {})
        slow.shutdown()
        fine.shutdown()
