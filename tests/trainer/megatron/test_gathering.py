"""An optimizer's state, gathered for a checkpoint of any layout, against megatron's own way of gathering it."""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from rljob_trainer.wire.batch import Batch
from trainer.megatron.gang import equal, run_engines
from trainer.megatron.models import job, make_batch, make_model, train_step

pytestmark = pytest.mark.slow


class Found(NamedTuple):
    """Of one optimizer, after a step."""

    equal: bool
    """What is gathered is megatron's own, bit for bit."""
    ours: bool
    """Every parameter is where megatron looks for it."""
    theirs: bool
    zero: bool
    """The gradient buffers are, afterwards."""


FINE = Found(True, True, True, True)


def compare(engine: Any, batch: Batch) -> list[Found]:
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    from rljob_trainer.megatron.compat.optimizer_gathering import gathered

    train_step(engine, batch)
    megatron, found = DistributedOptimizer.get_parameter_state_dp_zero.__wrapped__, []
    for optimizer in engine._policy.optimizer.chained_optimizers:
        theirs = megatron(optimizer, use_gloo_comm=False, return_on_all_ranks=True)
        ours = gathered(optimizer)
        zero = not any(buffer.grad_data.any() for buffer in optimizer.buffers)
        found.append(Found(equal(ours, theirs), in_place(optimizer, ours), in_place(optimizer, theirs), zero))
    return found


def in_place(optimizer: Any, state: dict[Any, Any]) -> bool:
    """In float32 a parameter is its own master copy, and distrib_optimizer.py:1755 cuts it out by its place in the buffer."""
    places = [(i, p, place) for i, b in enumerate(optimizer.buffers) for p, place in b.param_index_map.items()]
    tensors = {i: next(iter(state[i].values()))["param"] for i in range(len(optimizer.buffers))}
    return all(torch.equal(tensors[i][start:end], p.detach().view(-1)) for i, p, (start, end, _) in places)


def test_what_is_gathered_is_what_megatron_gathers(model: Path, tmp_path: Path) -> None:
    experts = make_model(tmp_path, "qwen3_moe")
    layout = {"nodes": 2, "parallelism": {"expert": 2}}
    batch, of_experts = make_batch(model), make_batch(experts)
    one = {"one rank": (job(model), partial(compare, batch=batch))}
    two = {
        "two ranks": (job(model, data=2), partial(compare, batch=batch)),
        "experts on two ranks": (job(experts, trainer=layout), partial(compare, batch=of_experts)),
    }
    found = run_engines(1, one) | run_engines(2, two)
    assert found == {
        "one rank": [FINE],
        "two ranks": [FINE],
        "experts on two ranks": [FINE] * 2,
    }


def test_parameters_behind_a_padded_bucket_keep_their_own_numbers(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A norm of 64 numbers has a bucket of its own, of 128. megatron's own tensor leaves the padding out, and everything after is moved."""
    from rljob_trainer.megatron import model as model_module

    small = partial(model_module.DistributedDataParallelConfig, bucket_size=64)
    monkeypatch.setattr(model_module, "DistributedDataParallelConfig", small)
    spec = job(model, trainer={"nodes": 2, "overlap": {"gradReduce": True}})
    found = run_engines(2, {"padded": (spec, partial(compare, batch=make_batch(model)))})
    assert found == {"padded": [Found(equal=False, ours=True, theirs=False, zero=True)]}


def test_a_copy_in_pieces_is_whole(megatron: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from rljob_trainer.megatron.compat import optimizer_gathering as gathering

    monkeypatch.setattr(gathering, "PIECE", 7)
    numbers = torch.arange(1000.0)
    host = torch.zeros_like(numbers)
    gathering.copy_in_pieces(numbers, host)
    assert torch.equal(host, numbers)
