"""From files to what a step trains on, as the driver calls it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from api.specs import make_spec
from rljob_trainer.data.encoding import EncodingWorkers, default_count
from rljob_trainer.data.examples import Example, ExampleSet
from rljob_trainer.data.loading import load_examples
from rljob_trainer.data.tokenizer import load_tokenizer
from rljob_trainer.failure import ConfigurationError
from trainer.data.templates import QWEN, QWEN3, tokenizer
from trainer.pod.gang import alive, wait_for

TOK = tokenizer(QWEN, "<|im_end|>")
USER = {"role": "user", "content": "аб"}


def answer(text: str) -> dict:
    return {"role": "assistant", "content": text}


def load(tmp_path: Path, rows: list | dict, task="sft", tok=TOK, workers=None, train=(), **data) -> ExampleSet:
    """`rows`: of one file, or of several by their names."""
    files = rows if isinstance(rows, dict) else {"a.jsonl": rows}
    for name, lines in files.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in lines))
    data = {"maxTokens": 64, "train": [str(tmp_path / name) for name in files], **data}
    spec = make_spec(task=task, data=data, model={"path": str(tmp_path / "model"), "dtype": "float32"})
    return load_examples(spec, "train", tok, tmp_path / "scratch", workers)


def parts(example: Example) -> list[list[tuple[str, str]]]:
    return [[(s.source, TOK.decode(s.tokens)) for s in variant] for variant in example.variants]


def drawn(examples: ExampleSet, count: int, start: int = 0) -> list[Example]:
    return asyncio.run(examples.drawn(range(start, start + count)))


SYSTEM = "<|im_start|>system\nYou are helpful.<|im_end|>\n"
ASKED, BEGIN = "<|im_start|>user\nаб<|im_end|>\n", "<|im_start|>assistant\n"


def test_a_conversation_is_a_prompt_what_is_learnt_and_what_others_say_in_between(tmp_path):
    (example,) = load(tmp_path, [{"messages": [USER, answer("xy"), USER, answer("yx")]}])
    assert parts(example) == [
        [
            ("prompt", SYSTEM + ASKED + BEGIN),
            ("demonstration", "xy<|im_end|>"),
            ("environment", "\n" + ASKED + BEGIN),
            ("demonstration", "yx<|im_end|>"),
        ]
    ]


def test_the_loss_may_be_on_every_token_but_the_first(tmp_path):
    (example,) = load(tmp_path, [{"messages": [USER, answer("xy")]}], lossOn="all")
    (prompt, rest) = example.variants[0]
    assert len(prompt.tokens) == 1 and rest.source == "demonstration"
    assert TOK.decode([*prompt.tokens, *rest.tokens]) == SYSTEM + ASKED + BEGIN + "xy<|im_end|>\n"


def test_texts_are_learnt_with_the_end_of_sequence(tmp_path):
    (example,) = load(tmp_path, [{"prompt": "аб", "response": "xy"}])
    assert parts(example) == [[("prompt", "аб"), ("demonstration", "xy<|im_end|>")]]


def test_a_pair_is_its_chosen_and_its_rejected_answer(tmp_path):
    (example,) = load(tmp_path, [{"prompt": [USER], "chosen": "xy", "rejected": "yx"}], task="dpo")
    assert parts(example) == [
        [("prompt", SYSTEM + ASKED + BEGIN), ("demonstration", "xy<|im_end|>")],
        [("prompt", SYSTEM + ASKED + BEGIN), ("demonstration", "yx<|im_end|>")],
    ]


LONG = [USER, answer("xy" * 40), USER, answer("yx" * 40)]


def limit(tmp_path: Path, messages: list) -> int:
    return sum(len(s.tokens) for s in load(tmp_path, [{"messages": messages}], maxTokens=10_000)[0].variants[0])


@pytest.mark.parametrize("loss_on", ["assistant", "lastAssistant"])
def test_a_long_conversation_is_left_out_or_cut_behind_the_last_turn_that_fits_and_counted(tmp_path, loss_on):
    rows = [{"messages": LONG}, {"messages": [USER, answer("x")]}]
    fits = limit(tmp_path, LONG[:2])
    out = load(tmp_path, rows, maxTokens=limit(tmp_path, LONG) - 1, lossOn=loss_on)
    assert [e.left_out for e in drawn(out, 2) if e.index == 0] == ["too_long"]
    cut = load(tmp_path, rows, maxTokens=fits, overlong="cut", lossOn=loss_on)
    (example,) = [e for e in drawn(cut, 2) if e.index == 0]
    assert parts(example) == parts(load(tmp_path, [{"messages": LONG[:2]}], maxTokens=fits)[0])
    assert (out.counts.too_long, out.counts.cut, cut.counts.too_long, cut.counts.cut) == (1, 0, 0, 1)
    short = load(tmp_path, rows, maxTokens=fits - 1, overlong="cut", lossOn=loss_on)
    assert [e.left_out for e in drawn(short, 2) if e.index == 0] == ["too_long"]


def test_rows_from_which_nothing_can_be_learnt_are_counted_and_the_first_of_a_kind_is_named(tmp_path, caplog):
    rows = [{"messages": [USER]}] * 3 + [{"messages": [USER, answer("")]}, {"messages": [USER, answer("x")]}]
    examples = load(tmp_path, rows)
    found = drawn(examples, 10)
    assert Counter(e.left_out for e in found) == {"no_assistant": 6, "empty": 2, None: 2}
    assert all(not e.variants for e in found if e.left_out)
    assert examples.counts.metrics() | {"rows": examples.counts.rows} == {
        "rows": 10,
        "data/no_assistant": 6,
        "data/masked": 0,
        "data/empty": 2,
        "data/too_long": 0,
        "data/cut": 0,
        "data/equal_pair": 0,
    }
    messages = [r.getMessage() for r in caplog.records]
    assert len(messages) == 2 and messages[0].endswith(
        "a.jsonl row 1 is left out: the assistant has no turn to learn from"
    )


def test_data_of_which_nothing_can_be_learnt_are_refused_at_once(tmp_path):
    with pytest.raises(ConfigurationError, match="nothing can be learnt from any of the 2 rows.*equal_pair"):
        load(tmp_path, [{"prompt": "а", "chosen": "x", "rejected": "x"}] * 2, task="dpo")


def test_answers_that_the_template_writes_in_the_same_way_are_equal(tmp_path):
    pair = {"messages": [USER], "chosen": answer("x") | {"id": "1"}, "rejected": answer("x") | {"id": "2"}}
    two = {"messages": [USER], "chosen": answer("x"), "rejected": answer("y")}
    assert [example.left_out for example in load(tmp_path, [pair, two], task="dpo")] == ["equal_pair", None]


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([{"messages": [USER, answer("x")]}] * 9 + [{"messages": "x"}], r"a.jsonl row 10: column 'messages' holds 'x'"),
        ([{"messages": [USER, answer("x")]}, [1]], r"a.jsonl row 2: cannot be read: '\[1\]' stands where"),
        ([{"question": "x"}], r"a.jsonl row 1: its columns are question"),
    ],
)
def test_a_row_of_another_shape_is_refused_before_training_where_it_is_looked_at(tmp_path, rows, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        load(tmp_path, rows)


def test_a_model_that_is_not_there_is_said_to_be_missing_and_one_without_a_tokenizer_to_have_none(tmp_path):
    spec = make_spec(model={"path": str(tmp_path / "model")})
    with pytest.raises(ConfigurationError, match="spec.model.path = .*/model: there is no such directory; correct"):
        load_tokenizer(spec)
    (tmp_path / "model").mkdir()
    with pytest.raises(ConfigurationError, match="no tokenizer can be loaded from it"):
        load_tokenizer(spec)


def test_what_a_template_refuses_and_cannot_tell_is_refused_with_file_and_row(tmp_path):
    thought = answer("<think>\nx\n</think>\n\ny")
    with pytest.raises(ConfigurationError, match="a.jsonl row 1: its chat template has no {% generation %} marks"):
        load(tmp_path, [{"messages": [USER, thought, USER, answer("x")]}], tok=tokenizer(QWEN3, "<|im_end|>"))
    with pytest.raises(
        ConfigurationError, match="a.jsonl row 1: the model's tokenizer or chat template refuses.*turns"
    ):
        load(tmp_path, [{"messages": [USER, answer("x")]}], tok=tokenizer("{{ raise_exception('turns') }}"))
    with pytest.raises(ConfigurationError, match="spec.model.path.*has no chat template"):
        load(tmp_path, [{"messages": [USER, answer("x")]}], tok=tokenizer(""))


def test_the_digest_is_of_the_rows_and_of_their_number(tmp_path):
    rows = [{"prompt": "а", "response": "xy"[i % 2] * (i + 1)} for i in range(20)]
    digest = load(tmp_path, rows).digest
    assert digest == load(tmp_path, rows).digest
    assert digest != load(tmp_path, [*rows, rows[0]]).digest != load(tmp_path, rows[1:]).digest
    assert digest != load(tmp_path, [{"prompt": "б", "response": "x"}, *rows[1:]]).digest


def test_files_of_several_formats_are_mixed_by_their_weights(tmp_path):
    files = {"a.jsonl": [{"prompt": "а", "response": "x"}] * 5, "b.jsonl": [{"messages": [USER, answer("y")]}] * 15}
    by_size, by_weight = (
        Counter(e.data_source[-7:] for e in drawn(load(tmp_path, files, **w), 20)) for w in ({}, {"weights": [3, 1]})
    )
    assert by_size == {"a.jsonl": 5, "b.jsonl": 15} and by_weight == {"a.jsonl": 15, "b.jsonl": 5}


def test_parquet_rows_are_read_by_number_and_the_validation_split_in_its_order(tmp_path):
    column = pa.array([[USER, answer("x" * (i + 1))] for i in range(9)])
    pq.write_table(pa.table({"messages": column}), tmp_path / "a.parquet")
    spec = make_spec(
        task="sft",
        data={"train": [str(tmp_path / "none")], "validation": [str(tmp_path / "a.parquet")], "maxTokens": 64},
    )
    examples = load_examples(spec, "validation", TOK, tmp_path / "scratch", None)
    assert [e.index for e in drawn(examples, 9)] == list(range(9)) and [e.index for e in examples[2:4]] == [2, 3]


def texts(tmp_path: Path, count: int = 40):
    TOK.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen2"}')
    return [{"messages": [USER, answer("xy"[i % 2] * (i + 1))]} for i in range(count)]


@pytest.mark.parametrize(("available", "count"), [(1, 1), (4, 1), (8, 4), (16, 12), (192, 16)])
def test_as_many_workers_tokenise_as_the_ranks_of_the_pod_leave_cpus(available, count):
    trainer = {"device": "cpu", "processesPerNode": 4}
    assert default_count(make_spec(task="sft", trainer=trainer), available) == count


@pytest.mark.slow
@pytest.mark.parametrize("forked", [False, True])
def test_workers_make_the_same_examples_in_the_same_order_and_name_rows_they_refuse(tmp_path, forked):
    rows = texts(tmp_path)
    spec = make_spec(task="sft", model={"path": str(tmp_path / "model"), "dtype": "float32"}, data={"maxTokens": 64})
    tok, workers = cast(Any, load_tokenizer(spec)), EncodingWorkers(spec, 2, forked)
    assert len(workers._pool._processes or ()) == (2 if forked else 0), "forked before there is any thread"
    here, there = load(tmp_path, rows, tok=tok), load(tmp_path, rows, tok=tok, workers=workers)
    try:
        assert drawn(there, 60) == drawn(here, 60)
        assert there.counts == here.counts and there.counts.too_long
        broken = load(tmp_path, [*rows * 10, {"messages": "x"}, *rows * 10], tok=tok, workers=workers, shuffle=False)
        with pytest.raises(ConfigurationError, match="a.jsonl row 401: column"):
            drawn(broken, 1, start=400)
        documents = [{"text": "xy" * i} for i in range(1, 99)]
        pretrain = {"task": "pretrain", "tok": tok, "format": "text", "maxTokens": 16}
        packed = list(load(tmp_path, documents, **pretrain))
        assert list(load(tmp_path, documents, workers=workers, **pretrain)) == packed
    finally:
        there.close()


DRIVER = """
import asyncio, sys, time
sys.path[:0] = {path!r}
from trainer.data.test_loading import *
workers = EncodingWorkers(make_spec(task="sft", model={{"path": {model!r}, "dtype": "float32"}}), 1)
if __name__ == "__main__":
    print(next(workers.tokenise(["xy"])), flush=True)
    print(*workers._pool._processes, flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("forked", [False, True])
def test_workers_end_with_a_driver_that_is_killed(tmp_path, forked):
    texts(tmp_path)
    program = DRIVER.format(path=sys.path, model=str(tmp_path / "model"), forked=forked)
    (tmp_path / "driver.py").write_text(program)
    driver = subprocess.Popen([sys.executable, str(tmp_path / "driver.py")], stdout=subprocess.PIPE, text=True)
    assert driver.stdout and driver.stdout.readline()
    pids = [int(pid) for pid in driver.stdout.readline().split()]
    assert pids
    driver.kill()
    driver.wait()
    try:
        wait_for("the end of the workers, whose driver has ended", lambda: not any(alive(pid) for pid in pids))
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("task", "rows"), [("sft", [{"messages": [USER, answer("xy")]}]), ("pretrain", [{"text": "xy"}])]
)
def test_a_token_that_the_model_has_no_row_for_is_refused_before_a_model_is_loaded(tmp_path, task, rows):
    """An added token, without new rows for it: an index out of range, and on a GPU a device assert."""
    (tmp_path / "model").mkdir()
    largest = max(TOK.encode("xy<|im_end|>", add_special_tokens=False))
    for size in (largest + 1, largest):
        (tmp_path / "model" / "config.json").write_text(json.dumps({"text_config": {"vocab_size": size}}))
        if size > largest and task == "pretrain":
            assert len(load(tmp_path, rows, task=task))
    with pytest.raises(
        ConfigurationError, match=f"id {largest}, and the model in .* has vocab_size = {largest}"
    ) as caught:
        load(tmp_path, rows, task=task)
    assert "largest id is" in caught.value.fix and caught.value.value.startswith(str(tmp_path / "a.jsonl"))
