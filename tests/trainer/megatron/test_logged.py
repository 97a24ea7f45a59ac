"""The log-probabilities that are shown next to those of the rollouts: the policy's before the step, of some rows, whichever rank has them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from extra import extra_but
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.trajectory import Trajectory, environment
from trainer.megatron.gang import run_engines
from trainer.megatron.models import changed_samples, job, make_batch, make_model

pytestmark = pytest.mark.slow

MOST = 5
LAYOUTS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "TP2": {"tensor": 2},
    "PP2": {"pipeline": 2},
    "CP2": {"context": 2},
    "DP2": {},
}


def with_a_tool(sample: Trajectory) -> Trajectory:
    """Two turns, with an answer of a tool between them."""
    first, wrote = sample.segments
    return replace(sample, segments=(first, wrote, environment([7, 8, 9]), wrote))


def logged(engine: Any, batch: Batch, rows: Sequence[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """What is logged of a step, and the log-probabilities of all response tokens before it."""
    before = engine.log_probs(batch.samples)
    step = engine.measure(batch.part(engine.parts(batch.columns)[engine.data_rank]))
    engine.update(step, engine.objective.advantages(step))
    return step.logged(rows, MOST), before


@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize("layout", extra_but(("one rank", "CP2", "DP2"), LAYOUTS))
def test_the_first_learnt_tokens_of_rows_on_any_rank_are_those_of_the_policy_before_the_update(
    megatron: None, tmp_path: Path, layout: str, updates: int
) -> None:
    model, sizes, rows = make_model(tmp_path / "m"), LAYOUTS[layout], [0, 1, 6, 11, 14]
    batch = changed_samples(make_batch(model), with_a_tool)
    ranks = 1 if layout == "one rank" else 2
    layouts = {"nodes": ranks, "parallelism": sizes}
    spec = job(model, trainer=layouts, miniBatches=updates, tokensPerMicroBatch=128, batches={"replay": "/recorded"})
    found, before = run_engines(ranks, {layout: (spec, lambda engine: logged(engine, batch, rows))})[layout]
    masks = [torch.from_numpy(batch.samples[row].response_mask) for row in rows]
    expected = torch.cat([before[row][mask][:MOST] for row, mask in zip(rows, masks, strict=True)])
    assert len(found) == len(expected) > 3 * len(rows)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_tokens_that_are_left_out_of_the_loss_have_none(megatron: None, tmp_path: Path) -> None:
    model = make_model(tmp_path / "m")
    cut = lambda s: replace(s, finish_reason="length") if s.group == 1 else s  # noqa: E731
    batch = changed_samples(make_batch(model), cut)
    spec = job(model, algorithm={"overlong": {"filter": True}}, tokensPerMicroBatch=128)
    found, _ = run_engines(1, {"one": (spec, lambda engine: logged(engine, batch, [0, 4]))})["one"]
    kept = min(MOST, batch.samples[0].learnt_length)
    assert found[:kept].isfinite().all() and found[kept:].isnan().all() and len(found) > kept
