"""Data sets in Megatron's own format."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from api.specs import make_spec
from rljob_trainer.data.loading import load_examples
from rljob_trainer.failure import ConfigurationError
from trainer.data.test_packed_documents import TOK, packed


@pytest.mark.slow
def test_megatrons_indexed_data_sets_are_read_as_megatron_reads_them(megatron: None, tmp_path: Path) -> None:
    from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder

    prefix = str(tmp_path / "corpus")
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=DType.optimal_dtype(500))
    rng = np.random.default_rng(0)
    for _ in range(30):  # documents, some of several sequences
        for length in rng.integers(1, 9, rng.integers(1, 3)):
            builder.add_item(torch.from_numpy(rng.integers(0, 500, length)))
        builder.end_document()
    builder.finalize(prefix + ".idx")
    theirs = IndexedDataset(prefix)
    bounds = theirs.document_indices
    documents = [np.concatenate(theirs[a:b]).tolist() for a, b in pairwise(bounds)]

    spec = make_spec(task="pretrain", data={"train": [prefix], "maxTokens": 16})
    ours = load_examples(spec, "train", TOK, tmp_path / "scratch", None)
    assert list(ours) == [replace(e, data_source=prefix) for e in packed(documents, 16)]
    assert asyncio.run(ours.drawn([0]))[0].variants

    (tmp_path / "corpus.idx").write_bytes(b"no index")
    with pytest.raises(ConfigurationError, match="Megatron cannot read it: .*bad header"):
        load_examples(spec, "train", TOK, tmp_path / "scratch", None)
    with pytest.raises(ConfigurationError, match="there is no .*none.idx"):
        load_examples(
            make_spec(task="pretrain", data={"train": [str(tmp_path / "none")], "format": "indexed"}),
            "train",
            TOK,
            tmp_path / "s",
            None,
        )
