"""What the publisher does without a server. With real ones: tests/trainer/rollout/test_publish.py."""

import socket
from collections.abc import Iterator

import pytest
import torch

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.weights.publisher import Publisher

TENSORS = [(f"t{i}", torch.full((4,), float(i))) for i in range(5)]


def exported(log: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in TENSORS:
        log.append(name)
        yield name, tensor


def dead_endpoint() -> RolloutEndpoint:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    return RolloutEndpoint(pod="rollout-0", pod_uid="uid", url=f"http://127.0.0.1:{port}")


def test_without_replicas_the_digest_is_computed_and_the_export_drained() -> None:
    log: list[str] = []
    beats: list[None] = []
    published = Publisher(3, "t", "127.0.0.1", "gloo").publish(7, exported(log), [], lambda: beats.append(None))
    assert len(log) == 5 and beats
    assert (published.version.attempt, published.version.step, published.ok, published.failed) == (3, 7, [], {})
    assert len(published.version.digest) == 64


def test_a_replica_that_is_not_there_fails_alone_and_the_export_is_drained() -> None:
    log: list[str] = []
    published = Publisher(3, "t", "127.0.0.1", "gloo").publish(7, exported(log), [dead_endpoint()], lambda: None)
    assert len(log) == 5 and published.ok == []
    assert "ConnectionRefusedError" in published.failed["rollout-0"]


def test_an_error_of_the_export_is_not_swallowed() -> None:
    def broken() -> Iterator[tuple[str, torch.Tensor]]:
        yield TENSORS[0]
        raise RuntimeError("a rank died")

    with pytest.raises(RuntimeError, match="a rank died"):
        Publisher(3, "t", "127.0.0.1", "gloo").publish(7, broken(), [dead_endpoint()], lambda: None)
