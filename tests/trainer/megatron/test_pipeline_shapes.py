"""Stages of a pipeline know the shapes of their messages, and compute what they compute when they ask each other."""

from pathlib import Path

import pytest
import torch

from trainer.megatron import parity
from trainer.megatron.models import make_batch

CASES = [case for case in parity.CASES if case.name in ("PP2", "PP2 VPP2")]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_known_shapes_change_no_number_and_no_stage_asks_for_one(
    model: Path, monkeypatch: pytest.MonkeyPatch, case: parity.Case
) -> None:
    from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator

    from rljob_trainer.megatron.compat import pipeline_shapes

    def train() -> parity.Result:
        return parity.run(case, {"qwen2": model}, {"qwen2": batches})

    batches = [make_batch(model, step) for step in (1, 2)]
    with monkeypatch.context() as upstream:
        upstream.setattr(pipeline_shapes, "arguments", lambda *_: {})
        asked = train()
    monkeypatch.setattr(P2PCommunicator, "_communicate_shapes", None)
    known = train()
    assert known.losses == asked.losses
    assert all(torch.equal(known.weights[name], weight) for name, weight in asked.weights.items())


@pytest.mark.parametrize(("stages", "chunks"), [(2, 1), (4, 1), (2, 2), (2, 3), (4, 2)])
def test_a_stage_expects_what_its_neighbour_sends(megatron: None, stages: int, chunks: int) -> None:
    from rljob_trainer.megatron.compat.pipeline_shapes import messages

    lengths = [7, 3, 9, 1, 5, 4, 8, 2]
    ends = [messages(lengths, chunks, stages, stage == 0, stage == stages - 1) for stage in range(stages)]
    for stage, (_, with_next) in enumerate(ends):
        with_prev, _ = ends[(stage + 1) % stages]
        assert with_next == with_prev
        assert len(with_next) == len(lengths) * (chunks if stage < stages - 1 else chunks - 1)


def test_a_stage_sends_nothing_that_its_neighbour_does_not_expect(megatron: None) -> None:
    from rljob_trainer.megatron.compat.pipeline_shapes import require

    require(torch.zeros(3, 1, 8), iter([[3, 1, 8]]))
    with pytest.raises(
        RuntimeError, match=r"a stage sends \[4, 1, 8\] where the plan of micro-batches has \[3, 1, 8\]"
    ):
        require(torch.zeros(4, 1, 8), iter([[3, 1, 8]]))
