"""Log-probabilities of the trainer are those of vLLM's engine, bit by bit, and every kernel is needed for that."""

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from rljob_api.spec import RLJobSpec
from rljob_trainer.pod.arguments import CPU_ENVIRONMENT, CPU_ONE_PROCESS
from rljob_trainer.wire.rollout_server import EXACT_ON_CPU
from rljob_trainer.wire.trajectory import Trajectory
from trainer.megatron import served_log_probs
from trainer.megatron.kinds import KINDS, SHAPE, config_class
from trainer.megatron.models import job, random_model
from trainer.ranks import run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("megatron")]

SIZES = {"hidden_size": 128, "head_dim": 32, "num_hidden_layers": 2, "vocab_size": 160, "max_position_embeddings": 512}
FIELDS: dict[str, Any] = {"prompt_index": 0, "group": 0, "sample": 0, "finish_reason": "length", "reward": 0.0}
OTHERS: dict[str, Callable[..., Any]] = {
    "linear": lambda x, weight, bias: F.linear(
        x.double(), weight.double(), None if bias is None else bias.double()
    ).float(),
    "rms_norm": lambda x, weight, eps, _of_sum: F.rms_norm(x, x.shape[-1:], weight, eps) * (1 + 2**-20),
    "silu_and_mul": lambda x: torch.sigmoid(x.chunk(2, -1)[0]) * x.chunk(2, -1)[0] * x.chunk(2, -1)[1],
    "attend": lambda q, k, v, starts, scale: _attended(q, k, v, starts, scale),
    "log_probs": lambda logits, tokens, temperature: (
        -F.cross_entropy(logits.double() / temperature, tokens, reduction="none").float()
    ),
}
"""The same operations, rounded otherwise."""


def _attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: tuple[int, ...], scale: float) -> torch.Tensor:
    pieces = [slice(a, b) for a, b in pairwise(starts)]
    each = [[x[rows].transpose(0, 1)[None] for x in (q, k, v)] for rows in pieces]
    out = [F.scaled_dot_product_attention(*qkv, is_causal=True, scale=scale, enable_gqa=True)[0] for qkv in each]
    return torch.cat([x.transpose(0, 1) for x in out])


class Served:
    """A model, and what vLLM drew from it."""

    def __init__(self, directory: Path, kind: str, dtype: str) -> None:
        self.path, self.dtype = directory / "model", dtype
        name, more = KINDS[kind]
        config = config_class(name)(**SHAPE | more | SIZES, tie_word_embeddings=kind == "qwen2")
        random_model(config, seed=1).to(getattr(torch, dtype)).save_pretrained(self.path)
        command = [sys.executable, served_log_probs.__file__, self.path, dtype, directory / "samples.pt"]
        ours = CPU_ENVIRONMENT | CPU_ONE_PROCESS | {EXACT_ON_CPU: "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
        subprocess.run(command, env=os.environ | ours, check=True, timeout=600)
        self.samples = torch.load(directory / "samples.pt")

    def differences(self, **kernels: Callable[..., Any]) -> dict[float, float]:
        """[temperature] -> largest |log-probability of the trainer - of vLLM|. `kernels`: in place of the trainer's."""
        return run_ranks(1, lambda: self._differences(kernels))[0]

    def _differences(self, kernels: dict[str, Callable[..., Any]]) -> dict[float, float]:
        from rljob_trainer.megatron.engine import Engine
        from rljob_trainer.megatron.exact import functions

        cpu = functions.kernels(torch.device("cpu"))
        functions.kernels = lambda _: SimpleNamespace(**vars(cpu) | kernels)  # type: ignore[assignment, return-value]
        network = Engine(exact(self.path, self.dtype), lambda: None)._policy
        return {t: self._difference(network, t) for t in served_log_probs.TEMPERATURES}

    def _difference(self, network: Any, temperature: float) -> float:
        from rljob_trainer.megatron.packing import micro_batch

        drawn = [sample for t, *sample in self.samples if t == temperature]
        samples = [Trajectory.of_response(*sample, 0, data_source="", **FIELDS) for sample in drawn]
        micro = micro_batch(samples, range(len(samples)), network.parallel)
        ours = torch.cat(micro.row.collect(network.log_probs([micro], temperature)[0]))
        theirs = torch.cat([torch.tensor(values) for *_, values in drawn])
        return (ours - theirs).abs().max().item()


def exact(model: Path, dtype: str) -> RLJobSpec:
    raw = job(model, dtype=dtype).model_dump(by_alias=True, exclude_defaults=True)
    return RLJobSpec.model_validate(raw | {"rollout": raw["rollout"] | {"exact": True}})


@pytest.mark.parametrize(
    ("kind", "dtype"), [pytest.param("llama", "float32", marks=pytest.mark.extra), ("qwen3", "bfloat16")]
)
def test_log_probabilities_are_those_of_the_engine_to_the_last_bit(kind: str, dtype: str, tmp_path: Path) -> None:
    assert Served(tmp_path, kind, dtype).differences() == {1.0: 0.0, 0.7: 0.0}


def test_no_kernel_can_be_exchanged_for_another_of_the_same_formula(tmp_path: Path) -> None:
    served = Served(tmp_path, "qwen2", "float32")
    assert served.differences() == {1.0: 0.0, 0.7: 0.0}
    for name, other in OTHERS.items():
        assert 0 < max(served.differences(**{name: other}).values()) < 1e-4, name


@pytest.mark.extra
def test_vllm_s_kernels_on_gpus_find_the_mode_that_servers_have() -> None:
    """They read the variable once in a process. The module itself needs a GPU."""
    code = (
        "import contextlib, torch\n"
        "from rljob_trainer.megatron.exact import functions\n"
        "with contextlib.suppress(ImportError):\n    functions.kernels(torch.device('cuda'))\n"
        "from vllm import envs; print(envs.VLLM_BATCH_INVARIANT)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == ["True"]


def test_gradients_are_those_of_plain_layers(tmp_path: Path) -> None:
    config = config_class("Qwen3Config")(**SHAPE | KINDS["qwen3"][1] | SIZES)
    random_model(config, seed=1).save_pretrained(tmp_path)
    plain, kernels = (
        run_ranks(1, lambda spec=spec: _trained(spec))[0] for spec in (job(tmp_path), exact(tmp_path, "float32"))
    )
    for name, value in plain.items():
        assert kernels[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def _trained(spec: RLJobSpec) -> dict[str, float]:
    """Loss and norm of the gradient of a step."""
    from rljob_trainer.megatron.engine import Engine
    from trainer.megatron.models import make_batch, train_step

    metrics = train_step(Engine(spec, lambda: None), make_batch(Path(spec.model.path)))
    return {name: metrics[f"train/{name}"] for name in ("loss", "grad_norm", "entropy")}
