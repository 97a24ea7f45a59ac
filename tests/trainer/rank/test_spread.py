"""Servers whose workers have parts of a policy of their own: what each receives, and what becomes of that when a server is lost."""

import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
import torch

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.rank.weights.publisher import Published, Publisher
from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.bucket import Entry, payload_size
from rljob_trainer.wire.weights.plan import GatherPhase
from rljob_trainer.wire.weights.slices import NOTHING, Slice
from rljob_trainer.wire.weights.transport import over_tcp
from trainer.rank.standing import Standing, Tensors, Worker, digest_of, publish_together, server_apart
from trainer.rank.test_fan_out import AT_A_WORKER, SILENT, at, die, refusing
from trainer.traffic import Traffic

HERE = "127.0.0.1"
IN_MANY = replace(over_tcp(HERE), bucket_bytes=3 * 2**14)
NAME = 100
"""Bytes by which a connection begins, at most."""
EXPERTS = 8


def parts(of: random.Random, senders: int) -> list[Tensors]:
    """By sender: some of what all workers need, and experts."""
    found: list[Tensors] = [{f"shared.{i}.{n}": _tensor(of) for n in range(of.randint(0, 2))} for i in range(senders)]
    for expert in range(EXPERTS):
        found[of.randrange(senders)] |= {f"layer.{n}.expert.{expert}": _tensor(of) for n in range(2)}
    return found


def _tensor(of: random.Random) -> torch.Tensor:
    return torch.rand(4 * of.randint(1, 160), 64)


