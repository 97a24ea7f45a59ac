"""Low-rank adapters: what is frozen, what is learnt, and what others get of it. Layouts and resumption: parity.py, test_resume.py."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.func import functional_call

from extra import extra_but
from rljob_api.families import FAMILIES
from rljob_api.rules.lora import CONFIG, WEIGHTS, modules_of
from rljob_api.spec import RLJobSpec
from rljob_trainer.algorithm.cross_entropy import CrossEntropyObjective
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.wire.batch import Batch
from trainer.megatron.gang import changed, column, run_engines, weights
from trainer.megatron.kinds import TIED
from trainer.megatron.models import job, load_model, make_batch, make_model, response_log_probs, train_step
from trainer.megatron.test_checkpoint import write
from trainer.megatron.test_supervised import given

LORA = {"rank": 4, "alpha": 8}
SCALE = 2.0
ADAPTED = tuple(name for name, family in FAMILIES.items() if family.adapters)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_merged_matrix_is_the_formula_rounded_once(megatron: None, dtype: torch.dtype) -> None:
    from rljob_trainer.megatron.lora import merge

    torch.manual_seed(0)
    w, a, b = (torch.randn(shape).to(dtype) for shape in ((2050, 24), (8, 24), (2050, 8)))
    exact = w.double().numpy() + 0.5 * np.einsum("or,ri->oi", b.double().numpy(), a.double().numpy())
    assert torch.equal(merge(w, a, b, 0.5), torch.from_numpy(exact).to(dtype))


def test_parts_of_a_matrix_are_merged_to_the_bits_of_the_whole(megatron: None) -> None:
    """Else a policy that is restored in another layout would have another digest."""
    from rljob_trainer.megatron.lora import merge

    torch.manual_seed(0)
    w, a, b = (torch.randn(shape) for shape in ((96, 80), (16, 80), (96, 16)))
    whole = merge(w, a, b, 2.0)
    rows = [merge(part, a, of_b, 2.0) for part, of_b in zip(w.chunk(4), b.chunk(4), strict=True)]
    columns = [merge(part, of_a, b, 2.0) for part, of_a in zip(w.chunk(4, 1), a.chunk(4, 1), strict=True)]
    assert torch.equal(torch.cat(rows), whole) and torch.equal(torch.cat(columns, 1), whole)


def test_who_reads_the_configuration_of_an_adapter_reads_its_weights(megatron: None, tmp_path: Path) -> None:
    from rljob_api.spec.model import LoraSpec
    from rljob_trainer.megatron.huggingface import save_adapters

    tensors = {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": torch.ones(4, 8)}
    save_adapters(tensors, LoraSpec(rank=4, alpha=8), Path("/data/model"), tmp_path / "adapter")
    modes = {name: (tmp_path / "adapter" / name).stat().st_mode for name in (WEIGHTS, CONFIG)}
    assert modes[WEIGHTS] == modes[CONFIG]


def test_a_chat_template_in_a_file_of_its_own_goes_with_the_adapters(megatron: None, tmp_path: Path) -> None:
    from rljob_api.spec.model import LoraSpec
    from rljob_trainer.megatron.huggingface import TEMPLATE, save_adapters

    (tmp_path / TEMPLATE).write_text("{{ messages }}")
    save_adapters(
        {"base_model.model.q_proj.lora_A.weight": torch.ones(4, 8)}, LoraSpec(rank=4), tmp_path, tmp_path / "adapter"
    )
    assert (tmp_path / "adapter" / TEMPLATE).read_text() == "{{ messages }}"


def with_adapters(model: Path, **changes: Any) -> RLJobSpec:
    """Of batches that the starting model wrote, for several steps."""
    return changed(job(model, batches={"replay": "/r"}, **changes), model={"lora": LORA})


def with_adapters_of(model: Path, kind: str) -> RLJobSpec:
    """Next to all matrices that the family has them for."""
    return changed(with_adapters(model), model={"lora": LORA | {"targets": list(FAMILIES[kind].adapters)}})


@pytest.fixture(scope="module")
def batches(model: Path) -> list[Batch]:
    return [make_batch(model, step) for step in (1, 2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", extra_but(("llama", "phi3", "qwen3_moe", "gemma3_text", "glm4", "gpt_oss", "kimi_k2"), ADAPTED)
)
def test_the_base_is_frozen_and_the_merged_policy_is_what_was_trained(
    megatron: None, tmp_path: Path, kind: str
) -> None:
    model = make_model(tmp_path / "model", kind, tied=kind in TIED)
    spec = with_adapters_of(model, kind)
    steps = [make_batch(model, step) for step in (1, 2)]

    def follow(engine: Any) -> None:
        start, before = weights(engine), parameters(engine)
        assert same(start, load_file(model / "model.safetensors")), "B is zero: the policy is the model"
        for batch in steps:
            train_step(engine, batch)
        after, trained = parameters(engine), weights(engine)
        assert all(torch.equal(before[name], after[name]) for name in before if ".adapter." not in name)
        learnt = {n for m in engine._policy.modules for n, p in m.named_parameters() if hasattr(p, "main_grad")}
        assert learnt == {n for n in after if ".adapter." in n}, "nothing else has a gradient"
        assert all(p.grad is None for m in engine._policy.modules for p in m.parameters())
        assert same(after, parameters(engine)), "merging changes nothing"
        changes = [name for name in start if not torch.equal(start[name], trained[name])]
        assert not [name for name in changes if ".experts." in name], "routed experts stay as they are"
        moved = {name.split(".")[-2] for name in changes}
        assert moved == set(modules_of(FAMILIES[kind].adapters, {"model_type": kind}))
        assert far_apart(engine, model, trained, steps[0]) < 5e-6

    run_engines(1, {kind: (spec, follow)})


def parameters(engine: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for m in engine._policy.modules for name, p in m.named_parameters()}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def far_apart(engine: Any, model: Path, policy: dict[str, torch.Tensor], batch: Batch) -> float:
    """Largest difference of the engine's log-probabilities from those of transformers' model with the weights `policy`."""
    written = model.with_name(f"{model.name}-exported")
    shutil.copytree(model, written, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
    save_file(policy, written / "model.safetensors", {"format": "pt"})
    theirs = load_model(written)
    ours = engine.log_probs(batch.samples)
    expected = [response_log_probs(theirs, *texts(t), temperature=1.0) for t in batch.samples]
    return max(float((torch.tensor(e) - o).abs().max()) for e, o in zip(expected, ours, strict=True))


def texts(trajectory: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    tokens = tuple(trajectory.tokens.tolist())
    return tokens[: trajectory.prompt_length], tokens[trajectory.prompt_length :]


@pytest.mark.slow
def test_gradients_of_adapters_are_those_of_autograd(model: Path) -> None:
    """Of A and B in W + 2 B A of transformers' model. Queries, keys and values share A, and gate and up: its gradient is the sum of theirs."""
    samples = [given(t) for t in make_batch(model, groups=3, samples=2).samples]
    batch = Batch.of(1, samples, {})

    def gradient(engine: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        torch.manual_seed(1)
        for p in adapters(engine):
            p.data.copy_(torch.randn(p.shape) * 0.05)
        held = {name: tensor.clone() for name, tensor in engine.export_adapters()}
        train_step(engine, batch)
        for p in adapters(engine):
            p.data.copy_(p.main_grad)
        return held, {name: tensor.clone() for name, tensor in engine.export_adapters()}

    spec = changed(
        with_adapters(model), task="sft", train={"optimizer": {"learningRate": 1e-30, "clipGrad": 0}}, algorithm={}
    )
    held, found = run_engines(1, {"adapters": (spec, gradient)}, lambda of: CrossEntropyObjective(of.sft))["adapters"]
    expected = autograd(model, held, samples)
    for name, value in expected.items():
        assert torch.allclose(found[name], value, atol=1e-6), name
    assert min(float(v.abs().max()) for v in expected.values()) > 1e-4


def adapters(engine: Any) -> Iterator[torch.nn.Parameter]:
    return (p for m in engine._policy.modules for name, p in m.named_parameters() if ".adapter." in name)


def autograd(model: Path, held: dict[str, torch.Tensor], samples: list[Any]) -> dict[str, torch.Tensor]:
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    leaves = {name: tensor.requires_grad_() for name, tensor in held.items()}
    matrices = {name.removesuffix(".lora_A.weight") for name in held if ".lora_A." in name}
    merged = {
        f"{m}.weight": base.get_parameter(f"{m}.weight").detach()
        + SCALE * leaves[f"{m}.lora_B.weight"] @ leaves[f"{m}.lora_A.weight"]
        for m in matrices
    }
    total, count = torch.zeros(()), 0
    for sample in samples:
        ids = torch.from_numpy(sample.tokens).long()
        log_p = functional_call(base, merged, (ids[None],)).logits[0, :-1].log_softmax(-1)
        learnt = log_p.gather(1, ids[1:, None])[:, 0][torch.from_numpy(sample.loss_mask)[1:]]
        total, count = total - learnt.sum(), count + len(learnt)
    (total / count).backward()
    return _with_shared(leaves)


def _with_shared(leaves: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gradients, summed where one A is written under several names."""
    shared = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
    found = {}
    for name, leaf in leaves.items():
        own = name.split(".")[-3]
        group = next((g for g in shared if own in g), (own,)) if ".lora_A." in name else (own,)
        found[name] = sum((leaves[name.replace(own, other)].grad for other in group), torch.zeros_like(leaf))
    return found


@pytest.mark.slow
def test_the_reference_is_the_policy_without_its_adapters(model: Path, batches: list[Batch]) -> None:
    def follow(engine: Any) -> None:
        start = engine.log_probs(batches[0].samples)
        for batch in batches:
            train_step(engine, batch)
        step = engine.measure(batches[0])
        reference = column(step, "reference_log_probs")
        assert all(torch.equal(one, two) for one, two in zip(reference, start, strict=True))
        now = engine.log_probs(batches[0].samples)
        assert max(float((a - b).abs().max()) for a, b in zip(reference, now, strict=True)) > 1e-3
        assert not [m for m in vars(engine).values() if type(m).__name__ == "HostCopy"]

    run_engines(1, {"reference": (with_adapters(model), follow)})


@pytest.mark.slow
@pytest.mark.parametrize("offload", [True, pytest.param(False, marks=pytest.mark.extra)])
def test_another_reference_takes_the_place_of_the_base(
    model: Path, tmp_path: Path, batches: list[Batch], offload: bool
) -> None:
    other = make_model(tmp_path / "other", seed=5)

    def follow(engine: Any) -> Any:
        train_step(engine, batches[0])
        before = weights(engine)
        reference = column(engine.measure(batches[0]), "reference_log_probs")
        assert same(before, weights(engine))
        return reference

    spec = changed(with_adapters(model), reference={"path": str(other), "offload": offload})
    of_other = job(other, batches={"replay": "/r"})
    found = run_engines(1, {"found": (spec, follow), "expected": (of_other, lambda e: e.log_probs(batches[0].samples))})
    assert all(torch.equal(a, b) for a, b in zip(found["found"], found["expected"], strict=True))


@pytest.mark.slow
def test_the_peft_directory_is_the_merged_policy(model: Path, tmp_path: Path, batches: list[Batch]) -> None:
    from rljob_trainer.megatron.huggingface import write_adapters
    from rljob_trainer.megatron.lora_parts import PREFIX
    from rljob_trainer.rank.publication import scaled

    spec = changed(with_adapters(model), trainer={"nodes": 4, "parallelism": {"tensor": 2, "pipeline": 2}})

    def follow(engine: Any) -> dict[str, torch.Tensor]:
        train_step(engine, batches[0])
        write_adapters(engine.export_adapters(), spec.model.lora, model, tmp_path / "adapter")
        sent = scaled(engine.export_adapters(), spec.model.lora.alpha / spec.model.lora.rank)
        return weights(engine) | {f"sent {name}": tensor.clone() for name, tensor in sent}

    merged = run_engines(4, {"peft": (spec, follow)})["peft"]
    config = json.loads((tmp_path / "adapter" / CONFIG).read_text())
    tensors = {n.removeprefix(PREFIX): t for n, t in load_file(tmp_path / "adapter" / WEIGHTS).items()}
    base, scale = load_file(model / "model.safetensors"), config["lora_alpha"] / config["r"]
    matrices = {name.removesuffix(".lora_A.weight") for name in tensors if name.endswith(".lora_A.weight")}
    assert {m.split(".")[-1] for m in matrices} == set(config["target_modules"]) and len(matrices) == 4 * 7
    for m in matrices:
        added = scale * tensors[f"{m}.lora_B.weight"].double() @ tensors[f"{m}.lora_A.weight"].double()
        assert torch.equal((base[f"{m}.weight"].double() + added).float(), merged[f"{m}.weight"]), m
        sent = merged[f"sent {m}.lora_B.weight"].double() @ merged[f"sent {m}.lora_A.weight"].double()
        assert torch.equal(sent, added), m


@pytest.mark.slow
@pytest.mark.parametrize("kind", extra_but(("qwen2", "qwen3_moe", "phi3"), ADAPTED))
def test_the_peft_library_makes_the_policy_of_the_base_and_the_directory(
    megatron: None, tmp_path: Path, kind: str
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from rljob_trainer.megatron.huggingface import write_adapters

    model = make_model(tmp_path / "model", kind, tied=kind in TIED)
    spec, batches = with_adapters_of(model, kind), [make_batch(model, step) for step in (1, 2)]

    def follow(engine: Any) -> list[torch.Tensor]:
        train_step(engine, batches[0])
        write_adapters(engine.export_adapters(), spec.model.lora, model, tmp_path / "adapter")
        return list(engine.log_probs(batches[1].samples))

    ours = run_engines(1, {"peft": (spec, follow)})["peft"]
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    theirs = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    expected = [response_log_probs(theirs, *texts(t), temperature=1.0) for t in batches[1].samples]
    assert max(float((torch.tensor(e) - o).abs().max()) for e, o in zip(expected, ours, strict=True)) < 5e-6
    with theirs.disable_adapter():
        start = response_log_probs(theirs, *texts(batches[1].samples[0]), temperature=1.0)
    assert float((torch.tensor(start) - ours[0]).abs().max()) > 1e-3, "the adapters were read"


@pytest.mark.slow
def test_a_checkpoint_holds_adapters_alone_and_knows_their_base(
    model: Path, tmp_path: Path, batches: list[Batch]
) -> None:
    from megatron.core import dist_checkpointing

    def save(engine: Any) -> list[str]:
        train_step(engine, batches[0])
        write(engine, tmp_path / "adapters")
        found = dist_checkpointing.load_plain_tensors(str(tmp_path / "adapters"))
        return sorted(name for name, value in found.items() if isinstance(value, torch.Tensor))

    def refused(engine: Any) -> list[str]:
        with pytest.raises(ConfigurationError) as caught:
            engine.load(tmp_path / "adapters")
        return [caught.value.field, str(caught.value)]

    other = make_model(tmp_path / "other", seed=5)
    adapted = with_adapters(model)
    found = run_engines(
        1,
        {
            "save": (adapted, save),
            "another base": (with_adapters(other), refused),
            "another alpha": (changed(adapted, model={"lora": LORA | {"alpha": 16}}), refused),
            "none": (changed(adapted, model={"lora": None}), refused),
        },
    )
    held = found.pop("save")
    assert held and all(".adapter." in name for name in held)
    assert {name: field for name, (field, _) in found.items()} == {
        "another base": "spec.model.path",
        "another alpha": "spec.model.lora",
        "none": "spec.model.lora",
    }
    assert f"are not those of {model}" in found["another base"][1]
    assert "have rank 4, alpha 8, targets linear_qkv linear_proj linear_fc1 linear_fc2" in found["another alpha"][1]
