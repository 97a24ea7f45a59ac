"""Batches of supervised tasks from files with rows that cannot be learnt from."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from api.specs import make_spec
from rljob_trainer.data.examples import ExampleSet
from rljob_trainer.data.loading import PROBES
from rljob_trainer.data.order import Cursor
from rljob_trainer.driver.buffer.examples import ExampleBuffer, Examples
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.wire.batch import Batch
from trainer.data.test_loading import load

ROWS, PER_STEP, STEPS = 400, 40, 10
GOOD: dict[str, Any] = {"prompt": "аб", "response": "xy"}
EMPTY: dict[str, Any] = {"prompt": "аб", "response": ""}
LATE = 201
"""From 0. Not among the rows that are looked at before training begins."""


def with_late(row: dict[str, Any]) -> list[dict[str, Any]]:
    assert LATE not in {i * (ROWS - 1) // (PROBES - 1) for i in range(PROBES)}
    return [row if i == LATE else GOOD for i in range(ROWS)]


async def batches(data: ExampleSet) -> tuple[list[Batch], Cursor]:
    """All of the job, and where it stands in its data then; raises what ends it earlier."""
    spec = make_spec(task="sft", train={"steps": STEPS, "samplesPerStep": PER_STEP})
    found: list[Batch] = []
    cursor, changed = Cursor(), asyncio.Event()
    buffer = ExampleBuffer(spec, Examples(data, None), changed.set, 0, cursor)
    while not buffer.is_idle:
        changed.clear()
        if ready := buffer.take():
            found.append(ready.batch)
            cursor = ready.cursor
        else:
            await asyncio.wait_for(changed.wait(), 120)
    return found, cursor


def test_rows_that_are_left_out_make_their_step_smaller_and_an_epoch_passes_every_other_row_once(
    tmp_path: Path,
) -> None:
    rows = [EMPTY if i % 5 == 0 else GOOD for i in range(ROWS)]
    found, cursor = asyncio.run(batches(load(tmp_path, rows)))
    learnt = [s.prompt_index for batch in found for s in batch.samples]
    assert sorted(learnt) == [i for i in range(ROWS) if i % 5]
    assert (cursor.consumed, len(found)) == (ROWS, STEPS)
    assert [batch.metrics["data/samples"] for batch in found] == [len(batch.samples) for batch in found]
    assert min(batch.metrics["data/samples"] for batch in found) < PER_STEP
    assert found[-1].metrics["data/empty"] == ROWS / 5


def test_a_row_that_is_left_out_late_is_counted_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found, _ = asyncio.run(batches(load(tmp_path, with_late(EMPTY))))
    assert found[-1].metrics["data/empty"] == 1
    assert sum(batch.metrics["data/samples"] for batch in found) == ROWS - 1
    assert f"a.jsonl row {LATE + 1} is left out: its prompt or its answer is empty" in caplog.text


@pytest.mark.parametrize(
    ("late", "complaint"),
    [
        ({"prompt": "аб"}, "has no column 'response'"),
        ({"prompt": 7, "response": "xy"}, "7"),
        ({"prompt": [{"role": "judge", "content": "x"}], "response": "xy"}, "judge"),
    ],
)
def test_a_row_of_another_shape_ends_the_job_with_file_and_row_however_late_it_comes(
    tmp_path: Path, late: dict[str, Any], complaint: str
) -> None:
    examples = load(tmp_path, with_late(late))
    with pytest.raises(ConfigurationError, match=f"a.jsonl row {LATE + 1}: .*{complaint}"):
        asyncio.run(batches(examples))
    assert load(tmp_path, with_late(GOOD)).digest == examples.digest, (
        "once it is corrected, a checkpoint's order still holds"
    )
