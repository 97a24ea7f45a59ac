"""Why clients of a service train no adapters of the output layer: what vLLM does with them, without us."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from rljob_api.rules.lora import CONFIG, WEIGHTS
from rljob_trainer.pod.arguments import server_environment
from trainer.server import models, output_adapters, test_families
from trainer.server.servers import spec

RANK = 4


def make_adapters(base: Path, directory: Path, whole: Path) -> None:
    """Adapters of the output layer, as the peft library has them, and the model with them merged."""
    model = AutoModelForCausalLM.from_pretrained(base)
    out, width = model.lm_head.weight.shape
    a, b = torch.randn(RANK, width) * width**-0.5, torch.randn(out, RANK) * 0.2
    directory.mkdir()
    names = {"lora_A": a, "lora_B": b}
    save_file({f"base_model.model.lm_head.{side}.weight": t for side, t in names.items()}, directory / WEIGHTS)
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["lm_head"], "bias": "none"}
    (directory / CONFIG).write_text(json.dumps(settings))
    model.lm_head.weight.data += b @ a
    model.save_pretrained(whole)


@pytest.mark.slow
def test_vllm_samples_with_adapters_of_the_output_layer_and_cannot_score_prompts_with_them(tmp_path: Path) -> None:
    """It finds the adapters of a row of logits by the requests of a step, and a prompt that is scored has a row for each token. Once this fails,
    clients can have these adapters."""
    torch.manual_seed(1)
    base, adapters, whole = test_families.make(tmp_path / "base", "qwen3", 1), tmp_path / "adapters", tmp_path / "whole"
    make_adapters(base, adapters, whole)
    environment = server_environment(spec(base), 1, os.environ) | {
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)
    }
    done = subprocess.run(
        [sys.executable, output_adapters.__file__, base, adapters],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=400,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    for prompt, (tokens, said) in zip(output_adapters.PROMPTS, found["sampled"], strict=True):
        torch.testing.assert_close(
            torch.tensor(said), models.log_probs(whole, prompt, tuple(tokens)), atol=1e-4, rtol=0
        )
    assert "does not broadcast" in found["scoring"]
