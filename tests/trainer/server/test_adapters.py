"""Adapters alone on a real server: it says what the model says into which they are merged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from extra import extra_but
from rljob_api.families import FAMILIES
from rljob_api.rules.lora import modules_of
from rljob_api.spec import RLJobSpec
from rljob_trainer.rank.weights.publisher import Published, Publisher
from rljob_trainer.wire.parity import MismatchError, Probe
from rljob_trainer.wire.weights.transport import over_tcp
from trainer.server import models, test_families
from trainer.server.servers import TOKEN, Server, spec
from trainer.server.test_publish import PROMPTS, difference, generate

RANK, SCALE = 4, 2.0
MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FAMILIES_WITH_ADAPTERS = [name for name, family in FAMILIES.items() if family.adapters and "cpu" in family.servers]
PARTLY = (
    ("q_proj", "k_proj"),
    ("v_proj",),
    ("gate_proj",),
    ("q_proj", "v_proj", "o_proj", "up_proj"),
    ("k_proj", "up_proj", "down_proj"),
    ("down_proj",),
    ("q_proj",),
)
Adapters = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""A and B by the name of their module."""


def make_adapters(base: Path, seed: int, matrices: tuple[str, ...] = MATRICES) -> Adapters:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(base)
    modules = {name: m.weight.shape for name, m in model.named_modules() if name.endswith(matrices)}
    return {
        name: (torch.randn(RANK, width) * width**-0.5, torch.randn(out, RANK) * 0.2)
        for name, (out, width) in modules.items()
    }


def merged(base: Path, adapters: Adapters, target: Path) -> Path:
    """W + SCALE B A, as a model of transformers."""
    model = AutoModelForCausalLM.from_pretrained(base)
    for name, (a, b) in adapters.items():
        matrix = model.get_submodule(name).weight
        matrix.data = (matrix.double() + SCALE * b.double() @ a.double()).float()
    model.save_pretrained(target)
    models.save_tokenizer(target)
    return target


def publish(server: Server, adapters: Adapters, step: int, probe: Probe | None = None) -> Published:
    parts = [
        (f"{name}.lora_{side}.weight", tensor)
        for name, (a, b) in adapters.items()
        for side, tensor in (("A", a), ("B", SCALE * b))
    ]
    publisher = Publisher(1, TOKEN, over_tcp("127.0.0.1"))
    return publisher.publish(step, iter(parts), [server.endpoint], lambda: None, probe)


def with_adapters(model: Path, tensor_parallel: int, **settings: Any) -> RLJobSpec:
    given = spec(model, tensorParallel=tensor_parallel)
    lora = {"rank": RANK, "alpha": int(RANK * SCALE), "sync": "adapters"} | settings
    return RLJobSpec.model_validate(given.dump() | {"model": {"path": str(model), "dtype": "float32", "lora": lora}})


def probe_of(model: Path) -> Probe:
    """What the whole model says of PROMPTS."""
    said = tuple(tuple(models.log_probs(model, p[:1], p[1:]).tolist()) for p in PROMPTS)
    return Probe(tuple(PROMPTS), said, "float32")


@pytest.mark.slow
@pytest.mark.parametrize("tensor_parallel", [1, pytest.param(2, marks=pytest.mark.extra)])
def test_a_server_computes_adapters_as_the_merged_model_and_the_last_ones_only(
    start: Callable[..., Server], checkpoints: dict[str, Path], tmp_path: Path, tensor_parallel: int
) -> None:
    base = checkpoints["old"]
    server = start(base, tensor_parallel=tensor_parallel, job=with_adapters(base, tensor_parallel))
    for step in (1, 2):
        adapters = make_adapters(base, step)
        whole = merged(base, adapters, tmp_path / str(step))
        published = publish(server, adapters, step, probe_of(whole))
        assert published.ok and published.difference and published.difference[1] < 1e-4, "vLLM's own routes"
        answers = generate(server)
        assert difference(whole, answers) < 1e-4
        assert difference(base, answers) > 0.1, "adapters must matter for this test to say anything"
    with pytest.raises(MismatchError):
        publish(server, make_adapters(base, 1), 3, probe_of(whole))
    halves = {name: (a, b[:-1]) for name, (a, b) in make_adapters(base, 1).items()}
    refused = publish(server, halves, 4).failed
    assert "which is not an adapter of rank 8 or less to a matrix of [128, 128]" in refused[server.endpoint.pod]


@pytest.mark.slow
@pytest.mark.parametrize("kind", extra_but(("old",), ("old", "tied")))
def test_a_server_computes_adapters_of_some_parts_of_its_matrices(
    start: Callable[..., Server], checkpoints: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    """vLLM has queries, keys and values in one matrix, and gate and up: a part that an update lacks is the base's, whatever it had before."""
    base = checkpoints[kind]
    server = start(base, job=with_adapters(base, 1))
    for step, matrices in enumerate(PARTLY, 1):
        adapters = make_adapters(base, step, matrices)
        whole = merged(base, adapters, tmp_path / str(step))
        published = publish(server, adapters, step, probe_of(whole))
        assert published.ok and published.difference and published.difference[1] < 1e-4, matrices
        answers = generate(server)
        assert difference(whole, answers) < 1e-4
        assert difference(base, answers) > 0.1, "adapters must matter for this test to say anything"


@pytest.mark.slow
@pytest.mark.parametrize("kind", extra_but(("phi3", "qwen3_moe"), FAMILIES_WITH_ADAPTERS))
def test_a_server_computes_the_adapters_of_each_family(start: Callable[..., Server], tmp_path: Path, kind: str) -> None:
    base = test_families.make(tmp_path / "base", kind, 1)
    server = start(base, job=with_adapters(base, 1))
    adapters = make_adapters(base, 1, tuple(modules_of(FAMILIES[kind].adapters, {"model_type": kind})))
    whole = merged(base, adapters, tmp_path / "whole")
    published = publish(server, adapters, 1, probe_of(whole))
    assert published.ok and published.difference and published.difference[1] < 1e-4
    answers = generate(server)
    server.kill()
    assert difference(whole, answers) < 1e-4
    assert difference(base, answers) > 0.1, "adapters must matter for this test to say anything"
