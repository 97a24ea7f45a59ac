"""Real servers: what is published is what is served, whole or not at all."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import save_file

from rljob_api.spec.common import Sampling
from rljob_trainer.rank.weights.publisher import Published, Publisher
from rljob_trainer.rank.weights.sender import Sent
from rljob_trainer.wire.parity import MismatchError, Probe
from rljob_trainer.wire.rollout_client import Generation, GenerationRequest, ReplicaLost, RolloutClient
from rljob_trainer.wire.weights.chain import SenderEnd
from rljob_trainer.wire.weights.plan import GatherPhase
from rljob_trainer.wire.weights.protocol import AttemptSuperseded, PolicyVersion
from rljob_trainer.wire.weights.transport import Transport, over_tcp
from trainer.server import models
from trainer.server.servers import TOKEN, Server

pytestmark = pytest.mark.slow

OVER_TCP = over_tcp("127.0.0.1")
PROMPTS = [tuple(2 + (i * 7 + j * 3) % 120 for j in range(length)) for i, length in enumerate((5, 17, 150))]


def publish(
    server: Server,
    model: Path,
    step: int,
    attempt: int = 1,
    probe: Probe | None = None,
    transport: Transport = OVER_TCP,
) -> Published:
    return Publisher(attempt, TOKEN, transport).publish(
        step, iter(models.tensors(model)), [server.endpoint], lambda: None, probe
    )


def generate(server: Server, attempt: int = 1, n: int = 2, temperature: float = 0.7) -> list[list[Generation]]:
    """Responses to all PROMPTS."""

    async def ask() -> list[list[Generation]]:
        async with RolloutClient(server.endpoint, TOKEN, attempt) as client:
            sampling = Sampling(temperature=temperature, max_tokens=24)
            return await asyncio.gather(
                *(client.generate(GenerationRequest(p, n, sampling, seed=i)) for i, p in enumerate(PROMPTS))
            )

    return asyncio.run(ask())


def difference(model: Path, answers: list[list[Generation]], temperature: float = 0.7) -> float:
    """Largest difference between the server's log-probabilities and Hugging Face's for `model`."""
    return max(
        (models.log_probs(model, prompt, g.tokens, temperature) - torch.tensor(g.log_probs)).abs().max().item()
        for prompt, group in zip(PROMPTS, answers, strict=True)
        for g in group
    )


@pytest.fixture(scope="module")
def server(start: Callable[..., Server], checkpoints: dict[str, Path]) -> Server:
    return start(checkpoints["old"])


def test_published_weights_are_what_generates(server: Server, checkpoints: dict[str, Path]) -> None:
    with pytest.raises(ReplicaLost, match="503"):
        generate(server)
    for step, name in enumerate(("old", "new")):
        published = publish(server, checkpoints[name], step)
        assert published.ok == [server.endpoint.pod] and not published.failed
        answers = generate(server)
        assert difference(checkpoints[name], answers) < 1e-4
        assert {g.policy_step for group in answers for g in group} == {step}
    assert difference(checkpoints["old"], answers) > 0.1, "the two models must differ for this test to say anything"
    status, state = server.get("/rljob/state", Authorization=f"Bearer {TOKEN}")
    said = json.loads(state)
    assert status == 200 and said.pop("cache_tokens") > 0
    assert said == {"attempt": 1, "policy_step": 1, "digest": published.version.digest}


def served(server: Server) -> int:
    """Step of the policy that the server says it serves."""
    return json.loads(server.get("/rljob/state", Authorization=f"Bearer {TOKEN}")[1])["policy_step"]


class Corrupting(SenderEnd):
    """A connection that changes a bit."""

    def send(self, payload: torch.Tensor) -> None:
        changed = payload.clone()
        changed[5] ^= 1
        super().send(changed)


def test_a_corrupted_bucket_is_refused_and_the_old_weights_are_served(
    server: Server, checkpoints: dict[str, Path]
) -> None:
    publish(server, checkpoints["old"], 2)
    published = publish(server, checkpoints["new"], 3, transport=replace(OVER_TCP, connect=Corrupting))
    assert "checksum differs from the sender's" in published.failed[server.endpoint.pod]
    assert served(server) == 2
    assert difference(checkpoints["old"], generate(server)) < 1e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t[:-1], "1 tensors are missing"),
        (lambda t: [*t[:-1], (t[-1][0], t[-1][1].to(torch.float64))], "is float64, this model takes float32"),
        (lambda t: [*t[:-1], (t[-1][0], t[-1][1][1:])], "has shape"),
        (lambda t: [*t, ("model.extra", torch.zeros(1))], "model.extra is not a tensor of this model"),
    ],
)
def test_an_update_that_does_not_fit_the_model_is_refused(
    server: Server, checkpoints: dict[str, Path], change: Callable, message: str
) -> None:
    publish(server, checkpoints["old"], 3)
    wrong = change(models.tensors(checkpoints["new"]))
    published = Publisher(1, TOKEN, over_tcp("127.0.0.1")).publish(4, iter(wrong), [server.endpoint], lambda: None)
    assert published.ok == [] and message in published.failed[server.endpoint.pod]
    assert served(server) == 3
    assert difference(checkpoints["old"], generate(server)) < 1e-4


def test_a_probe_compares_what_is_served_with_what_was_trained(server: Server, checkpoints: dict[str, Path]) -> None:
    log_probs = tuple(tuple(models.log_probs(checkpoints["new"], p[:1], p[1:]).tolist()) for p in PROMPTS)
    probe = Probe(tuple(PROMPTS), log_probs, "float32")
    published = publish(server, checkpoints["new"], 3, probe=probe)
    assert published.ok and published.difference and published.difference[1] < 1e-4
    with pytest.raises(MismatchError, match="0.01 is the limit for float32"):
        publish(server, checkpoints["old"], 3, probe=probe)


def test_a_wrong_digest_is_refused(server: Server, checkpoints: dict[str, Path]) -> None:
    publish(server, checkpoints["old"], 5)
    publisher = Publisher(1, TOKEN, OVER_TCP)
    with publisher.update([server.endpoint]) as update:
        opened = update.open([publisher.sender.offer])
        phase = GatherPhase(iter(models.tensors(checkpoints["new"])), sends=True)
        sent = publisher.sender.send([phase], opened, 0, lambda: None)
        wrong = Sent("0" * 64, sent.bytes, [part._replace(digest="0" * 64) for part in sent.parts], {})
        published = update.commit(PolicyVersion(1, 6, wrong.digest), [wrong], None)
    assert "the update's digest is" in published.failed[server.endpoint.pod]
    assert served(server) == 5


def test_a_trainer_that_dies_mid_publish_leaves_a_usable_server(server: Server, checkpoints: dict[str, Path]) -> None:
    publish(server, checkpoints["old"], 7)
    program = f"""
