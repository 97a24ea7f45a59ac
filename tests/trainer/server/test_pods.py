"""Real servers over several pods: an update reaches the workers of all of them, and leaves what loading the policy's files would."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rljob_trainer.wire.parity import Probe
from trainer.server import models
from trainer.server.digests import logged
from trainer.server.servers import Server, spec
from trainer.server.test_publish import PROMPTS, difference, generate, publish

pytestmark = pytest.mark.slow

CUTS: dict[str, tuple[dict[str, Any], str]] = {
    "tensor": ({"tensorParallel": 2}, "127.0.0.1"),
    "pipeline": ({"pipelineParallel": 2}, "::1" if socket.has_dualstack_ipv6() else "127.0.0.1"),
}
"""With where their workers meet."""


@pytest.fixture(scope="module", params=CUTS)
def server(request: pytest.FixtureRequest, start: Callable[..., Server], checkpoints: dict[str, Path]) -> Server:
    """Over two pods."""
    model, (cut, address) = checkpoints["old"], CUTS[request.param]
    return start(model, job=spec(model, nodes=2, **cut), address=address)


def probe_of(model: Path) -> Probe:
    return Probe(
        tuple(PROMPTS), tuple(tuple(models.log_probs(model, p[:1], p[1:]).tolist()) for p in PROMPTS), "float32"
    )


def test_an_update_leaves_on_every_worker_what_loading_its_files_does(
    server: Server, checkpoints: dict[str, Path]
) -> None:
    """The first is loaded over the weights, the others into the second copy."""
    answers = []
    for step, name in enumerate(("old", "new", "old", "new")):
        published = publish(server, checkpoints[name], step, probe=probe_of(checkpoints[name]))
        assert published.ok and published.difference and published.difference[1] < 1e-4
        answers.append(generate(server))
        assert difference(checkpoints[name], answers[-1]) < 1e-4
    assert str(answers[0]) == str(answers[2]).replace("policy_step=2", "policy_step=0")
    digests = logged(server.log) | {k: v for f in server.followers for k, v in logged(f.log).items()}
    assert digests.keys() == {0, 1}, "a worker in each pod"
    for loaded, first, second, third in digests.values():
        assert loaded == first == third != second
