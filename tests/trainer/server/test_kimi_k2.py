"""Kimi K2 as it is published, on a real server: its remote code is the tokenizer's, and no more of it is run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rljob_api.spec import RLJobSpec
from rljob_trainer.data.tokenizer import tokenizer_of
from trainer.kimi_k2 import as_published
from trainer.server.servers import Server, spec
from trainer.server.test_families import difference, make, publish_and_generate

pytestmark = pytest.mark.slow


def test_a_published_directory_is_served_as_transformers_says(start: Callable[..., Server], tmp_path: Path) -> None:
    old, new = (as_published(make(tmp_path / str(seed), "kimi_k2", seed)) for seed in (1, 2))
    trusting = {"model": {"path": str(old), "dtype": "float32", "trustRemoteCode": True}}
    server = start(old, job=RLJobSpec.model_validate(spec(old).dump() | trusting))
    answers = publish_and_generate(server, new)
    server.kill()
    assert difference(new, answers) < 1e-4
    assert difference(old, answers) > 0.1, "the two models must differ for this test to say anything"
    assert type(tokenizer_of("spec.model.path", str(old), trust_remote_code=True)).__name__ == "TikTokenTokenizer"
