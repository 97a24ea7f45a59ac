"""Servers whose workers have parts of a policy of their own: what each receives, and what becomes of that when a server is lost."""

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
import torch

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.rank.weights.publisher import Published, Publisher
from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.bucket import Entry, payload_size
from rljob_trainer.wire.weights.plan import Phase
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
    return torch.rand(of.randint(1, 9000))


def has(worker: int, workers: int, name: str) -> bool:
    """Whether it has a tensor: all have what is shared, and nobody the last expert."""
    expert = int(name.rpartition(".")[2])
    return name.startswith("shared") or (expert * workers // EXPERTS == worker and expert < EXPERTS - 1)


def spread(
    pod: str, workers: int, policy: Tensors, check: Callable[[Iterable[Entry]], None] = lambda _: None
) -> Standing:
    server = Standing(pod, workers, check=check)
    for i, worker in enumerate(server.workers):
        worker.needless = [name for name in policy if not has(i, workers, name)]
    return server


def received(worker: Worker) -> int:
    """Bytes on its connections with senders and workers before it."""
    ends = [end for connection in worker.connections.values() for end in connection.groups.values()]
    return sum(Traffic.of(end._before).received for end in ends)  # type: ignore[union-attr]


def has_its_part(server: Standing, policy: Tensors) -> bool:
    return all(
        worker.tensors.keys() == policy.keys() - worker.needless
        and all(torch.equal(tensor, policy[name]) for name, tensor in worker.tensors.items())
        for worker in server.workers
    )


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
                publishers, lambda i: [Phase(iter(sent[i].items()), sends=True)], [s.endpoint for s in servers], step
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
        return publish_together(publishers, lambda i: [Phase(iter(sent[i].items()), sends=True)], servers, step)[0]

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
            publishers, lambda i: [Phase(iter(sent[i].items()), sends=True)], [no.endpoint, a.endpoint]
        )
        assert (done.ok, done.failed) == (["a"], {"no": "no room"}) and has_its_part(a, policy)
