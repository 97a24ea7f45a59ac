"""Every supported family, in every way of cutting it: what goes in comes out, bit for bit, and says what transformers says."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from api.specs import make_spec
from rljob_api.families import FAMILIES, has_latent_attention, language_of, rope_of
from rljob_api.family import Family
from rljob_api.rules.model import model_violations
from rljob_api.sizing.layout import Layout
from rljob_api.spec import RLJobSpec
from rljob_trainer.failure import ConfigurationError
from trainer.megatron.kinds import KINDS, TIED, family_of, make_config
from trainer.megatron.models import job, make_batch, make_model, ranks_of, train_step
from trainer.ranks import run_ranks

CHOOSING = "e_score_correction_bias"
"""By which routers choose experts. It is no parameter of the loss."""
EXPERT = ".experts."
"""One that no token chose does not learn."""
INDEXER = ".indexer."
"""Frozen."""
TOWER = "visual."
"""Nothing here has an image: test_vision.py."""
VARIANTS_ON_MANY_RANKS = ("mistral, window",)
"""Others differ from their family in what every rank computes alone."""
LAYOUTS: dict[int, list[dict[str, int]]] = {
    1: [{}],
    2: [{"pipeline": 2, "virtualPipeline": 2}, {"tensor": 2}, {"context": 2}, {"expert": 2}],
    4: [{"tensor": 2, "pipeline": 2}, {"tensor": 2, "expert": 2, "expertTensor": 1, "pipeline": 2}],
}
"""By number of ranks; only models with experts can have those that name `expert`."""


GIVEN = {"replay": "/batches"}
"""Of a job that generates nothing, which some families cannot."""


def kinds_on(world: int) -> list[str]:
    return [k for k in KINDS if world == 1 or k in FAMILIES or (world == 2 and k in VARIANTS_ON_MANY_RANKS)]


def layouts_of(kind: str, world: int) -> list[dict[str, int]]:
    family = FAMILIES[family_of(kind)]
    whole = {"expertTensor": 1} if family.whole_experts else {}
    ways = {*family.layouts, "virtualPipeline", "expertTensor"}
    return [sizes | whole for sizes in LAYOUTS[world] if sizes.keys() <= ways]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))
def test_the_table_of_families_says_what_is_tested_here(family: Family) -> None:
    kinds = [kind for kind in KINDS if family_of(kind) == family.model_type]
    configs = [make_config(kind, tied=kind in TIED).to_dict() for kind in kinds]
    assert {config["model_type"] for config in configs} == {family.model_type}
    said = [language_of(config) for config in configs]
    assert {rope_of(config)[0] for config in said} == set(family.rotations)
    windows = [c for c in said if c.get("sliding_window") and c.get("use_sliding_window", True)]
    assert {"vision_config" in config for config in configs} == {family.vision}
    assert bool(windows) == family.windows
    ways = {way for world in LAYOUTS for sizes in layouts_of(family.model_type, world) for way in sizes}
    assert ways - {"virtualPipeline", "expertTensor"} == set(family.layouts)
    assert {has_latent_attention(config) for config in configs} == {family.latent}
    replayed = job(Path("/model"), batches=GIVEN)
    assert [list(model_violations(replayed, config)) for config in configs] == [[] for _ in configs]
    for device in ("cpu", "gpu"):
        training = job(Path("/model"), trainer={"device": device}, batches=GIVEN)
        assert not any(list(model_violations(training, c)) for c in configs)
        kernels = {"vllmArgs": {"gdn-prefill-backend": "triton"}} if family.states else {}
        generating = make_spec(trainer={"device": device}, rollout=kernels)
        assert {not list(model_violations(generating, c)) for c in configs} == {device in family.servers}


VARIANTS = ("llama, llama3", "mistral, window", "phi3, window", "deepseek_v3, yarn", "glm_moe_dsa, shared")
ALWAYS = {
    1: (*(kind for kind in FAMILIES if kind not in ("mistral", "phi3")), *VARIANTS),
    2: ("mistral, window", "qwen3_moe", "gemma3_text", "deepseek_v3", "qwen3_5_text"),
    4: ("qwen2", "qwen3_moe"),
}
"""In `make test`, by number of ranks."""
CASES = [
    pytest.param(world, kind, marks=[] if kind in ALWAYS[world] else pytest.mark.extra)
    for world in LAYOUTS
    for kind in kinds_on(world)
]


@pytest.mark.slow
@pytest.mark.parametrize(("world", "kind"), CASES)
def test_import_export_and_log_probs_are_those_of_transformers(
    megatron: None, tmp_path: Path, world: int, kind: str
) -> None:
    """One pack of all samples against each sample alone, so nothing is seen across sequences. The files are sharded, the vocabulary is padded."""
    padded = kinds_on(world).index(kind) % 2 and not FAMILIES[family_of(kind)].vision
    source = make_model(tmp_path / "model", kind, kind in TIED, 160 + padded, max_shard_size="100KB")
    assert len(list(source.glob("model-*.safetensors"))) > 1
    batch, unheated = make_batch(source, temperature=0.7), make_batch(source)
    for sizes in layouts_of(kind, world):
        trainer = {"nodes": world, "parallelism": sizes}
        spec = job(source, trainer=trainer, tokensPerMicroBatch=4096, temperature=0.7, batches=GIVEN)
        for differences in run_ranks(world, partial(_round_trip, spec, source, batch, unheated)):
            assert max(differences) < 1e-5, sizes


def _round_trip(spec: Any, source: Path, batch: Any, unheated: Any) -> list[float]:
    from rljob_trainer.megatron.engine import Engine

    engine = Engine(spec, lambda: None)
    for _ in range(2):  # what stages asked each other for the first export, they know in the second
        assert_exported(dict(engine.export()), source)
    asked = zip(engine.log_probs(unheated.samples), unheated.samples, strict=True)
    probed = max(float((found - torch.from_numpy(s.response_log_probs.copy())).abs().max()) for found, s in asked)
    before = {name: tensor.clone() for name, tensor in engine.export()}
    metrics = train_step(engine, batch)
    still = [name for name, tensor in engine.export() if torch.equal(tensor, before[name])]
    unused = (EXPERT, INDEXER, TOWER)
    assert [n for n in still if not (n.endswith(CHOOSING) or any(part in n for part in unused))] == [], (
        "all others learn"
    )
    return [probed, metrics["train_rollout/log_prob_diff_max"]]


@pytest.mark.slow
def test_transformer_engine_chooses_the_attention_of_every_family_from_what_is_there(
    megatron: None, tmp_path: Path
) -> None:
    from rljob_trainer.megatron.provider import configure, open_bridge

    def backend(kind: str) -> str:
        spec = job(make_model(tmp_path / kind, kind, kind in TIED), batches=GIVEN)
        provider = open_bridge(spec).to_megatron_provider(load_weights=False)
        configure(provider, spec, Layout.of(spec, "trainer"))
        return str(provider.attention_backend.name)

    assert {kind: backend(kind) for kind in FAMILIES} == dict.fromkeys(FAMILIES, "auto")


@pytest.mark.slow
def test_every_family_with_experts_asks_for_the_kernels_that_permute_tokens(megatron: None, tmp_path: Path) -> None:
    """Without them every such layer waits for the GPU to count what it permutes; `configure` turns them off where there are none."""
    from rljob_trainer.megatron.provider import open_bridge

    def asked(kind: str) -> bool:
        spec = job(make_model(tmp_path / kind, kind, kind in TIED), batches=GIVEN)
        return bool(open_bridge(spec).to_megatron_provider(load_weights=False).moe_permute_fusion)

    experts = [kind for kind in FAMILIES if any("experts" in key for key in KINDS[kind][1])]
    assert len(experts) > 4
    assert {kind: asked(kind) for kind in experts} == dict.fromkeys(experts, True)


@pytest.mark.slow
def test_a_job_that_names_its_attention_gets_it_or_hears_which_there_are(megatron: None, tmp_path: Path) -> None:
    from rljob_trainer.megatron.provider import configure, open_bridge

    def backend(name: str) -> str:
        spec = job(source, trainer={"transformerConfig": {"attention_backend": name}}, batches=GIVEN)
        provider = open_bridge(spec).to_megatron_provider(load_weights=False)
        configure(provider, spec, Layout.of(spec, "trainer"))
        return str(provider.attention_backend.name)

    source = make_model(tmp_path / "model", "qwen2")
    assert backend("fused") == "fused"
    with pytest.raises(
        ConfigurationError, match=r"transformerConfig\.attention_backend = triton.*set one of flash, fused"
    ):
        backend("triton")


@pytest.mark.slow
def test_the_biases_by_which_routers_choose_stay_in_float32(megatron: None, tmp_path: Path) -> None:
    source = make_model(tmp_path / "model", "glm4_moe", tied=False)
    batch = make_batch(source)

    def on_a_rank() -> list[dict[str, torch.Tensor]]:
        from rljob_trainer.megatron.engine import Engine

        engine = Engine(job(source, dtype="bfloat16"), lambda: None)
        first = dict(engine.export())
        train_step(engine, batch)
        return [first, dict(engine.export())]

    expected = _tensors(source)
    for exported in run_ranks(1, on_a_rank)[0]:
        assert {n: t.dtype for n, t in exported.items() if t.dtype != torch.bfloat16} == {
            n: torch.float32 for n in expected if n.endswith(CHOOSING)
        }
        assert all(torch.equal(exported[n], t) for n, t in expected.items() if n.endswith(CHOOSING))


def assert_exported(exported: dict[str, torch.Tensor], source: Path) -> None:
    expected = _tensors(source)
    assert exported.keys() == expected.keys()
    assert [n for n in expected if not torch.equal(exported[n], expected[n])] == []


def _tensors(source: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return {name: t for file in source.glob("*.safetensors") for name, t in load_file(file).items()}


@pytest.mark.slow
def test_a_rank_reads_one_parameter_at_a_time(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading and exporting never hold more of the model than a rank's own part and the tensors of one parameter."""
    import weakref

    from rljob_trainer.megatron.weight_files import OpenFiles

    load = OpenFiles.load_tensors
    alive: list[weakref.ref[torch.Tensor]] = []
    most = [0]

    def watched(self: OpenFiles, keys: list[str]) -> dict[str, torch.Tensor]:
        found = load(self, keys)
        alive.extend(weakref.ref(t) for t in found.values())
        most[0] = max(most[0], sum(r() is not None for r in alive))
        return found

    monkeypatch.setattr(OpenFiles, "load_tensors", watched)

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
        f"use one of {', '.join(FAMILIES)}",
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
