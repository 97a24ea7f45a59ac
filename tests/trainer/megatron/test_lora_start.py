"""Adapters that a job begins from, and adapters of the parts of a matrix, as the peft library makes them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from extra import extra_but
from rljob_api.families import FAMILIES
from rljob_api.rules.lora import MODULES, MODULES_OF_FUSED, modules_of, parts_of
from rljob_api.spec import RLJobSpec
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.wire.batch import Batch
from trainer.megatron.gang import changed, column, run_engines, weights
from trainer.megatron.kinds import TIED
from trainer.megatron.models import job, make_batch, make_model, response_log_probs, train_step
from trainer.megatron.test_lora import ADAPTED, far_apart, same, texts

LORA = {"rank": 4, "alpha": 8}
PARTS = ["linear_q", "linear_k", "linear_v", "linear_proj", "linear_fc1_gate", "linear_fc1_up", "linear_fc2"]
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FUSED_NAMES = {module: module for module in ALL} | {
    module: fused for target, (fused,) in MODULES_OF_FUSED.items() for module in MODULES[target]
}
"""Of the tensor that has a module in the files of some families."""
LAYOUTS: dict[str, tuple[int, dict[str, int]]] = {
    "one rank": (1, {}),
    "tensor": (2, {"tensor": 2}),
    "tensor and pipeline": (4, {"tensor": 2, "pipeline": 2}),
    "context": (2, {"context": 2}),
}


def spec_of(model: Path, lora: dict[str, Any], layout: str = "one rank", **more: int) -> RLJobSpec:
    world, sizes = LAYOUTS[layout]
    spec = job(model, batches={"replay": "/r"}, trainer={"nodes": world, "parallelism": sizes | more})
    return changed(spec, model={"lora": LORA | lora})


def found(spec: RLJobSpec, function: Callable[[Any], Any]) -> Any:
    return run_engines(spec.trainer.nodes, {"found": (spec, function)})["found"]


@pytest.fixture(scope="module")
def model(megatron: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("untied"), tied=False)


@pytest.fixture(scope="module")
def batch(model: Path) -> Batch:
    return make_batch(model)


@pytest.fixture(scope="module", params=["one A for a matrix", "an A for each part"])
def exported(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory, batch: Batch
) -> Any:
    """The settings of adapters that one rank trained and exported, and what it had then."""
    from rljob_trainer.megatron.huggingface import write_adapters

    lora = {} if request.param == "one A for a matrix" else {"targets": PARTS}
    spec, target = spec_of(model, lora), tmp_path_factory.mktemp("exported") / "adapter"

    def train(engine: Any) -> dict[str, Any]:
        train_step(engine, batch)
        write_adapters(engine.export_adapters(), spec.model.lora, model, target)
        return held(engine, batch) | {"apart": far_apart(engine, model, weights(engine), batch)}

    return lora | {"path": str(target)}, found(spec, train)


def held(engine: Any, batch: Batch) -> dict[str, Any]:
    return {
        "adapters": {name: tensor.clone() for name, tensor in engine.export_adapters()},
        "merged": weights(engine),
        "log_probs": list(engine.log_probs(batch.samples)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("layout", extra_but(("one rank", "tensor and pipeline"), LAYOUTS))
def test_exported_adapters_are_the_beginning_of_another_job(
    model: Path, exported: Any, batch: Batch, layout: str
) -> None:
    lora, before = exported
    after = found(spec_of(model, lora, layout), lambda engine: held(engine, batch))
    assert same(after["adapters"], before["adapters"]) and same(after["merged"], before["merged"])
    assert largest(after["log_probs"], before["log_probs"]) <= (0 if layout == "one rank" else 2e-6)


def largest(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


@pytest.mark.slow
def test_the_merged_policy_is_what_was_trained(exported: Any) -> None:
    assert exported[1]["apart"] < 5e-6


@pytest.mark.slow
def test_the_reference_of_a_job_that_begins_from_adapters_is_the_model_without_them(
    model: Path, exported: Any, batch: Batch
) -> None:
    spec = changed(spec_of(model, exported[0]), algorithm={"kl": {"coefficient": 0.1}})
    reference = found(spec, lambda engine: column(engine.measure(batch), "reference_log_probs"))
    base = found(job(model, batches={"replay": "/r"}), lambda engine: list(engine.log_probs(batch.samples)))
    assert largest(reference, base) == 0
    assert largest(reference, exported[1]["log_probs"]) > 1e-3


def made_by_peft(model: Path, target: Path, modules: list[str]) -> Any:
    """Adapters in which B is not zero, and transformers' model with them."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(3)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=modules, init_lora_weights=False, task_type="CAUSAL_LM")
    theirs = get_peft_model(base, config).eval()
    with torch.no_grad():
        for name, p in theirs.named_parameters():
            if "lora_" in name:
                p.copy_(torch.randn(p.shape) * 0.05)
    theirs.save_pretrained(target)
    return theirs


SOME = ["q_proj", "v_proj", "o_proj", "up_proj"]