import os
from dataclasses import replace
from pathlib import Path
from trainer.server import models
from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.rank.weights.publisher import Publisher
from rljob_trainer.wire.weights.transport import over_tcp
def some():
    yield from models.tensors(Path("{checkpoints["new"]}"))[:5]
    os._exit(9)
server = RolloutEndpoint.model_validate_json('''{server.endpoint.dump_json()}''')
Publisher(1, "{TOKEN}", replace(over_tcp("127.0.0.1"), bucket_bytes=1)).publish(8, some(), [server], lambda: None)
"""
    died = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, timeout=400
    )
    assert died.returncode == 9
    assert publish(server, checkpoints["new"], 8).ok == [server.endpoint.pod]
    assert difference(checkpoints["new"], generate(server)) < 1e-4


def test_prompts_that_were_cached_under_the_old_weights_are_computed_anew(
    server: Server, checkpoints: dict[str, Path]
) -> None:
    for step, name in enumerate(("old", "new", "old"), start=9):
        publish(server, checkpoints[name], step)
        assert difference(checkpoints[name], generate(server)) < 1e-4
        assert difference(checkpoints[name], generate(server)) < 1e-4, "with a warm prefix cache"


def test_an_update_in_many_buckets_equals_one_in_a_single_bucket(server: Server, checkpoints: dict[str, Path]) -> None:
    whole = publish(server, checkpoints["new"], 12).version
    in_many = replace(OVER_TCP, bucket_bytes=50_000)
    assert publish(server, checkpoints["new"], 12, transport=in_many).version == whole
    assert difference(checkpoints["new"], generate(server)) < 1e-4


def test_a_connection_serves_many_updates_and_a_server_in_the_place_of_another_gets_a_new_one(
    server: Server, start: Callable[..., Server], checkpoints: dict[str, Path]
) -> None:
    publisher, other = Publisher(1, TOKEN, over_tcp("127.0.0.1")), start(checkpoints["old"])
    for step, (name, target) in enumerate((("old", server), ("new", server), ("old", other), ("new", other)), start=20):
        endpoint = target.endpoint.model_copy(update={"pod_uid": "the same"})
        assert publisher.publish(step, iter(models.tensors(checkpoints[name])), [endpoint], lambda: None).ok
        assert difference(checkpoints[name], generate(target)) < 1e-4


def test_greedy_generation_is_scored_under_the_policy_and_ends_at_the_limit(
    server: Server, checkpoints: dict[str, Path]
) -> None:
    publish(server, checkpoints["old"], 13)
    for group in generate(server, n=1, temperature=0.0):
        assert group[0].finish_reason == "length" or group[0].tokens[-1] == models.END
        assert len(group[0].tokens) == len(group[0].log_probs) <= 24


def test_a_lower_attempt_is_refused(server: Server, checkpoints: dict[str, Path]) -> None:
    publish(server, checkpoints["old"], 0, attempt=5)
    with pytest.raises(AttemptSuperseded, match="attempt 4 is over: attempt 5 holds"):
        publish(server, checkpoints["new"], 1, attempt=4)
    with pytest.raises(AttemptSuperseded):
        generate(server, attempt=4)
    with pytest.raises(ReplicaLost, match="503"):
        generate(server, attempt=6)
    with pytest.raises(AttemptSuperseded):
        publish(server, checkpoints["new"], 1, attempt=5)
    assert publish(server, checkpoints["new"], 0, attempt=6).ok
    assert difference(checkpoints["new"], generate(server, attempt=6)) < 1e-4


def test_tied_embeddings_follow_an_update(start: Callable[..., Server], checkpoints: dict[str, Path]) -> None:
    tied = start(checkpoints["tied"])
    for step, name in enumerate(("tied", "tied-new")):
        publish(tied, checkpoints[name], step)
        assert difference(checkpoints[name], generate(tied)) < 1e-4
    with_head = [*models.tensors(checkpoints["tied"])]
    with_head.append(("lm_head.weight", dict(with_head)["model.embed_tokens.weight"]))
    published = Publisher(1, TOKEN, over_tcp("127.0.0.1")).publish(2, iter(with_head), [tied.endpoint], lambda: None)
    assert published.ok
    assert difference(checkpoints["tied"], generate(tied)) < 1e-4


@pytest.mark.parametrize(
    "same", [pytest.param(True, id="as the embedding", marks=pytest.mark.extra), pytest.param(False, id="another")]
)
def test_an_output_layer_that_is_tied_and_in_the_files_follows_the_embedding(
    start: Callable[..., Server], checkpoints: dict[str, Path], tmp_path: Path, same: bool
) -> None:
    shutil.copytree(checkpoints["tied"], tmp_path, dirs_exist_ok=True)
    own = dict(models.tensors(tmp_path))
    embedding = own["model.embed_tokens.weight"]
    own["lm_head.weight"] = embedding.clone() if same else embedding.flip(0).contiguous()
    save_file(own, tmp_path / "model.safetensors", {"format": "pt"})
    server = start(tmp_path)
    publish(server, checkpoints["tied-new"], 1)
    assert difference(checkpoints["tied-new"], generate(server)) < 1e-4


@pytest.fixture(scope="module")
def two(start: Callable[..., Server], checkpoints: dict[str, Path]) -> Server:
    """With tensor parallelism."""
    return start(checkpoints["old"], tensor_parallel=2)


def test_every_worker_of_a_tensor_parallel_server_gets_its_part(two: Server, checkpoints: dict[str, Path]) -> None:
    for step, name in enumerate(("new", "old")):
        assert publish(two, checkpoints[name], step).ok
        assert difference(checkpoints[name], generate(two)) < 1e-4


def test_a_killed_server_takes_its_engine_and_workers_along(two: Server) -> None:
    """Nobody else might: whoever would sweep them up may have been killed with it. The last test of this server."""
    family = psutil.Process(two.pid).children(recursive=True)
    assert len(family) >= 3, "an engine and two workers"
    os.kill(two.pid, signal.SIGKILL)
    assert psutil.wait_procs(family, timeout=120)[1] == []