def has(worker: int, workers: int, name: str) -> bool:
    """Whether it has some of a tensor: all have their rows of what is shared, and nobody the last expert."""
    expert = int(name.rpartition(".")[2])
    return name.startswith("shared") or (expert * workers // EXPERTS == worker and expert < EXPERTS - 1)


def spread(
    pod: str,
    workers: int,
    policy: Tensors,
    check: Callable[[Iterable[Entry]], None] = lambda _: None,
    before: Callable[[int], None] = lambda _: None,
) -> Standing:
    server = Standing(pod, workers, before=before, check=check)
    for i, worker in enumerate(server.workers):
        worker.needs = {name: NOTHING for name in policy if not has(i, workers, name)}
        shared = {name: tensor.shape[0] // workers for name, tensor in policy.items() if name.startswith("shared")}
        worker.needs |= {name: Slice(0, ((i * rows, (i + 1) * rows),)) for name, rows in shared.items()}
    return server


def received(worker: Worker) -> int:
    """Bytes on its connections with senders and workers before it."""
    ends = [end for connection in worker.connections.values() for end in connection.groups.values()]
    return sum(Traffic.of(end._before).received for end in ends)  # type: ignore[union-attr]


def has_its_part(server: Standing, policy: Tensors) -> bool:
    """Slices where all servers are divided alike, or the whole."""
    return all(
        worker.tensors.keys() == {name for name in policy if worker.needs.get(name) != NOTHING}
        and all(_is_part(tensor, policy[name], worker.needs.get(name)) for name, tensor in worker.tensors.items())
        for worker in server.workers
    )


def _is_part(tensor: torch.Tensor, whole: torch.Tensor, part: Slice | None) -> bool:
    if tensor.shape == whole.shape or part is None:
        return torch.equal(tensor, whole)
    ((first, end),) = part.ranges
    return torch.equal(tensor, whole[first:end])


@pytest.mark.parametrize("seed", range(8))
def test_a_worker_receives_the_bytes_of_what_it_needs_and_no_others(seed: int) -> None:
    """Of servers that are divided differently, one of which needs everything in its only worker, in two updates over the same connections."""
    of = random.Random(seed)
    sent = parts(of, of.randint(1, 3))
    policy = {name: tensor for part in sent for name, tensor in part.items()}
    publishers = [Publisher(1, "t", IN_MANY) for _ in sent]
    with spread("a", 4, policy) as a, spread("b", 4, policy) as b, spread("c", 2, policy) as c, Standing("d") as d:
        servers = [a, b, c, d]
        for step in range(2):
            done, found = publish_together(
                publishers,
                lambda i: [GatherPhase(iter(sent[i].items()), sends=True)],
                [s.endpoint for s in servers],
                step,
            )
            assert done.failed == {} and done.version.digest == digest_of(policy)
            assert [one.bytes for one in found] == [sum(t.nbytes for t in part.values()) for part in sent]
        for server in servers:
            assert server.served == [digest_of(policy)] * 2 and server.groups[0] == server.groups[1]
            assert has_its_part(server, policy)
            for worker in server.workers:
                size = 2 * payload_size(tensor.nbytes for tensor in worker.tensors.values())
                groups = sum(len(connection.groups) for connection in worker.connections.values())
                assert size <= received(worker) < size + NAME * groups and worker.most_held <= 2


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_that_divide_matrices_receive_their_rows_and_each_byte_leaves_its_sender_once(workers: int) -> None:
    tensors = {f"shared.{n}": torch.rand(workers * 64, 64) for n in range(6)} | {"shared.small.9": torch.rand(4, 4)}
    publisher = Publisher(1, "t", IN_MANY)
    with spread("a", workers, tensors) as a, spread("b", workers, tensors) as b:
        done, (sent,) = publish_together(
            [publisher], lambda _: [GatherPhase(iter(tensors.items()), sends=True)], [a.endpoint, b.endpoint]
        )
        assert done.failed == {} and done.version.digest == digest_of(tensors)
        rows, small = payload_size([64 * 64 * 4] * 6), payload_size([64])
        for worker in (*a.workers, *b.workers):
            assert rows + small <= received(worker) < rows + small + 2 * NAME
            assert [t.shape[0] for t in worker.tensors.values()] == [64] * 6 + [4]
        ends = [group.end for group in publisher.sender._groups.values()]
        assert len(ends) == workers + 1, "one for each slice, through both servers, and one for what all need"
        left = sum(Traffic.of(end._next).sent for end in ends)  # type: ignore[union-attr]
        assert left < workers * rows + small + NAME * len(ends) and sent.bytes == sum(
            t.nbytes for t in tensors.values()
        )
        assert all(has_its_part(server, tensors) for server in (a, b))


@pytest.mark.parametrize("seed", range(6))
def test_a_server_that_dies_costs_the_others_nothing_wherever_their_workers_are_and_comes_back(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Some of them wait for the same bucket, and some have gone on to other senders."""
    monkeypatch.setattr(protocol, "SILENT_SECONDS", SILENT)
    monkeypatch.setattr(protocol, "ABORT_SECONDS", 1.0)
    of = random.Random(seed)
    sent = parts(of, 3)
    policy = {name: tensor for part in sent for name, tensor in part.items()}
    publishers = [Publisher(1, "t", IN_MANY) for _ in sent]

    def publish(servers: list[RolloutEndpoint], step: int) -> Published:
        return publish_together(publishers, lambda i: [GatherPhase(iter(sent[i].items()), sends=True)], servers, step)[
            0
        ]

    def divided(pod: str) -> Standing:
        return spread(pod, 4, policy)

    with divided("a") as a, divided("b") as b:
        servers, place = [a.endpoint, b.endpoint], of.randrange(3)
        with server_apart("lost", at(of.randrange(60), die, *AT_A_WORKER), divided) as lost:
            began = time.monotonic()
            done = publish([*servers[:place], lost, *servers[place:]], 0)
            assert time.monotonic() - began < SILENT + 15.0
        assert done.ok == ["a", "b"] and list(done.failed) == ["lost"]
        with divided("back") as back:
            done = publish([*servers, back.endpoint], 1)
            assert done.failed == {} and back.served == [digest_of(policy)] and a.served == b.served == back.served * 2
            assert all(has_its_part(server, policy) for server in (a, b, back))


def test_a_worker_that_refuses_what_it_gets_takes_its_server_along_and_no_other() -> None:
    of = random.Random(1)
    sent = parts(of, 2)
    policy = {name: tensor for part in sent for name, tensor in part.items()}
    publishers = [Publisher(1, "t", IN_MANY) for _ in sent]
    with spread("a", 4, policy) as a, spread("no", 4, policy, refusing("layer.0.expert.3")) as no:
        done, _ = publish_together(
            publishers, lambda i: [GatherPhase(iter(sent[i].items()), sends=True)], [no.endpoint, a.endpoint]
        )
        assert (done.ok, done.failed) == (["a"], {"no": "no room"}) and has_its_part(a, policy)


def test_workers_that_need_different_parts_load_them_at_the_same_time() -> None:
    """Each waits within its first bucket until all others load theirs, so an update in which one waits for what another loads would not end."""
    workers = 4
    tensors = {f"shared.{n}": torch.rand(workers * 64, 64) for n in range(6)}
    together = threading.Barrier(workers)

    def meet(count: int) -> None:
        if count == 0:
            together.wait(20)

    with spread("a", workers, tensors, before=meet) as a:
        done, _ = publish_together(
            [Publisher(1, "t", IN_MANY)], lambda _: [GatherPhase(iter(tensors.items()), sends=True)], [a.endpoint]
        )
        assert done.failed == {} and has_its_part(a, tensors)
        assert all(len(worker.order) > 2 and worker.most_held <= 2 for worker in a.workers)
