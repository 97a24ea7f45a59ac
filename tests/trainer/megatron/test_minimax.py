"""MiniMax-M2 as it is published: only `rotary_dim` says how much of a head is rotated, which transformers 5.17 does not read."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_trainer.wire.batch import Batch
from trainer.megatron.models import job, make_batch, make_model
from trainer.ranks import run_ranks

pytestmark = pytest.mark.slow


def test_a_published_configuration_rotates_the_numbers_that_it_says(megatron: None, tmp_path: Path) -> None:
    source = make_model(tmp_path / "model", "minimax_m2", tied=False)
    batch = make_batch(source)
    file = source / "config.json"
    config = json.loads(file.read_text())
    rope = config.pop("rope_parameters")
    assert config["rotary_dim"] == rope["partial_rotary_factor"] * config["head_dim"] == 16
    file.write_text(json.dumps(config | {"rope_theta": rope["rope_theta"]}))
    (found,) = run_ranks(1, partial(_difference, job(source, tokensPerMicroBatch=4096), batch))
    assert found < 1e-5


def _difference(spec: Any, batch: Batch) -> float:
    from rljob_trainer.megatron.engine import Engine

    asked = zip(Engine(spec, lambda: None).log_probs(batch.samples), batch.samples, strict=True)
    return max(float((found - torch.from_numpy(s.response_log_probs.copy())).abs().max()) for found, s in asked)
