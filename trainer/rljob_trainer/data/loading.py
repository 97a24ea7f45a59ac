"""The one entrance to the data of supervised tasks."""

from pathlib import Path
from typing import cast

from rljob_api.spec import RLJobSpec
from rljob_trainer.data.examples import ExampleSet
from rljob_trainer.data.files import places
from rljob_trainer.data.packed_documents import PackedDocuments, load_documents
from rljob_trainer.data.row_examples import RowExamples, RowFile
from rljob_trainer.data.tables import open_table
from rljob_trainer.data.tokenizer import OffsetTokenizer, Tokenizer
from rljob_trainer.data.workers import Workers


def load_examples(
    spec: RLJobSpec, split: str, tokenizer: Tokenizer, scratch: Path, workers: Workers | None
) -> ExampleSet:
    """The examples of spec.data.`split` (train or validation), for any task but rl.

    Args:
        tokenizer: that of spec.model.
        scratch: a directory, which may be missing, for what files without random access are converted to. It has to live as long as the set.
        workers: tokenise; None: this process does.

    Raises:
        ConfigurationError: a file cannot be read, the format of its rows cannot be recognised, or no row that was looked at teaches anything.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    files = places(f"spec.data.{split}", getattr(spec.data, split))
    offsets = cast(OffsetTokenizer, tokenizer)
    if spec.task == "pretrain":
        return PackedDocuments([load_documents(p, spec, offsets, scratch, workers) for p in files], spec, split)
    rows = [RowFile.of(file, open_table(file, scratch), spec) for file in files]
    return RowExamples(spec, split, rows, offsets, workers)
