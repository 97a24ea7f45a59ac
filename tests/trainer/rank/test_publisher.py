"""What the publisher does without vLLM. With real servers: tests/trainer/server/test_publish.py."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest
import torch

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer import failure
from rljob_trainer.failure import RolloutLost
from rljob_trainer.machine import free_port
from rljob_trainer.pod import health
from rljob_trainer.rank.weights import delivery
from rljob_trainer.rank.weights.publisher import Published, Publisher
from rljob_trainer.server.weights import loading
from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.bucket import Entry
from rljob_trainer.wire.weights.protocol import AttemptSuperseded
from rljob_trainer.wire.weights.transport import over_tcp
from trainer.rank.standing import Standing

HERE = "127.0.0.1"
TENSORS = [(f"t{i}", torch.full((4,), float(i))) for i in range(5)]
IN_MANY = replace(over_tcp(HERE), bucket_bytes=1)


def exported(log: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in TENSORS:
        log.append(name)
        yield name, tensor


def dead_endpoint() -> RolloutEndpoint:
    return RolloutEndpoint(pod="rollout-0", pod_uid="uid", url=f"http://{HERE}:{free_port()}")


def publish(publisher: Publisher, step: int, *servers: Standing) -> Published:
    return publisher.publish(step, iter(TENSORS), [s.endpoint for s in servers], lambda: None)


def test_without_servers_the_digest_is_computed_and_the_export_drained() -> None:
    log: list[str] = []
    beats: list[None] = []
    published = Publisher(3, "t", over_tcp(HERE)).publish(7, exported(log), [], lambda: beats.append(None))
    assert len(log) == 5 and beats
    assert (published.version.attempt, published.version.step, published.ok, published.failed) == (3, 7, [], {})
    assert len(published.version.digest) == 64


def test_a_server_that_is_not_there_fails_alone_and_the_export_is_drained() -> None:
    log: list[str] = []
    with Standing("fine") as fine:
        servers = [dead_endpoint(), fine.endpoint]
        published = Publisher(3, "t", over_tcp(HERE)).publish(7, exported(log), servers, lambda: None)
    assert len(log) == 5 and published.ok == ["fine"], published.failed
    assert "ConnectionRefusedError" in published.failed["rollout-0"] and published.unreached == ["rollout-0"]


def test_an_error_of_the_export_is_not_swallowed_and_the_update_abandoned() -> None:
    def broken() -> Iterator[tuple[str, torch.Tensor]]:
        yield TENSORS[0]
        raise RuntimeError("a rank died")

    with Standing("rollout-0") as server:
        with pytest.raises(RuntimeError, match="a rank died"):
            Publisher(3, "t", over_tcp(HERE)).publish(7, broken(), [server.endpoint], lambda: None)
        assert server.asked == [protocol.OPEN, protocol.ABORT] and server.served == []


def test_a_rank_whose_server_is_gone_is_not_the_cause() -> None:
    with pytest.raises(RolloutLost, match="/rljob/sleep: ConnectionRefusedError") as raised:
        Publisher(3, "t", over_tcp(HERE)).sleep([dead_endpoint()])
    assert failure.classify(raised.value).kind == "collective"


@pytest.mark.parametrize("transport", [over_tcp(HERE), IN_MANY], ids=["one bucket", "many buckets"])
def test_an_update_takes_two_requests_whatever_its_buckets(transport: object) -> None:
    publisher = Publisher(3, "t", transport)  # type: ignore[arg-type]
    with Standing("rollout-0", workers=2) as server:
        for step in range(2):
            server.asked.clear()
            assert publish(publisher, step, server).ok
            assert server.asked == [protocol.OPEN, protocol.COMMIT]
            for worker in server.workers:
                assert all(torch.equal(worker.tensors[name], tensor) for name, tensor in TENSORS)
    assert len(set(server.served)) == 1


def test_a_server_that_takes_long_is_named_until_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "NAMED_SECONDS", 0.2)
    said: list[str] = []

    def take_long(_: int) -> None:
        time.sleep(2.0)  # ten times NAMED_SECONDS

    with Standing("slow", before=take_long) as slow, Standing("quick") as quick:
        assert publish(Publisher(3, "t", over_tcp(HERE), said.append), 7, slow, quick).failed == {}
    assert "slow to verify weights" in said and said[-1] == ""
    assert not any("quick" in what for what in said[said.index("slow to verify weights") :])


def test_a_group_lives_on_while_the_same_servers_get_updates() -> None:
    publisher = Publisher(3, "t", over_tcp(HERE))
    with Standing("leaves") as leaves, Standing("stays") as stays, Standing("comes") as comes:
        both, all_three = [leaves, stays], [leaves, stays, comes]
        for step, servers in enumerate((both, both, [comes], both, all_three, all_three, [stays, comes])):
            assert len(publish(publisher, step, *servers).ok) == len(servers)
    (first,), *_ = leaves.groups
    assert leaves.groups[:3] == stays.groups[:3] == [[first]] * 3, "the third time, another had come meanwhile"
    assert leaves.groups[3:] == stays.groups[3:5] == comes.groups[1:3] and len(set(map(tuple, leaves.groups))) == 2
    assert stays.groups[5] == comes.groups[3] != stays.groups[4]


def test_a_server_in_the_place_of_another_is_connected_anew() -> None:
    publisher = Publisher(3, "t", over_tcp(HERE))
    with Standing("fine") as fine:
        for step in range(3):
            with Standing("rollout-0") as server:
                assert publish(publisher, step, server, fine).failed == {}
        assert len(set(map(tuple, fine.groups))) == 3


@pytest.mark.parametrize("step", [0, 1])
def test_a_server_that_does_not_answer_fails_in_time(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    monkeypatch.setattr(protocol, "OPEN_SECONDS", 0.5)
    publisher = Publisher(3, "t", over_tcp(HERE))
    with Standing("hangs") as hangs, Standing("fine") as fine:
        for before in range(step):
            assert len(publish(publisher, before, hangs, fine).ok) == 2
        hangs.answering.clear()
        published = publish(publisher, step, hangs, fine)
        hangs.answering.set()
        assert published.ok == ["fine"] and "TimeoutError" in published.failed["hangs"]


def test_an_attempt_that_is_over_touches_no_server() -> None:
    publisher = Publisher(3, "t", over_tcp(HERE))
    with Standing("fenced") as fenced, Standing("other") as other:
        fenced.highest = 4
        with pytest.raises(AttemptSuperseded, match="attempt 4 holds"):
            publish(publisher, 0, fenced, other)
        assert protocol.ABORT in other.asked and other.served == []


def refusing(message: str) -> Callable[[Iterable[Entry]], None]:
    def check(_: Iterable[Entry]) -> None:
        raise ValueError(message)

    return check


@pytest.mark.parametrize("transport", [over_tcp(HERE), IN_MANY], ids=["one bucket", "many buckets"])
def test_why_a_worker_refuses_a_bucket_is_the_cause_and_harms_no_other_server(transport: object) -> None:
    why = "t0 has shape [4], this model has [5]"
    publisher = Publisher(3, "t", transport)  # type: ignore[arg-type]
    with Standing("refuses", workers=2, check=refusing(why)) as refuses, Standing("fine") as fine:
        published = publish(publisher, 0, refuses, fine)
    assert (published.ok, published.failed, published.unreached) == (["fine"], {"refuses": why}, [])


def test_time_limits_add_up() -> None:
    """A server that fails costs no other its update, since that waits longer for a bucket; and none is killed while it applies one."""
    given_up = protocol.CONNECT_SECONDS + protocol.SILENT_SECONDS + protocol.ABORT_SECONDS
    assert given_up < protocol.NEXT_SECONDS
    assert protocol.SILENT_SECONDS + protocol.COMMIT_SECONDS < health.BUSY_SECONDS
    assert 5 * protocol.ALIVE_SECONDS < protocol.SILENT_SECONDS


@pytest.mark.parametrize("bucket", range(3))
def test_a_server_that_hangs_costs_the_others_its_silence_and_not_the_update(
    monkeypatch: pytest.MonkeyPatch, bucket: int
) -> None:
    monkeypatch.setattr(protocol, "SILENT_SECONDS", 2.0)
    over = threading.Event()

    def hang(count: int) -> None:
        if count == bucket:
            over.wait(60)

    publisher = Publisher(3, "t", IN_MANY)
    with Standing("hangs", before=hang) as hangs, Standing("fine") as fine:
        began = time.monotonic()
        published = publish(publisher, 0, hangs, fine)
        assert 2.0 < time.monotonic() - began < 10.0
        over.set()
    assert published.ok == ["fine"] and "worker 0 neither received, loaded nor waited" in published.failed["hangs"]


def test_a_server_that_loads_too_slowly_is_left_out_although_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "SILENT_SECONDS", 3.0)
    monkeypatch.setattr(loading, "GRACE_SECONDS", 0.0)

    def crawl(tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        for _ in tensors:
            time.sleep(0.8)

    with Standing("slow") as slow, Standing("fine") as fine:
        monkeypatch.setattr(slow.workers[0], "_load", crawl)
        published = publish(Publisher(3, "t", over_tcp(HERE)), 0, slow, fine)
    assert (published.ok, published.failed) == (["fine"], {"slow": "this worker took too long to load a bucket"})


def test_how_long_a_sender_waited_for_servers_is_known() -> None:
    def loads_slowly(_: int) -> None:
        time.sleep(0.3)  # the time is what is measured

    with Standing("slow", before=loads_slowly) as slow, Standing("fine") as fine:
        published = publish(Publisher(3, "t", over_tcp(HERE)), 0, slow, fine)
    assert published.failed == {} and published.waited > 0.2


def test_a_server_that_ends_in_the_middle_of_its_answer_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer says no length, so what came looks complete."""
    with Standing("cut") as cut, Standing("whole") as whole:
        monkeypatch.setattr(cut, "open", lambda body: {"doors": Unwritten()})
        published = publish(Publisher(1, "t", over_tcp(HERE)), 0, cut, whole)
    assert published.ok == ["whole"] and "an answer that is cut off: ''" in published.failed["cut"]


class Unwritten:
    """What cannot be written as JSON, when the status has been sent."""
