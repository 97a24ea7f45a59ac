"""The directory of an export. Its tensors: test_families."""

import json
from pathlib import Path

import pytest
import torch

from trainer.megatron.models import job, ranks_of
from trainer.ranks import run_ranks

pytestmark = pytest.mark.slow


def test_a_directory_is_written_in_shards_that_transformers_reads(model: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    spec, target = job(model, tensor=2), tmp_path / "exported"

    def on_a_rank() -> None:
        from rljob_trainer.megatron.engine import Engine
        from rljob_trainer.megatron.huggingface import write_hugging_face

        write_hugging_face(Engine(spec, lambda: None), model, target, shard_bytes=200_000)

    run_ranks(ranks_of(spec), on_a_rank)
    files = sorted(f.name for f in target.iterdir())
    assert len([f for f in files if f.endswith(".safetensors")]) > 2
    assert [f for f in files if not f.endswith(".safetensors")] == [
        "config.json",
        "generation_config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
    ]
    assert len({file.stat().st_mode for file in target.iterdir()}) == 1, "who may read one file may read them all"
    tokens = torch.tensor([[1, 2, 3, 4]])
    ours, theirs = (AutoModelForCausalLM.from_pretrained(path)(tokens).logits for path in (target, model))
    assert torch.equal(ours, theirs)


def test_an_export_says_its_own_dtype(model: Path, tmp_path: Path) -> None:
    spec, target = job(model, dtype="bfloat16"), tmp_path / "exported"

    def on_a_rank() -> None:
        from rljob_trainer.megatron.engine import Engine
        from rljob_trainer.megatron.huggingface import write_hugging_face

        write_hugging_face(Engine(spec, lambda: None), model, target)

    run_ranks(1, on_a_rank)
    assert json.loads((target / "config.json").read_text())["dtype"] == "bfloat16"
    assert (target / "model.safetensors").is_file()
