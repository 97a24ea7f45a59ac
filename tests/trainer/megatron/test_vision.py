"""Models with a vision tower against transformers: images lie where the trajectory says, at the positions of the model's own paper."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from extra import extra_but
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.images import positions
from trainer.megatron.gang import changed, gradient, run_engines
from trainer.megatron.kinds import TIED
from trainer.megatron.models import job, load_model, make_model, train_step
from trainer.megatron.test_checkpoint import run
from trainer.megatron.test_families import GIVEN, assert_exported
from trainer.megatron.test_parity import off_policy
from trainer.megatron.vision import FIRST, LAST, PAD, make_image, make_vision_batch, sharing_images
from trainer.ranks import run_ranks

VISION = ("qwen2_5_vl", "qwen3_vl", "qwen3_5")
WHOLE = {"tensor": 2, "sequence": False}
SIZES: dict[str, list[dict[str, Any]]] = {
    **{kind: [{}, {"tensor": 2}, WHOLE] for kind in VISION},
    **{kind: [{}, {"tensor": 2}, {"expert": 2}] for kind in ("qwen3_vl_moe", "qwen3_5_moe")},
}
"""Layouts of one rank and of two; experts train on sequence-parallel shares only."""


@pytest.mark.parametrize("kind", SIZES)
def test_positions_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    model = load_model(make_model(tmp_path / "model", kind, tied=False))
    tokens = [1, 2, FIRST, *[PAD] * 3, LAST, 3, FIRST, *[PAD] * 8, LAST, FIRST, *[PAD] * 4, LAST, 4, 5]
    images = [(3, make_image((2, 6), 0)), (9, make_image((8, 4), 1)), (19, make_image((4, 4), 2))]
    ids = torch.tensor([tokens])
    grids = torch.tensor([(1, *image.grid) for _, image in images])
    expected, _ = model.model.get_rope_index(ids, (ids == PAD).int(), grids)
    assert positions(len(tokens), images).tolist() == expected[:, 0].tolist()
    assert positions(5, []).tolist() == [list(range(5))] * 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", SIZES)
def test_log_probs_of_images_are_those_of_transformers_and_the_export_is_the_model(
    megatron: None, tmp_path: Path, kind: str
) -> None:
    """One pack of samples without, with one and with several images against each sample alone; on one rank and on two. The tower is computed in the
    job's type, not in that of config.json."""
    source = make_model(tmp_path / "model", kind, tied=False)
    config = json.loads((source / "config.json").read_text())
    config["vision_config"]["dtype"] = "bfloat16"
    (source / "config.json").write_text(json.dumps(config))
    batch = make_vision_batch(source)
    for sizes in SIZES[kind]:
        world = sizes.get("tensor", sizes.get("expert", 1))
        trainer = {"nodes": world, "parallelism": sizes}
        spec = job(source, trainer=trainer, tokensPerMicroBatch=4096, batches=GIVEN)
        for difference in run_ranks(world, partial(_difference, spec, batch, source)):
            assert difference < 1e-5, sizes


def _difference(spec: Any, batch: Batch, source: Path) -> float:
    from rljob_trainer.megatron.engine import Engine

    engine = Engine(spec, lambda: None)
    assert_exported(dict(engine.export()), source)
    return _apart(engine, batch)


def _apart(engine: Any, batch: Batch) -> float:
    """From transformers' log-probabilities, at most."""
    asked = zip(engine.log_probs(batch.samples), batch.samples, strict=True)
    return max(float((found - torch.from_numpy(s.response_log_probs.copy())).abs().max()) for found, s in asked)


