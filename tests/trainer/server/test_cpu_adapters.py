"""Products with adapters on CPUs, against vLLM's own, and what tokens of the base model get."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from vllm.lora.ops.torch_ops import lora_ops

from rljob_api.rules.lora import CONFIG, WEIGHTS
from rljob_trainer.pod.arguments import server_environment
from rljob_trainer.server.compat import cpu_adapters
from trainer.server import mixed_adapters, models, test_families
from trainer.server.servers import spec
from trainer.server.test_adapters import MATRICES, SCALE, make_adapters, merged

ADAPTERS, RANK, WIDTH, OUT = 3, 4, 24, 40
INDICES = {
    "one adapter": [2] * 7,
    "several": [0, 2, 2, 1, 0, 2, 1],
    "one token": [1],
}


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("indices", INDICES.values(), ids=INDICES)
@pytest.mark.parametrize("shape", [(ADAPTERS, 1), (ADAPTERS,)], ids=["4 dimensions", "3 dimensions"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_get_what_their_adapters_make_of_them_as_from_vllm(
    indices: list[int], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    assert lora_ops.bgmv_shrink is not cpu_adapters.shrink, "vLLM's own"
    of, inputs = torch.tensor(indices), normal(len(indices), WIDTH).to(dtype)
    a, b = normal(*shape, RANK, WIDTH).to(dtype), normal(*shape, OUT, RANK).to(dtype)
    found, expected = torch.zeros(len(of), RANK + 1), torch.zeros(len(of), RANK + 1)
    cpu_adapters.shrink(inputs, a, found, of, 0.5)
    lora_ops.bgmv_shrink(inputs, a, expected, of, 0.5)
    torch.testing.assert_close(found, expected)
    for added in (True, False):
        for columns in (OUT, OUT - 3, OUT + 3):
            outputs = [normal(len(of), columns).to(dtype) for _ in range(2)]
            cpu_adapters.expand(expected[:, :RANK], b, outputs[0], of, added)
            lora_ops.bgmv_expand(expected[:, :RANK], b, outputs[1], of, added)
            torch.testing.assert_close(*outputs)
        outputs = [normal(len(of), 2 * OUT).to(dtype) for _ in range(2)]
        cpu_adapters.expand_slice(expected[:, :RANK], b, outputs[0], of, 5, OUT, added)
        lora_ops.bgmv_expand_slice(expected[:, :RANK], b, outputs[1], of, 5, OUT, added)
        torch.testing.assert_close(*outputs)


def test_tokens_of_the_base_model_stay_as_they_are_among_others() -> None:
    of, inputs = torch.tensor([-1, 2, -1, 0]), normal(4, WIDTH)
    a, b = normal(ADAPTERS, 1, RANK, WIDTH), normal(ADAPTERS, 1, OUT, RANK)
    shrunk, output = torch.ones(4, RANK), normal(4, OUT)
    before = output.clone()
    cpu_adapters.shrink(inputs, a, shrunk, of)
    cpu_adapters.expand(shrunk, b, output, of)
    for token, adapter in enumerate(of.tolist()):
        added = inputs[token] @ a[adapter, 0].T @ b[adapter, 0].T if adapter >= 0 else torch.zeros(OUT)
        torch.testing.assert_close(output[token], before[token] + added)


def write_adapters(base: Path, directory: Path, whole: Path) -> None:
    """As the peft library has them, and the model with them merged."""
    made = make_adapters(base, 1)
    directory.mkdir()
    tensors = {f"base_model.model.{name}.lora_A.weight": a for name, (a, _) in made.items()}
    tensors |= {f"base_model.model.{name}.lora_B.weight": b for name, (_, b) in made.items()}
    save_file(tensors, directory / WEIGHTS)
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK * SCALE, "target_modules": list(MATRICES)}
    (directory / CONFIG).write_text(json.dumps(settings | {"bias": "none"}))
    merged(base, made, whole)


@pytest.mark.slow
def test_a_server_all_of_whose_places_are_taken_samples_from_the_base_model_in_the_same_batch(tmp_path: Path) -> None:
    base, adapters, whole = test_families.make(tmp_path / "base", "qwen3", 1), tmp_path / "adapters", tmp_path / "whole"
    write_adapters(base, adapters, whole)
    paths = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, mixed_adapters.__file__, base, adapters]
    environment = server_environment(spec(base), 1, os.environ) | paths
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=400)
    found = json.loads(done.stdout.splitlines()[-1])
    for model, prompt, (tokens, said) in zip((base, whole), mixed_adapters.PROMPTS, found, strict=True):
        expected = models.log_probs(model, prompt, tuple(tokens))
        torch.testing.assert_close(torch.tensor(said), expected, atol=1e-4, rtol=0)
