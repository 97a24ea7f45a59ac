"""Every tensor of a policy has one owner, which gathers it inside its own pipeline stage."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

from rljob_api.sizing.network import owned
from rljob_api.sizing.shape import Shape
from trainer.megatron.gang import changed
from trainer.megatron.models import job, make_model
from trainer.ranks import run_ranks

LAYOUTS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "one rank": ("qwen2", 1, {}),
    "tensor": ("qwen2", 2, {"tensor": 2}),
    "pipeline": ("qwen2", 2, {"pipeline": 2}),
    "virtual pipeline": ("qwen3", 2, {"pipeline": 2, "virtualPipeline": 2}),
    "data": ("qwen2", 2, {}),
    "context": ("qwen2", 2, {"context": 2}),
    "experts": ("qwen3_moe", 2, {"expert": 2}),
    "experts in one tensor": ("gpt_oss", 2, {"expert": 2, "expertTensor": 1}),
    "tensor, pipeline, data": ("qwen2", 8, {"tensor": 2, "pipeline": 2}),
    "tensor, pipeline, experts": (
        "qwen3_moe",
        4,
        {"tensor": 2, "pipeline": 2, "expert": 2, "expertTensor": 1},
    ),
    "tensor, experts, data": ("qwen3_moe", 4, {"tensor": 2, "expert": 2}),
    "shared experts, pipeline, experts": ("deepseek_v3", 4, {"pipeline": 2, "expert": 2}),
}

UNTIED = [(layout, False) for layout in LAYOUTS]
TIED = [
    pytest.param(layout, True, marks=[] if layout == "pipeline" else pytest.mark.extra)
    for layout, (kind, _, _) in LAYOUTS.items()
    if kind in ("qwen2", "qwen3")
]
"""Of families in which that may be. Whether an output layer that is the embedding is somewhere else is a matter of stages."""
GIVEN = {"replay": "/batches"}
"""Of a job that generates nothing, which some families cannot on CPU."""


class Exported(NamedTuple):
    """By one rank."""

    whole: dict[str, torch.Tensor]
    owned: list[dict[str, torch.Tensor]]
    """By phase."""
    planned: list[int]
    """Bytes by phase."""


def export(spec: Any) -> Exported:
    from rljob_trainer.megatron.engine import Engine

    engine = Engine(spec, lambda: None)
    owned, planned = [], []
    for phase in engine.export_owned():
        tensors = {name: tensor.clone() for name, tensor in phase.tensors}
        owned.append(tensors if phase.sends else {})
        planned.append(phase.bytes)
    return Exported({name: tensor.clone() for name, tensor in engine.export()}, owned, planned)


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "tied"), [*UNTIED, *TIED])
def test_the_parts_of_all_ranks_are_the_policy_and_have_the_planned_size(
    megatron: None, tmp_path: Path, layout: str, tied: bool
) -> None:
    kind, world, sizes = LAYOUTS[layout]
    spec = job(make_model(tmp_path, kind, tied), trainer={"nodes": world, "parallelism": sizes}, batches=GIVEN)
    ranks = run_ranks(world, lambda: export(spec))
    parts = [part for rank in ranks for part in rank.owned]
    together = {name: tensor for part in parts for name, tensor in part.items()}
    assert sum(map(len, parts)) == len(together), "a tensor has two owners"
    assert together.keys() == ranks[0].whole.keys()
    assert all(torch.equal(tensor, ranks[0].whole[name]) for name, tensor in together.items())
    assert [p for rank in ranks for p in rank.planned] == [sum(t.nbytes for t in part.values()) for part in parts]
    senders = [i for i, rank in enumerate(ranks) if any(rank.owned)]
    assert len(senders) == sizes.get("pipeline", 1) * (1 if kind == "gpt_oss" else sizes.get("expert", 1))


FIRST_3 = {"num_layers_in_first_pipeline_stage": 3}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "world", "sizes", "given"),
    [
        ("qwen2", 2, {"pipeline": 2}, FIRST_3),
        ("qwen3_moe", 4, {"tensor": 2, "pipeline": 2, "expert": 2, "expertTensor": 1}, {}),
        ("qwen3_moe", 4, {"pipeline": 2, "expert": 2}, FIRST_3),
    ],
    ids=["unequal stages", "tensor, pipeline, experts", "experts on unequal stages"],
)
def test_every_rank_sends_what_plan_counts_for_it(
    megatron: None, tmp_path: Path, kind: str, world: int, sizes: dict[str, Any], given: dict[str, Any]
) -> None:
    """But for norms and biases."""
    model = make_model(tmp_path, kind)
    trainer = {"nodes": world, "parallelism": sizes, "transformerConfig": given}
    spec = job(model, trainer=trainer, batches=GIVEN)
    shape = Shape.of(json.loads((model / "config.json").read_text()))
    assert shape
    counted = owned(spec, shape)
    ranks = run_ranks(world, lambda: export(spec))
    sent = {rank: sum(found.planned) for rank, found in enumerate(ranks) if any(found.owned)}
    assert sent == pytest.approx(counted, rel=0.03)
    layers = [int(name.split(".")[2]) for name in ranks[0].owned[0] if ".q_proj.weight" in name]
    assert layers == ([0, 1, 2] if given else [0, 1])


PODS: dict[str, tuple[str, int, int, dict[str, Any], int]] = {
    "data": ("qwen2", 4, 2, {}, 2),
    "tensor, data": ("qwen2", 4, 2, {"tensor": 2}, 2),
    "pipeline, data": ("qwen2", 4, 4, {"pipeline": 2}, 2),
    "experts": ("qwen3_moe", 4, 4, {"expert": 4}, 4),
    "experts, data": ("qwen3_moe", 4, 2, {"expert": 2}, 4),
    "tensor, experts": ("qwen3_moe", 4, 4, {"tensor": 2, "expert": 2, "expertTensor": 2}, 2),
    "experts in one tensor": ("gpt_oss", 4, 2, {"expert": 2}, 2),
    "tensor over pods": ("qwen2", 2, 1, {"tensor": 2}, 2),
    "stages in other pods": ("qwen2", 4, 2, {"pipeline": 2}, 2),
    "experts over pods": ("qwen3_moe", 4, 2, {"expert": 4}, 2),
}
"""Kind, ranks, ranks of a pod, layout, how many ranks send."""


class Served(NamedTuple):
    """By one rank."""

    whole: dict[str, torch.Tensor]
    sent: list[dict[str, torch.Tensor]]
    """By phase."""
    planned: int
    """Bytes that it sends; 0: not known before."""


def export_in_pods(spec: Any, size: int) -> Served:
    from rljob_trainer.megatron.engine import Engine

    engine, rank = Engine(spec, lambda: None), dist.get_rank()
    phases = engine.export_served(rank - rank % size)
    sent = [{n: t.clone() for n, t in phase.tensors if phase.sends} for phase in phases]
    return Served({n: t.clone() for n, t in engine.export()}, sent, sum(phase.bytes for phase in phases))


@pytest.mark.slow
@pytest.mark.parametrize("layout", PODS)
def test_every_pod_gets_the_whole_policy_once_from_its_own_ranks(megatron: None, tmp_path: Path, layout: str) -> None:
    kind, world, size, sizes, sending = PODS[layout]
    model = make_model(tmp_path, kind, tied=False)
    spec = job(model, trainer={"nodes": world, "parallelism": sizes}, batches=GIVEN)
    ranks = run_ranks(world, lambda: export_in_pods(spec, size))
    for first in range(0, world, size):
        parts = [part for rank in ranks[first : first + size] for part in rank.sent]
        together = {name: tensor for part in parts for name, tensor in part.items()}
        assert sum(map(len, parts)) == len(together), "a tensor has two owners"
        assert together.keys() == ranks[0].whole.keys()
        assert all(torch.equal(tensor, ranks[0].whole[name]) for name, tensor in together.items())
    assert sum(any(rank.sent) for rank in ranks) == sending
    sizes_sent = [sum(t.nbytes for part in rank.sent for t in part.values()) for rank in ranks]
    over_pods = "pods" in layout
    assert [rank.planned for rank in ranks] == ([0] * world if over_pods else sizes_sent)


def test_adapters_are_merged_by_their_owners(megatron: None, model: Path) -> None:
    spec = job(model, trainer={"nodes": 2, "parallelism": {"tensor": 2}})
    ranks = run_ranks(2, lambda: export(changed(spec, model={"lora": {"rank": 4, "alpha": 8}})))
    together = {name: tensor for rank in ranks for part in rank.owned for name, tensor in part.items()}
    assert together.keys() == ranks[0].whole.keys()
    assert all(torch.equal(tensor, ranks[0].whole[name]) for name, tensor in together.items())
