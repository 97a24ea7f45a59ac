"""When the policy is exported. With real ranks and servers: tests/trainer/loop, tests/trainer/server/test_publish.py."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rljob_trainer.rank.weights.publisher import Publisher
from rljob_trainer.rank.weights.senders import Senders
from rljob_trainer.wire.collective import Ranks
from rljob_trainer.wire.weights.plan import GatherPhase
from rljob_trainer.wire.weights.transport import over_tcp


class Exports:
    """Stands for an engine: it counts how often its policy of one tensor is exported."""

    def __init__(self) -> None:
        self.count = 0
        self.memory = SimpleNamespace(enter=lambda phase: None)

    def export_served(self, home: int | None) -> list[GatherPhase]:
        assert home is None, "servers are in pods of their own"
        self.count += 1
        return [GatherPhase(iter([("weight", torch.ones(4))]), sends=True)]


class Said:
    """Stands for the driver: what it is given of the policies."""

    def __init__(self) -> None:
        self.digests: dict[int, str] = {}

    def published(self, step: int, digest: str, failed: dict[str, str], seconds: float) -> None:
        assert not failed
        self.digests[step] = digest


@pytest.fixture
def ranks(megatron: None, tmp_path: Path) -> Iterator[Ranks]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield Ranks(60.0)
    dist.destroy_process_group()


def publication(ranks: Ranks, engine: Any, driver: Any) -> Any:
    from rljob_trainer.rank.publication import Publication

    senders = Senders(ranks, lambda: Publisher(1, "token", over_tcp("127.0.0.1")), lambda: None)
    return Publication(SimpleNamespace(model=SimpleNamespace(lora=None)), ranks, engine, senders, driver)


def test_a_policy_that_nobody_gets_is_exported_only_for_the_digest_of_a_checkpoint_and_once(ranks: Ranks) -> None:
    engine, driver = Exports(), Said()
    policy = publication(ranks, engine, driver)
    policy.publish(3, [])
    assert engine.count == 0 and driver.digests == {3: ""}
    digest = policy.digest(3)
    assert engine.count == 1 and len(digest) == 64 and driver.digests == {3: digest}
    assert policy.digest(3) == digest and engine.count == 1


def test_a_restored_policy_whose_digest_is_not_the_manifests_is_refused(ranks: Ranks) -> None:
    from rljob_trainer.rank.publication import PolicyMismatchError

    policy = publication(ranks, Exports(), Said())
    policy.expect(3, "of another policy")
    with pytest.raises(PolicyMismatchError, match="step 3 was restored as"):
        policy.publish(3, [{"pod": "rollout-0", "pod_uid": "uid", "url": "http://127.0.0.1:9"}])