@pytest.mark.slow
@pytest.mark.parametrize("layout", extra_but(("tensor and pipeline",), ("one rank", "tensor", "tensor and pipeline")))
@pytest.mark.parametrize("which", extra_but(("all",), ("all", "some")))
@pytest.mark.parametrize("kind", extra_but(("qwen2", "phi3", "gpt_oss", "deepseek_v3"), ADAPTED))
def test_adapters_of_the_peft_library_are_what_they_are_there(
    megatron: None, tmp_path: Path, which: str, layout: str, kind: str
) -> None:
    """Of those modules that the family has adapters for."""
    assert_as_in_peft(tmp_path, ALL if which == "all" else SOME, layout, kind)


@pytest.mark.slow
def test_adapters_of_some_modules_are_what_they_are_in_the_peft_library(megatron: None, tmp_path: Path) -> None:
    assert_as_in_peft(tmp_path, SOME, "tensor", "qwen2")


def assert_as_in_peft(tmp_path: Path, modules: list[str], layout: str, kind: str) -> None:
    model = make_model(tmp_path / "model", kind, tied=kind in TIED)
    adapted = modules_of(FAMILIES[kind].adapters, {"model_type": kind})
    modules = sorted({name for module in modules for name in (module, FUSED_NAMES[module]) if name in adapted})
    targets = parts_of(modules, {"model_type": kind})
    batch, theirs = make_batch(model), made_by_peft(model, tmp_path / "adapter", modules)
    whole = {"expertTensor": 1} if FAMILIES[kind].whole_experts else {}
    spec = spec_of(model, {"targets": targets, "path": str(tmp_path / "adapter")}, layout, **whole)
    ours = found(spec, lambda engine: held(engine, batch))
    expected = [torch.tensor(response_log_probs(theirs, *texts(t), temperature=1.0)) for t in batch.samples]
    assert largest(expected, ours["log_probs"]) < 1e-5
    given = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert same(ours["adapters"], {name.removeprefix("base_model.model."): t for name, t in given.items()})
    base = load_file(model / "model.safetensors")
    moved = {name.split(".")[-2] for name, tensor in base.items() if not torch.equal(tensor, ours["merged"][name])}
    assert moved == set(modules)
    with theirs.disable_adapter():
        start = torch.tensor(response_log_probs(theirs, *texts(batch.samples[0]), temperature=1.0))
    assert float((start - ours["log_probs"][0]).abs().max()) > 1e-3, "the adapters were read"


def with_config(directory: Path, **values: Any) -> None:
    file = directory / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def without_a_layer(directory: Path) -> None:
    file = directory / "adapter_model.safetensors"
    save_file({name: t for name, t in load_file(file).items() if ".layers.1." not in name}, file)


def of_a_wider_model(directory: Path) -> None:
    file = directory / "adapter_model.safetensors"
    save_file({name: torch.cat([t, t], 1) if "lora_A" in name else t for name, t in load_file(file).items()}, file)


REFUSED: dict[str, tuple[Callable[[Path], None], dict[str, Any], str, str]] = {
    "none there": (shutil.rmtree, {}, "path", "holds no adapter_config.json"),
    "another rank": (lambda d: with_config(d, r=8), {}, "rank", "have r = 8; set that"),
    "another alpha": (lambda d: with_config(d, lora_alpha=16), {}, "alpha", "have lora_alpha = 16; set that"),
    "dora": (lambda d: with_config(d, use_dora=True), {}, "path", "its use_dora = True is not supported"),
    "other modules": (
        lambda d: None,
        {"targets": ["linear_proj"]},
        "targets",
        "are of down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj; set [linear_q, linear_k, linear_v,",
    ),
    "an A for each part": (
        lambda d: None,
        {"targets": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]},
        "targets",
        "have not the same A; set [linear_q, linear_k, linear_v, linear_fc1_gate, linear_fc1_up, linear_proj, linear_fc2]",
    ),
    "a layer less": (without_a_layer, {}, "path", "lacks 14 tensors, for example base_model.model.model.layers.1."),
    "another width": (of_a_wider_model, {}, "path", "an adapter has the shape"),
}


@pytest.fixture(scope="module")
def of_peft(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("peft") / "adapter"
    made_by_peft(model, target, ALL)
    return target


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_adapters_that_do_not_fit_are_refused(model: Path, of_peft: Path, tmp_path: Path, case: str) -> None:
    from rljob_trainer.megatron.engine import Engine
    from trainer.ranks import run_ranks

    spoil, lora, field, message = REFUSED[case]
    given = tmp_path / "adapter"
    shutil.copytree(of_peft, given)
    spoil(given)
    spec = spec_of(model, {"targets": PARTS, "path": str(given)} | lora)

    def start() -> tuple[str, str]:
        with pytest.raises(ConfigurationError) as caught:
            Engine(spec, lambda: None)
        return caught.value.field, str(caught.value)

    said, text = run_ranks(1, start)[0]
    assert said == f"spec.model.lora.{field}" and message in text