@pytest.mark.slow
def test_a_layer_that_guesses_further_tokens_in_published_files_is_left_alone(megatron: None, tmp_path: Path) -> None:
    source = make_model(tmp_path / "model", "qwen3_5", tied=False)
    config = json.loads((source / "config.json").read_text())
    config["text_config"]["mtp_num_hidden_layers"] = 1
    (source / "config.json").write_text(json.dumps(config))
    batch, file = make_vision_batch(source), source / "model.safetensors"
    kept, guessing = load_file(file), {"mtp.fc.weight": torch.randn(64, 128), "mtp.norm.weight": torch.ones(64)}
    save_file(kept | guessing, file, metadata={"format": "pt"})
    spec = job(source, tokensPerMicroBatch=4096, batches=GIVEN)

    def on_a_rank() -> tuple[float, list[str]]:
        from rljob_trainer.megatron.engine import Engine

        engine = Engine(spec, lambda: None)
        exported = dict(engine.export())
        return _apart(engine, batch), [n for n, t in kept.items() if not torch.equal(exported.pop(n), t)] + [*exported]

    ((difference, wrong),) = run_ranks(1, on_a_rank)
    assert difference < 1e-5
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", extra_but(("qwen2_5_vl",), VISION))
def test_a_resumed_run_with_images_is_the_run_that_was_never_interrupted(
    megatron: None, tmp_path: Path, kind: str
) -> None:
    """In bfloat16, with a frozen tower, on two copies; and in another layout."""
    source = make_model(tmp_path / "model", kind, kind in TIED)
    batches = [make_vision_batch(source, step) for step in (1, 2, 3, 4)]
    once = job(source, data=2, dtype="bfloat16", tokensPerMicroBatch=64, miniBatches=2, batches=GIVEN)
    spec = changed(off_policy(once), model={"freeze": ["vision"]})
    metrics, weights, _ = run(spec, batches, save=tmp_path / "saved")
    resumed, resumed_weights, _ = run(spec, batches[2:], load=tmp_path / "saved")
    assert resumed == metrics[2:]
    assert all((weights[n] == resumed_weights[n]).all() for n in weights)
    cut = changed(spec, trainer={"nodes": 2, "parallelism": {"tensor": 2}})
    again, _, _ = run(cut, batches[2:], load=tmp_path / "saved")
    assert [m["train/loss"] for m in again] == pytest.approx([m["train/loss"] for m in metrics[2:]], abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("kind", VISION)
def test_layouts_and_micro_batches_train_images_alike(megatron: None, tmp_path: Path, kind: str) -> None:
    """Two ranks of one copy, two copies of which one may have no image, and layers computed again, against one rank; frozen parts stay bit by
    bit."""
    source = make_model(tmp_path / "model", kind, kind in TIED)
    batch = make_vision_batch(source)
    whole, *others = (_trained(source, batch, **case) for case in CASES)
    for case, found in zip(CASES, (whole, *others), strict=True):
        parts = tuple(name for part in case.get("freeze", ()) for name in PARTS[part])
        still = {name for name in found if any(part in name for part in parts)}
        assert bool(still) == bool(parts)
        assert {name for name, moved in found.items() if not moved.any()} == still, case
        apart = {name: float((moved - whole[name]).abs().max()) for name, moved in found.items()}
        assert parts or max(apart.values()) < 1e-5, case


@pytest.mark.slow
@pytest.mark.parametrize("granularity", ["none", "full"])
@pytest.mark.parametrize("kind", VISION)
def test_an_image_of_several_samples_goes_through_the_tower_once_and_is_learnt_from_as_often(
    megatron: None, tmp_path: Path, kind: str, granularity: str
) -> None:
    """Against samples that have copies of their own; also where recomputed layers read what the tower adds to them again."""
    source = make_model(tmp_path / "model", kind, kind in TIED)
    still = job(source, tokensPerMicroBatch=4096, optimizer={"learningRate": 1e-30}, batches=GIVEN)
    spec = changed(still, trainer={"recompute": {"granularity": granularity}})
    copies = make_vision_batch(source)
    batches = {"copies": copies, "shared": sharing_images(copies)}
    found = run_engines(1, {name: (spec, partial(_gradient, batch=batch)) for name, batch in batches.items()})
    (expected, all_patches), (got, patches) = (found[name] for name in ("copies", "shared"))
    assert {4 * count for count in patches} == set(all_patches), "a prompt has four samples"
    assert any(tensor.any() for name, tensor in expected.items() if ".patch_embed." in name)
    apart = {name: float((got[name] - x).abs().max() / x.abs().max().clamp(min=1e-9)) for name, x in expected.items()}
    assert max(apart.values()) < 1e-5, apart


@pytest.mark.slow
def test_gradients_of_an_image_that_many_samples_share_are_added_in_32_bits(megatron: None) -> None:
    """Against sums of the same numbers in 32 bits, which are rounded once."""
    from rljob_trainer.megatron.compat.qwen_vl import put

    torch.manual_seed(0)
    rows = torch.arange(4).repeat(64)
    seen = torch.randn(4, 8).bfloat16().requires_grad_()
    weights = torch.randn(len(rows), 1, 8).bfloat16()
    put(torch.zeros(len(rows), 1, 8).bfloat16(), torch.arange(len(rows)), seen, rows).mul(weights).sum().backward()
    assert seen.grad is not None
    expected = torch.zeros(4, 8).index_add(0, rows, weights[:, 0].float())
    torch.testing.assert_close(seen.grad, expected.bfloat16(), rtol=0, atol=0)


def _gradient(engine: Any, batch: Batch) -> tuple[dict[str, torch.Tensor], list[int]]:
    """Of a step, and how many patches each pass put through the tower."""
    seen: list[int] = []
    engine._model.modules[0].visual.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    train_step(engine, batch)
    return gradient(engine), seen


CASES: tuple[dict[str, Any], ...] = (
    {},
    {"tensor": 2},
    {"data": 2, "budget": 48, "recompute": "full"},
    {"freeze": ["vision"]},
    {"freeze": ["projector", "vision"], "data": 2},
)
PARTS = {
    "vision": ("visual.patch_embed.", "visual.pos_embed.", "visual.blocks."),
    "projector": ("visual.merger.", "visual.deepstack_merger_list."),
}


def _trained(
    source: Path,
    batch: Batch,
    freeze: Any = (),
    tensor: int = 1,
    data: int = 1,
    budget: int = 4096,
    recompute: str = "none",
) -> dict[str, torch.Tensor]:
    """How far each weight moved in a step."""
    trainer = {"nodes": tensor * data, "parallelism": {"tensor": tensor}, "recompute": {"granularity": recompute}}
    optimizer = {"learningRate": 1e-3, "epsilon": 1e-6}  # less makes weights of the rounding of gradients near 0
    given = {"tokensPerMicroBatch": budget, "optimizer": optimizer, "batches": GIVEN}
    spec = changed(job(source, trainer=trainer, **given), model={"freeze": list(freeze)})

    def on_a_rank() -> dict[str, torch.Tensor]:
        from rljob_trainer.megatron.engine import Engine

        engine = Engine(spec, lambda: None)
        before = {name: tensor.clone() for name, tensor in engine.export()}
        train_step(engine, batch)
        return {name: tensor - before[name] for name, tensor in engine.export()}

    return run_ranks(tensor * data, on_a_rank)[0]
