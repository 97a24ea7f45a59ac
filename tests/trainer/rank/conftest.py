"""What the jobs of several files are made of."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rljob_trainer.driver.buffer.assembly import batch_metrics
from rljob_trainer.driver.buffer.batch_files import record
from rljob_trainer.rank import main as rank
from trainer.megatron.models import make_batch, make_model
from trainer.rank.job import STEPS
from trainer.rank.tokenizer import write_tokenizer


@pytest.fixture(scope="session")
def material(tmp_path_factory) -> Path:
    """A model with a tokenizer, a parquet file, and recorded batches."""
    rank.prepare()
    root = tmp_path_factory.mktemp("material")
    model = write_tokenizer(make_model(root / "model"), words=10)
    pq.write_table(
        pa.table({"prompt": ["1 2", "3 4", "5 6"], "answer": ["1"] * 3, "data_source": ["s"] * 3}),
        root / "train.parquet",
    )
    for step in range(1, STEPS + 1):
        batch = make_batch(model, step)
        record(root, replace(batch, metrics=batch_metrics(batch.samples, batch.samples)), 1.0)
    return root
