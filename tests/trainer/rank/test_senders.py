"""A policy from several senders to servers: what arrives, and in which order. From real ranks: tests/trainer/megatron/test_sending.py."""

import random
from dataclasses import replace

import pytest
import torch

from rljob_trainer.rank.weights.publisher import Publisher
from rljob_trainer.wire.weights.plan import GatherPhase
from rljob_trainer.wire.weights.transport import over_tcp
from trainer.rank.standing import Standing, digest_of, publish_together

HERE = "127.0.0.1"


@pytest.mark.parametrize("seed", range(4))
def test_buckets_of_many_senders_arrive_phase_by_phase_and_make_one_policy(seed: int) -> None:
    draw = random.Random(seed)
    transport = replace(over_tcp(HERE), bucket_bytes=draw.choice([1, 2 * 2**14, 2**30]))
    count = draw.randint(2, 3)
    parts = [
        [{f"{phase}.{i}.{n}": torch.rand(draw.randint(1, 5000)) for n in range(draw.randint(0, 6))} for phase in "ab"]
        for i in range(count)
    ]
    whole = {name: tensor for phases in parts for tensors in phases for name, tensor in tensors.items()}
    publishers = [Publisher(1, "t", transport) for _ in parts]
    with Standing("one", workers=draw.randint(1, 2)) as one, Standing("two") as two:
        servers = [one.endpoint, two.endpoint]
        for step in range(2):
            published, sent = publish_together(
                publishers,
                lambda i: [GatherPhase(iter(tensors.items()), sends=bool(tensors)) for tensors in parts[i]],
                servers,
                step,
            )
            assert published.failed == {} and published.version.digest == digest_of(whole)
            assert sum(part.bytes for part in sent) == sum(tensor.nbytes for tensor in whole.values())
        for worker in (*one.workers, *two.workers):
            assert worker.tensors.keys() == whole.keys()
            assert all(torch.equal(tensor, whole[name]) for name, tensor in worker.tensors.items())
            order = [name for names in worker.order for name in names]
            assert order == sorted(order, key=lambda name: name[0])
            assert worker.most_held <= 2


def test_many_senders_are_found_by_all_servers() -> None:
    parts = [{f"{i}": torch.rand(1000)} for i in range(8)]
    publishers = [Publisher(1, "t", over_tcp(HERE)) for _ in parts]
    with Standing("a") as a, Standing("b") as b, Standing("c") as c:
        servers = [server.endpoint for server in (a, b, c)]
        published, _ = publish_together(
            publishers, lambda i: [GatherPhase(iter(parts[i].items()), sends=True)], servers
        )
        assert published.failed == {} and a.served == b.served == c.served == [published.version.digest]
        (groups,) = a.groups
        assert len(set(groups)) == 8, "a worker's door knows connections by the names of their groups"
