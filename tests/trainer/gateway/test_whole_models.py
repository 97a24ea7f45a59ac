"""A service that trains all parameters of one model, as the official SDK asks it: real ranks, which update a real vLLM server, and the gateway."""

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
from tinker import types

from rljob_trainer.wire.rollout_server import POLICY
from trainer.gateway.running import SECONDS, RunningService, running
from trainer.gateway.test_clients import STEP, datum, learnt, log_probs
from trainer.megatron.kinds import make_config
from trainer.megatron.models import random_model
from trainer.server.models import VOCABULARY, make, save_tokenizer

pytestmark = pytest.mark.extra

PROMPT = types.ModelInput.from_ints([10 + i for i in range(20)])


def make_experts(path: Path) -> Path:
    """A model with four experts in each layer, of which two compute a token, far from a uniform distribution."""
    model = random_model(make_config("qwen3_moe", VOCABULARY), seed=3)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.15)
    model.save_pretrained(path)
    save_tokenizer(path)
    return path


SERVICES: dict[str, tuple[dict[str, Any], Callable[[Path], Path]]] = {
    "one rank": ({"nodes": 1}, partial(make, seed=3)),
    "DP2": ({"nodes": 2}, partial(make, seed=3)),
    "experts on two ranks": ({"nodes": 2, "parallelism": {"expert": 2}}, make_experts),
}
"""Sections of trainers, and what they train."""


@pytest.fixture(scope="module", params=SERVICES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    root = tmp_path_factory.mktemp("service")
    os.environ["TINKER_TELEMETRY"] = "0"
    offered = {"checkpointSeconds": 1, "maxModels": 1, "maxRank": 0}
    trainer, made = SERVICES[request.param]
    with running(root, made(root / "model"), service=offered, trainer=trainer) as found:
        yield found


@pytest.fixture
def service(run: RunningService) -> Iterator[tinker.ServiceClient]:
    with tinker.ServiceClient(base_url=run.url, api_key="tml-any") as client:
        yield client


def model_of(service: tinker.ServiceClient, run: RunningService) -> Any:
    return service.create_lora_training_client(base_model=run.model, rank=0).result(timeout=SECONDS)


def measured(training: Any) -> np.ndarray:
    return log_probs(training.forward([datum(10)], "cross_entropy").result(timeout=SECONDS))[:18]


def served(sampler: Any) -> np.ndarray:
    return np.array(sampler.compute_logprobs(PROMPT).result(timeout=SECONDS)[1:19])


def snapshot_of(run: RunningService) -> Path:
    """The directory of the newest one."""
    return max(run.output.parent.glob("run/service/snapshots/*/*"), key=lambda directory: directory.stat().st_mtime)


def confuse(snapshot: Path) -> None:
    """As if the ranks had computed other log-probabilities."""
    saved = json.loads((snapshot / POLICY).read_text())
    saved["log_probs"] = [[value - 1.0 for value in values] for values in saved["log_probs"]]
    (snapshot / POLICY).write_text(json.dumps(saved))


def halve(snapshot: Path) -> None:
    file = snapshot / POLICY
    os.truncate(file, file.stat().st_size // 2)


def weights(snapshot: Path) -> Path:
    """Its last file of tensors: one with experts has several."""
    return max(snapshot.glob("*.safetensors"))


def cut(snapshot: Path) -> None:
    """As a copy that was not finished."""
    file = weights(snapshot)
    os.truncate(file, file.stat().st_size - 4)


def lose(snapshot: Path) -> None:
    """A file that the index names."""
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lost": "lost.safetensors"}}))


def damage(snapshot: Path) -> None:
    """Change the last bit of a number, too little for the probe."""
    with weights(snapshot).open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        (low,) = file.read(1)
        file.seek(-4, os.SEEK_END)
        file.write(bytes([low ^ 1]))


def test_all_parameters_learn_and_each_snapshot_is_served_whenever_somebody_samples_from_it(
    run: RunningService, service: tinker.ServiceClient
) -> None:
    training, base = model_of(service, run), service.create_sampling_client(base_model=run.model)
    assert training.get_info().is_lora is False
    found, samplers = [measured(training)], [base]
    for name in ("one", "two"):
        for _ in range(3):
            training.forward_backward([datum(10)], "cross_entropy")
            training.optim_step(STEP).result(timeout=SECONDS)
        path = training.save_weights_for_sampler(name).result(timeout=SECONDS).path
        found.append(measured(training))
        samplers.append(service.create_sampling_client(model_path=path))
    assert min(np.abs(found[i] - found[j]).max() for i, j in ((0, 1), (0, 2), (1, 2))) > 0.1
    for i in (2, 0, 1, 2):
        assert served(samplers[i]) == pytest.approx(found[i], abs=2e-5), i
    params = types.SamplingParams(max_tokens=6, temperature=1.0, seed=5, stop=[])
    asked = [samplers[i % 3].sample(PROMPT, 2, params) for i in range(12)]
    drawn = [[s.tokens for s in future.result(timeout=SECONDS).sequences] for future in asked]
    assert drawn[:3] * 4 == drawn, "each sampler has its own policy, in whatever order they ask"
    snapshot, last = snapshot_of(run), service.create_sampling_client(model_path=path)
    probed = (snapshot / POLICY).read_text()
    for change, why in (
        (confuse, "log-probabilities of the trainer and the rollouts differ"),
        (halve, "is damaged: .*Save it again"),
        (damage, "is damaged: its tensors are not what was saved. Save it again"),
        (cut, "is damaged: .*it was cut, or is still being copied.*Save it again"),
        (lose, "is damaged: .*Save it again"),
    ):
        served(samplers[1])
        change(snapshot)
        with pytest.raises(tinker.RequestFailedError, match=why):
            last.compute_logprobs(PROMPT).result(timeout=SECONDS)
        (snapshot / POLICY).write_text(probed)
    run.kill("vllm")
    assert served(samplers[1]) == pytest.approx(found[1], abs=2e-5), "a server that was started again gets it, too"


def test_one_client_trains_one_model_at_a_time_and_another_one_continues_from_its_state(
    run: RunningService, service: tinker.ServiceClient
) -> None:
    with tinker.ServiceClient(base_url=run.url, api_key="tml-any") as other:
        training = model_of(other, run)
        with pytest.raises(tinker.RequestFailedError, match="trains 1 models at a time"):
            model_of(service, run)
        training.forward_backward([datum(10)], "cross_entropy")
        training.optim_step(STEP).result(timeout=SECONDS)
        unnamed = [training.save_weights_and_get_sampling_client().result(timeout=SECONDS) for _ in range(3)]
        assert served(unnamed[2]) == pytest.approx(measured(training), abs=2e-5)
        with pytest.raises(tinker.RequestFailedError, match="only the last 2 of a model are"):
            unnamed[0].compute_logprobs(PROMPT).result(timeout=SECONDS)
        path, before = training.save_state("half").result(timeout=SECONDS).path, measured(training)
    again = service.create_training_client_from_state_with_optimizer(path)
    assert measured(again).tolist() == before.tolist()


def test_a_run_whose_gateway_driver_and_ranks_are_killed_ends_with_the_same_bits(run: RunningService) -> None:
    kills = {1: "gateway", 2: "-m rljob_trainer.driver.", 3: "-m rljob_trainer.rank.main"}
    found = []
    for killed in ({}, kills):
        with tinker.ServiceClient(base_url=run.url, api_key="tml-any") as client:
            found.append(learnt(model_of(client, run), run, killed))
    assert found[0] == found[1]
