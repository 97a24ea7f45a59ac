"""Kimi K2 as it is published: with keys of an old transformers, and remote code that its tokenizer needs."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_trainer.wire.batch import Batch
from trainer.kimi_k2 import as_published
from trainer.megatron.gang import changed
from trainer.megatron.models import job, make_batch, make_model
from trainer.ranks import run_ranks

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("trusted", [True, False])
def test_a_published_directory_is_trained_as_deepseek_v3_without_its_remote_code(
    megatron: None, tmp_path: Path, trusted: bool
) -> None:
    source = make_model(tmp_path / "model", "kimi_k2", tied=False)
    batch = make_batch(source)
    spec = changed(job(as_published(source), tokensPerMicroBatch=4096), model={"trustRemoteCode": trusted})
    (found,) = run_ranks(1, partial(_difference, spec, batch))
    assert found < 1e-5


def _difference(spec: Any, batch: Batch) -> float:
    from rljob_trainer.megatron.engine import Engine

    asked = zip(Engine(spec, lambda: None).log_probs(batch.samples), batch.samples, strict=True)
    return max(float((found - torch.from_numpy(s.response_log_probs.copy())).abs().max()) for found, s in asked)
