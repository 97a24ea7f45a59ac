"""megatron is imported once, when the first test asks for it; ranks are forked from there."""

from pathlib import Path

import pytest
import torch

from trainer.megatron.models import make_model


@pytest.fixture(scope="session")
def megatron() -> None:
    from rljob_trainer.megatron import compat

    torch.set_num_threads(1)
    compat.install()
    import rljob_trainer.megatron.engine
    import rljob_trainer.megatron.huggingface  # noqa: F401


@pytest.fixture(scope="session")
def model(megatron: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))
