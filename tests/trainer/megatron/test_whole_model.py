"""A service that trains all parameters of one model, against plain torch."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_trainer.wire.service import LoadState, OptimStep, RefusedWork
from trainer.megatron.clients import Oracle, Tensors, call, distance, service
from trainer.megatron.gang import equal
from trainer.megatron.test_service_engine import WORK, create, do, on_ranks, step

pytestmark = pytest.mark.slow

WHOLE = partial(create, rank=0)


def exported(engine: Any) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in engine._model.export()}


@pytest.mark.parametrize("layout", [{}, {"data": 2}, {"tensor": 2}, {"pipeline": 2}])
def test_the_numbers_of_a_model_all_of_whose_parameters_are_trained_are_those_of_plain_torch(
    model: Path, layout: dict[str, int]
) -> None:
    def follow(engine: Any) -> tuple[list[Any], Tensors]:
        WHOLE(engine)
        return [do(engine, work) for work in WORK], exported(engine)

    found, end = on_ranks(service(model, max_rank=0, **layout), follow)
    oracle = Oracle(model, {}, 0)
    for work, (metrics, log_probs) in zip(WORK, found, strict=True):
        if isinstance(work, OptimStep):
            assert metrics == {"grad_norm:mean": pytest.approx(oracle.step(work), rel=1e-5)}
        else:
            expected, loss = oracle.run(work)
            scale = max(1.0, sum(float(e.abs().sum()) for e in expected))
            assert metrics == {"loss:sum": pytest.approx(loss, abs=1e-5 * scale)}
            assert distance(log_probs, expected) < 1e-5, work
    trained = dict(oracle.base.named_parameters())
    assert distance([end[name] for name in trained], [tensor.detach() for tensor in trained.values()]) < 2e-5


def test_each_model_begins_with_the_base_model_and_continues_from_what_was_saved(model: Path, tmp_path: Path) -> None:
    works = [call(1, "cross_entropy"), step(1e-2), call(2, "ppo"), step(1e-2), call(3, "cross_entropy")]

    def lives(engine: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in "ab":
            WHOLE(engine, name)
            found[name] = [do(engine, replace(work, model=name)) for work in works]
            if name == "a":
                writing = engine.save("a", tmp_path / "saved")
                writing.wait()
                torch.distributed.barrier()
                writing.finish()
            engine.keep(())
        WHOLE(engine, "c")
        engine.load(LoadState(model="c", seq=0, path=str(tmp_path / "saved"), optimizer=True))
        found["c"] = do(engine, replace(works[-1], model="c"))
        for wrong in (lambda: WHOLE(engine, "d"), lambda: do(engine, works[0])):
            with pytest.raises(RefusedWork, match="of one model at a time|there is no model a"):
                wrong()
        engine.keep(())
        with pytest.raises(RefusedWork, match="rank 4: there are no adapters"):
            create(engine, "d", rank=4)
        return found

    found = on_ranks(service(model, max_rank=0, data=2), lives)
    assert equal(found["a"], found["b"])
    assert equal(found["c"], found["a"][-1])
    assert not torch.equal(found["a"][0][1][0], found["a"][-1][1][0])
