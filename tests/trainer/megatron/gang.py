"""Several engines, one after the other, each in a gang of ranks."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from rljob_api.spec import RLJobSpec
from trainer.ranks import run_ranks


def changed(spec: RLJobSpec, **sections: Any) -> RLJobSpec:
    """With sections of the spec merged in (dicts) or replaced, by their names in YAML."""
    raw = spec.model_dump(by_alias=True)
    for key, value in sections.items():
        raw[key] = {**(raw[key] or {}), **value} if isinstance(value, dict) else value
    return RLJobSpec.model_validate(raw)


def run_engines[T](
    world: int,
    cases: dict[str, tuple[RLJobSpec, Callable[[Any], T]]],
    objective: Callable[[RLJobSpec], Any] | None = None,
) -> dict[str, T]:
    """What each case's function makes of an engine of its spec; all ranks must make the same of it. `objective` makes that of each engine."""
    return {name: _run(world, name, spec, function, objective) for name, (spec, function) in cases.items()}


def _run[T](
    world: int,
    name: str,
    spec: RLJobSpec,
    function: Callable[[Any], T],
    objective: Callable[[RLJobSpec], Any] | None,
) -> T:
    def on_a_rank() -> T:
        from rljob_trainer.megatron.engine import Engine

        return function(Engine(spec, lambda: None, objective(spec) if objective else None))

    first, *others = run_ranks(world, on_a_rank)
    assert all(equal(first, other) for other in others), f"the ranks differ in {name}"
    return first


def equal(a: Any, b: Any) -> bool:
    """Bit for bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def of_all_rows(step: Any, values: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
    """Values of response tokens, from the ranks that have them. Collective."""
    found = torch.zeros(sum(step.counts))
    of_rows = found.split(step.counts)
    for row in step.rows if step.parallel.leads_copy else ():
        of_rows[row].copy_(values[row])
    return list(step.parallel.over_world(found).split(step.counts))


def column(step: Any, name: str) -> list[torch.Tensor]:
    """A measured column, of all rows. Collective."""
    return of_all_rows(step, step.by_row(step.own(name)))


def weights(engine: Any) -> dict[str, torch.Tensor]:
    """Of the policy, by their Hugging Face names."""
    return {name: tensor.clone() for name, tensor in engine.export()}


def moments(engine: Any) -> list[torch.Tensor]:
    """What this rank keeps of the policy's optimizer."""
    parts = getattr(engine._policy.optimizer, "chained_optimizers", [engine._policy.optimizer])
    states = [state for part in parts for state in part.optimizer.state.values()]
    return [state[key].clone() for state in states for key in ("exp_avg", "exp_avg_sq")]


def gradient(engine: Any) -> dict[str, torch.Tensor]:
    """Of the policy, whole and by the Hugging Face names of its weights, after a step that left the weights alone; 0 of those that are frozen."""
    for chunk in engine._policy.chunks:
        for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
            group = buffer.data_parallel_group
            for bucket in buffer.buckets:
                mine = bucket.grad_data.chunk(group.size())[group.rank()].clone()
                torch.distributed.all_gather_into_tensor(bucket.grad_data, mine, group=group)
    for module in engine._policy.modules:
        for p in module.parameters():
            p.data.copy_(p.main_grad if p.requires_grad else torch.zeros_like(p))
    return weights(engine)
