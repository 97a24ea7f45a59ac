"""Every supported family, in every way of cutting it: what goes in comes out, bit for bit, and says what transformers says."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_api.spec import RLJobSpec
from rljob_trainer.failure import ConfigurationError
from trainer.megatron.models import job, make_batch, make_model, ranks_of, train_step
from trainer.ranks import run_ranks

FAMILIES = [
    ("llama", False, 160),
    ("llama3", False, 161),
    ("qwen2", True, 161),
    ("qwen2", False, 160),
    ("qwen3", True, 160),
    ("qwen3_moe", False, 161),
    ("mixtral", False, 160),
]
EXPERTS = ("qwen3_moe", "mixtral")
LAYOUTS: dict[int, list[tuple[dict[str, int], bool]]] = {
    1: [({}, False)],
    2: [({"pipeline": 2, "virtualPipeline": 2}, False), ({"expert": 2}, True), ({"tensor": 2}, False)],
    4: [({"tensor": 2, "pipeline": 2}, False), ({"tensor": 2, "expert": 2, "expertTensor": 1, "pipeline": 2}, True)],
}
"""By number of ranks: sizes, and whether only models with experts can have them."""


@pytest.mark.slow
@pytest.mark.parametrize("world", LAYOUTS)
def test_import_export_and_log_probs_are_those_of_transformers(megatron: None, tmp_path: Path, world: int) -> None:
    """One pack of all samples against each sample alone, so nothing is seen across sequences. The files are sharded, the vocabulary is padded."""
    sources = [make_model(tmp_path / str(i), *f, max_shard_size="100KB") for i, f in enumerate(FAMILIES)]
    batches = [make_batch(source, temperature=0.7) for source in sources]
    plain = [make_batch(source) for source in sources]
    assert all(len(list(source.glob("model-*.safetensors"))) > 1 for source in sources)

    for (kind, *_), source, batch, unheated in zip(FAMILIES, sources, batches, plain, strict=True):
        for sizes in (s for s, experts in LAYOUTS[world] if kind in EXPERTS or not experts):
            trainer = {"nodes": world, "parallelism": sizes}
            spec = job(source, trainer=trainer, tokensPerMicroBatch=4096, temperature=0.7)
            for differences in run_ranks(world, partial(_round_trip, spec, source, batch, unheated)):
                assert max(differences) < 1e-5, (kind, sizes)


def _round_trip(spec: Any, source: Path, batch: Any, unheated: Any) -> list[float]:
    from rljob_trainer.megatron.engine import Engine

    engine = Engine(spec, lambda: None)
    for _ in range(2):  # what stages asked each other for the first export, they know in the second
        _assert_equal(dict(engine.export()), source)
    asked = zip(engine.log_probs(unheated.samples), unheated.samples, strict=True)
    probed = max(float((found - torch.from_numpy(s.response_log_probs.copy())).abs().max()) for found, s in asked)
    metrics = train_step(engine, batch)
    return [probed, metrics["train_rollout/log_prob_diff_max"]]


def _assert_equal(exported: dict[str, torch.Tensor], source: Path) -> None:
    from safetensors.torch import load_file

    expected = {name: t for file in source.glob("*.safetensors") for name, t in load_file(file).items()}
    assert exported.keys() == expected.keys()
    assert [n for n in expected if not torch.equal(exported[n], expected[n])] == []


@pytest.mark.slow
def test_a_rank_reads_one_parameter_at_a_time(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading and exporting never hold more of the model than a rank's own part and the tensors of one parameter."""
    import weakref

    from megatron.bridge.models.hf_pretrained.state import SafeTensorsStateSource

    load = SafeTensorsStateSource.load_tensors
    alive: list[weakref.ref[torch.Tensor]] = []
    most = [0]

    def watched(self: Any, keys: list[str]) -> dict[str, torch.Tensor]:
        found = load(self, keys)
        alive.extend(weakref.ref(t) for t in found.values())
        most[0] = max(most[0], sum(r() is not None for r in alive))
        return found

    monkeypatch.setattr(SafeTensorsStateSource, "load_tensors", watched)

    def on_a_rank() -> tuple[int, int]:
        from rljob_trainer.megatron.engine import Engine

        engine = Engine(job(model, 2, 1), lambda: None)
        read = len(alive)
        matrices, held = [], 0
        for _, tensor in engine.export():
            matrices += [weakref.ref(tensor)] if tensor.ndim == 2 else []  # norms are whole on every rank
            held = max(held, sum(r() is not None for r in matrices))
        return max(most[0], held), read

    for largest, read in run_ranks(2, on_a_rank):
        assert read > 40
        assert largest <= 6  # query, key and value, and those of the parameter before, which is still a loop variable


@pytest.mark.slow
def test_missing_tensors_are_refused_and_not_left_to_noise(megatron: None, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = make_model(tmp_path / "model")
    tensors = load_file(source / "model.safetensors")
    del tensors["model.layers.2.mlp.up_proj.weight"]
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    assert refusal(job(source)) == (
        "spec.model.path",
        "1 tensors are missing in its safetensors files, for example model.layers.2.mlp.up_proj.weight",
        "copy the whole model directory",
    )


def refusal(spec: RLJobSpec) -> tuple[str, str, str]:
    """What a job fails with before it has a model."""

    def on_a_rank() -> tuple[str, str, str]:
        from rljob_trainer.megatron.engine import Engine

        with pytest.raises(ConfigurationError) as caught:
            Engine(spec, lambda: None)
        return caught.value.field, caught.value.rule, caught.value.fix

    return run_ranks(ranks_of(spec), on_a_rank)[0]


@pytest.mark.slow
def test_another_model_type_is_refused_with_the_supported_ones(megatron: None, tmp_path: Path) -> None:
    source = make_model(tmp_path / "model")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"model_type": "gemma2"}))
    assert refusal(job(source)) == (
        "spec.model.path",
        "its model_type is gemma2",
        "use one of llama, qwen2, qwen3, qwen3_moe, mixtral",
    )


@pytest.mark.slow
def test_a_pipeline_layout_says_the_pieces_that_the_spec_says(model: Path) -> None:
    trainer = {
        "nodes": 2,
        "parallelism": {"pipeline": 2},
        "transformerConfig": {"pipeline_model_parallel_layout": "Et|t|t|tL"},
    }
    assert refusal(job(model, trainer=trainer)) == (
        "spec.trainer.parallelism.virtualPipeline",
        "pipeline_model_parallel_layout cuts every stage into 2 pieces",
        "set 2",
    )
