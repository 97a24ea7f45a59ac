"""One sender and many servers: what leaves the sender, and what becomes of an update in whose middle somebody dies, hangs or refuses."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.rank.weights import session
from rljob_trainer.rank.weights.publisher import Published, Publisher
from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.bucket import Entry
from rljob_trainer.wire.weights.messages import Inbox, Outbox
from rljob_trainer.wire.weights.plan import GatherPhase
from rljob_trainer.wire.weights.protocol import PolicyVersion
from rljob_trainer.wire.weights.transport import over_tcp
from trainer.rank.standing import (
    Standing,
    Tensors,
    digest_of,
    in_another_process,
    publish_together,
    server_apart,
    servers_apart,
)
from trainer.traffic import Traffic

HERE = "127.0.0.1"
POLICY = {f"t{i}": torch.full((4,), float(i)) for i in range(2)}
IN_MANY = replace(over_tcp(HERE), bucket_bytes=1)
SILENT = 2.0
"""Seconds, in place of 15."""


def publish(publisher: Publisher, step: int, servers: list[RolloutEndpoint], policy: Tensors = POLICY) -> Published:
    return publisher.publish(step, iter(policy.items()), servers, lambda: None)


def sent_to(count: int, workers: int) -> int:
    """Bytes of payloads that leave a sender in two updates."""
    policy = {f"t{i}": torch.rand(2**20) for i in range(8)}
    transport = replace(over_tcp(HERE), bucket_bytes=2**23)
    with servers_apart(count, workers) as (servers, held):
        publisher = Publisher(1, "t", transport)
        for step in range(2):
            assert publish(publisher, step, servers, policy).failed == {}
        (group,) = publisher.sender._groups.values()
        assert held().digests == [[digest_of(policy)] * 2] * count
        return Traffic.of(group.end._next).sent  # type: ignore[union-attr]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_leaves_a_sender_does_not_depend_on_the_number_of_servers(workers: int) -> None:
    size, name = 2 * 8 * 4 * 2**20, 100
    assert all(size < sent_to(count, workers) < size + name for count in (2, 4))


def test_senders_begin_their_chains_at_different_servers() -> None:
    with Standing("a") as a, Standing("b") as b, Standing("c") as c:
        orders = []
        for index in range(4):
            publisher = Publisher(1, "t", over_tcp(HERE))
            with publisher.update([server.endpoint for server in (a, b, c)]) as update:
                opened = update.open([publisher.sender.offer])
                publisher.sender.send([GatherPhase(iter(POLICY.items()), sends=True)], opened, index, lambda: None)
            orders.append("".join(member.server[-1] for members in publisher.sender._groups for member in members))
    assert orders == ["abc", "bca", "cab", "abc"]


def at(operation: int, action: Callable[[], None], *functions: tuple[Any, str]) -> Callable[[], None]:
    """Something that has `action` happen before the n-th call of any of these functions."""

    def prepare() -> None:
        count = -1
        for owner, name in functions:
            real = getattr(owner, name)

            def counted(*args: Any, real: Any = real, **kwargs: Any) -> Any:
                nonlocal count
                count += 1
                if count == operation:
                    action()
                return real(*args, **kwargs)

            setattr(owner, name, counted)

    return prepare


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    threading.Event().wait()  # the signal may reach another thread first


AT_A_WORKER = (Inbox, "next"), (Inbox, "ready"), (Inbox, "done")
AT_A_SENDER = (Outbox, "say"), (session, "ask")
WORKERS_OPERATIONS = range(14)
"""It reads a group, two buckets of which each has an end, the end of the phase and that of the update; is ready for the first three, and has done
those and the last."""
AFTER_THE_LAST_BUCKET = 10
HANGS = (0, 4, AFTER_THE_LAST_BUCKET, 13)
"""In `make test`, since each takes the time of its silence."""
SENDERS_OPERATIONS = range(9)
"""It asks for the update, says the seven messages, and asks for its application."""


def ways(places: Iterable[int], hangs: Collection[int]) -> list[Any]:
    """A server dies at each of these places, or hangs there: in `make test` at some of them."""
    marks = {True: pytest.mark.slow, False: pytest.mark.extra}
    dies = [pytest.param(place, die) for place in places]
    return dies + [pytest.param(place, hang, marks=marks[place in hangs]) for place in places]


@pytest.mark.parametrize(("operation", "how"), ways(WORKERS_OPERATIONS, HANGS))
def test_a_server_that_dies_or_hangs_at_any_message_costs_the_others_its_silence_and_not_the_update(
    monkeypatch: pytest.MonkeyPatch, operation: int, how: Callable[[], None]
) -> None:
    monkeypatch.setattr(protocol, "SILENT_SECONDS", SILENT)
    monkeypatch.setattr(protocol, "ABORT_SECONDS", 1.0)
    monkeypatch.setattr(protocol, "OPEN_SECONDS", 5.0)  # one that hangs at its first message may not have answered yet
    publisher = Publisher(3, "t", IN_MANY)
    with server_apart("lost", at(operation, how, *AT_A_WORKER)) as lost, Standing("a") as a, Standing("b") as b:
        servers = [a.endpoint, b.endpoint]
        servers.insert(operation % 3, lost)
        began = time.monotonic()
        published = publish(publisher, 0, servers)
        assert time.monotonic() - began < SILENT + 10.0
        assert list(published.failed) == ["lost"], published.failed
        assert publish(publisher, 1, [a.endpoint, b.endpoint]).ok == ["a", "b"]
        assert a.served == b.served == [digest_of(POLICY)] * 2
        regrouped = operation < AFTER_THE_LAST_BUCKET
        assert (a.groups[0] == a.groups[1]) is (b.groups[0] == b.groups[1]) is regrouped, "their group lives on"


@pytest.mark.parametrize("operation", SENDERS_OPERATIONS)
def test_nothing_serves_what_a_sender_has_begun_that_dies_at_any_message(operation: int) -> None:
    other = {name: tensor + 1 for name, tensor in POLICY.items()}
    with Standing("a") as a, Standing("b") as b:
        servers = [a.endpoint, b.endpoint]

        def fail() -> None:
            at(operation, die, *AT_A_SENDER)()
            publish(Publisher(3, "t", IN_MANY), 0, servers, other)

        _, status = os.waitpid(in_another_process(fail), 0)
        assert os.WIFSIGNALED(status), "it has not come so far"
        assert a.served == b.served == []
        assert publish(Publisher(4, "t", IN_MANY), 0, servers).failed == {}
        assert a.served == b.served == [digest_of(POLICY)]


def test_a_worker_that_dies_after_the_last_bucket_costs_its_server_and_no_other() -> None:
    """As one in another pod than the head of its server, whose engine waits for it."""
    publisher = Publisher(3, "t", over_tcp(HERE))
    with Standing("lost", workers=2) as lost, Standing("a") as a, Standing("b") as b:
        with publisher.update([x.endpoint for x in (lost, a, b)]) as update:
            opened = update.open([publisher.sender.offer])
            sent = publisher.sender.send([GatherPhase(iter(POLICY.items()), sends=True)], opened, 0, lambda: None)
            lost.workers[1].place.door.close()
            lost.answering.clear()
            began = time.monotonic()
            published = update.commit(PolicyVersion(3, 0, sent.digest), [sent], None)
        assert time.monotonic() - began < 15.0
        lost.answering.set()
        assert (published.ok, published.failed) == (["a", "b"], {"lost": "worker 1 has died"})
        assert a.served == b.served == [sent.digest]


def refusing(bucket: str) -> Callable[[Iterable[Entry]], None]:
    def check(entries: Iterable[Entry]) -> None:
        if any(entry.name == bucket for entry in entries):
            raise ValueError("no room")

    return check


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("bucket", POLICY)
def test_a_server_that_refuses_any_bucket_harms_no_other(bucket: str, place: int) -> None:
    publisher = Publisher(3, "t", IN_MANY)
    with Standing("no", workers=2, check=refusing(bucket)) as no, Standing("a") as a, Standing("b") as b:
        servers = [a.endpoint, b.endpoint]
        servers.insert(place, no.endpoint)
        published = publish(publisher, 0, servers)
        assert (published.ok, published.failed) == (["a", "b"], {"no": "no room"})
        assert a.served == b.served == [digest_of(POLICY)] and no.served == []


def test_an_update_of_which_no_server_is_left_ends_and_is_exported_to_its_end() -> None:
    tensors = iter(POLICY.items())
    with Standing("no", check=refusing("t0")) as no:
        published = Publisher(3, "t", IN_MANY).publish(0, tensors, [no.endpoint], lambda: None)
    assert published.ok == [] and published.failed == {"no": "no room"} and next(tensors, None) is None


@pytest.mark.parametrize("refuses", ["", "t0", "t1"], ids=["all go well", "the first is refused", "the last is"])
def test_nothing_of_an_update_stays_with_its_sender_after_the_next_one(refuses: str) -> None:
    publisher, held = Publisher(3, "t", IN_MANY), []
    with Standing("a", check=refusing(refuses)) as a:
        for step in range(4):
            assert publish(publisher, step, [a.endpoint]).ok == ([] if refuses else ["a"])
            held.append(len(publisher.sender._home))
    assert 2 < max(held) < 2 * min(held), "one update's messages and lines"


@pytest.mark.parametrize(("seed", "how"), ways(range(6), (0, 1)))
def test_a_server_lost_among_many_senders_costs_the_others_nothing_that_they_were_sent(
    monkeypatch: pytest.MonkeyPatch, seed: int, how: Callable[[], None]
) -> None:
    """Each sender finds out for itself, while workers take buckets of the others."""
    monkeypatch.setattr(protocol, "SILENT_SECONDS", SILENT)
    monkeypatch.setattr(protocol, "ABORT_SECONDS", 1.0)
    draw = random.Random(seed)
    parts = [{f"{i}.{n}": torch.rand(draw.randint(1, 5000)) for n in range(draw.randint(1, 5))} for i in range(3)]
    whole = {name: tensor for part in parts for name, tensor in part.items()}
    operations = sum(3 + 4 * len(part) + 3 for part in parts)
    prepare = at(draw.randrange(operations), how, *AT_A_WORKER)
    publishers = [Publisher(1, "t", IN_MANY) for _ in parts]
    with server_apart("lost", prepare) as lost, Standing("a", workers=2) as a, Standing("b") as b:
        servers = [a.endpoint, b.endpoint]
        servers.insert(draw.randrange(3), lost)
        began = time.monotonic()
        published, _ = publish_together(
            publishers, lambda i: [GatherPhase(iter(parts[i].items()), sends=True)], servers
        )
        assert time.monotonic() - began < SILENT + 15.0
        assert published.ok == ["a", "b"] and published.version.digest == digest_of(whole)
        assert a.served == b.served == [digest_of(whole)]
