"""Documents packed without padding, none of which sees another."""

import json
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.specs import make_spec
from rljob_trainer.data.examples import ExampleSet
from rljob_trainer.data.files import Place
from rljob_trainer.data.loading import load_examples
from rljob_trainer.data.packed_documents import Documents, PackedDocuments
from rljob_trainer.failure import ConfigurationError
from trainer.data.templates import QWEN, tokenizer

TOK = tokenizer(QWEN, "</s>")


def packed(documents: list[list[int]], length: int) -> ExampleSet:
    ends = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    file = Documents(Place("spec.data.train[0]", "a"), np.array(list(chain(*documents)), np.int32), ends)
    return PackedDocuments([file], make_spec(task="pretrain", data={"maxTokens": length}).data, "train")


@settings(max_examples=200)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=12), length=st.integers(1, 9))
def test_every_token_but_a_documents_first_is_predicted_once_from_its_own_document(lengths, length):
    """Tokens are (document, place), so that a piece shows where it comes from."""
    documents = [[100 * d + i for i in range(n)] for d, n in enumerate(lengths)]
    learnt = []
    for example in packed(documents, length):
        pieces = [np.concatenate([s.tokens for s in variant]).tolist() for variant in example.variants]
        assert sum(len(piece) - 1 for piece in pieces) <= length
        for variant, piece in zip(example.variants, pieces, strict=True):
            assert piece == list(range(piece[0], piece[0] + len(piece))) and len({t // 100 for t in piece}) == 1
            assert [s.source for s in variant] == ["prompt", "demonstration"] and len(variant[0].tokens) == 1
            learnt += variant[1].tokens.tolist()
    assert learnt == [t for document in documents for t in document[1:]]


def test_a_sequence_of_one_long_document_is_full():
    first, second = packed([list(range(17))], 8)[:2]
    assert [len(s.tokens) for s in first.variants[0]] == [1, 8] and second.variants[0][0].tokens == [8]


def load(tmp_path: Path, rows: list[dict], **data) -> ExampleSet:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = make_spec(
        task="pretrain", data={"train": [str(tmp_path / "a.jsonl")], "maxTokens": 8, "shuffle": False, **data}
    )
    return load_examples(spec, "train", TOK, tmp_path / "scratch", None)


def test_texts_end_with_the_end_of_sequence_and_empty_ones_are_no_documents(tmp_path, caplog):
    (only,) = load(tmp_path, [{"text": "xy"}, {"text": " "}, {"text": None}, {"text": "yx"}], maxTokens=100)
    assert [TOK.decode(np.concatenate([s.tokens for s in v])) for v in only.variants] == ["xy</s>", "yx</s>"]
    assert "2 of 4 rows hold no text" in caplog.text


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([{"text": "x"}, {"text": 4}], "a.jsonl row 2: column 'text' holds 4"),
        ([{"body": "x"}], "a.jsonl row 1: has no column 'text'; its columns are body"),
        ([{"text": ""}], "a.jsonl: holds no token"),
        ([{"text": "x"}, {"text": "a\ud83d"}], "a.jsonl row 2: column 'text' holds half of a character"),
    ],
)
def test_rows_without_a_text_are_refused(tmp_path, rows, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        load(tmp_path, rows)


def test_the_digest_is_of_tokens_and_of_the_length_of_a_sequence(tmp_path):
    rows = [{"text": "xy" * i} for i in range(1, 20)]
    digest = load(tmp_path, rows).digest
    assert digest == load(tmp_path, rows).digest != load(tmp_path, rows, maxTokens=9).digest
    assert digest != load(tmp_path, rows[1:]).digest
