"""The layer for multi-token prediction: trained by a loss of its own, while the policy is trained as it is without the layer."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from extra import extra_but
from rljob_api.families import FAMILIES
from rljob_api.spec import RLJobSpec
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.wire.batch import Batch
from trainer.megatron.models import (
    add_multi_token_layer,
    job,
    load_model,
    make_batch,
    make_model,
    ranks_of,
    train_step,
)
from trainer.megatron.test_checkpoint import write
from trainer.ranks import run_ranks

pytestmark = pytest.mark.slow

KINDS = [name for name, family in FAMILIES.items() if family.multi_token]
LAYER = "model.layers.4."
GIVEN = {"replay": "/batches"}
"""Of a job that generates nothing, which some families cannot on CPU."""
LAYOUTS = {
    "pipeline and tensor": {"pipeline": 2, "tensor": 2},
    "context": {"context": 2},
    "experts": {"expert": 2},
    "pieces": {"pipeline": 2, "virtualPipeline": 2},
}


def make(path: Path, kind: str = "glm4_moe", **made: bool) -> Path:
    return add_multi_token_layer(make_model(path, kind, tied=False), **made)


def training(source: Path, multi_token: bool = True, nodes: int = 1, **sizes: int) -> RLJobSpec:
    """Two optimizer steps, with gradients that are clipped."""
    trainer = {"nodes": nodes, "parallelism": sizes}
    optimizer = {"learningRate": 1e-3, "clipGrad": 0.3}
    spec = job(source, trainer=trainer, batches=GIVEN, miniBatches=2, optimizer=optimizer)
    return spec.model_copy(update={"model": spec.model.model_copy(update={"multi_token_prediction": multi_token})})


def trained(spec: RLJobSpec, batch: Batch) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """The metrics of a step, and what it makes of the model."""

    def on_a_rank() -> Any:
        from rljob_trainer.megatron.engine import Engine

        engine = Engine(spec, lambda: None)
        metrics = train_step(engine, batch)
        return metrics, {name: tensor.clone() for name, tensor in engine.export()}, _owned_names(engine)

    found = run_ranks(ranks_of(spec), on_a_rank)
    metrics, tensors, _ = found[0]
    names = [name for _, _, own in found for name in own]
    assert sorted(names) == sorted(tensors), "each tensor has one owner"
    return metrics, tensors


def _owned_names(engine: Any) -> list[str]:
    return [name for tensors, owns, _ in engine.export_owned() for name, _ in tensors if owns]


def test_the_policy_is_trained_bit_by_bit_as_without_the_layer(megatron: None, tmp_path: Path) -> None:
    source = make(tmp_path / "model")
    batch = make_batch(source)
    metrics, alone = trained(training(source, multi_token=False), batch)
    more, both = trained(training(source), batch)
    assert alone and all(torch.equal(tensor, both[name]) for name, tensor in alone.items())
    own = {"train/mtp_loss", "train/mtp_accuracy"}
    assert more.keys() - metrics.keys() == own
    assert {k: v for k, v in more.items() if k.startswith("train") and k not in own} == {
        k: v for k, v in metrics.items() if k.startswith("train")
    }
    before = load_file(source / "model.safetensors")
    still = {name for name in both.keys() - alone.keys() if torch.equal(both[name], before[name])}
    assert not [name for name in still if not (name.endswith("e_score_correction_bias") or ".experts." in name)]


@pytest.mark.parametrize("kind", KINDS)
def test_its_loss_and_gradient_are_those_of_the_formula_and_none_reaches_the_policy(
    megatron: None, tmp_path: Path, kind: str
) -> None:
    source = make(tmp_path / "model", kind)
    batch = make_batch(source)
    loss, gradients = formula(source, batch)
    spec = training(source)

    def on_a_rank() -> tuple[float, dict[str, torch.Tensor], float]:
        from rljob_trainer.megatron.engine import Engine
        from rljob_trainer.megatron.optimizer import zero_gradients
        from rljob_trainer.megatron.step import MiniBatch

        engine = Engine(spec, lambda: None)
        step, network = engine.measure(batch), engine._policy
        zero_gradients(network.chunks, network.optimizer)
        whole = MiniBatch(list(step.micro_batches()), [0], targets_of(batch))
        network.passes.backward(whole, lambda micro, raw: (raw.sum() * 0.0, None))
        module = network.modules[0]
        layer = module.mtp.layers[0]
        found = {
            "eh_proj.weight": layer.eh_proj.weight,
            "enorm.weight": layer.enorm.weight,
            "hnorm.weight": layer.hnorm.weight,
            "shared_head.norm.weight": layer.final_layernorm.weight,
            "self_attn.o_proj.weight": layer.mtp_model_layer.self_attention.linear_proj.weight,
            "mlp.gate.weight": layer.mtp_model_layer.mlp.router.weight,
        }
        others = max(float(p.main_grad.abs().max()) for n, p in module.named_parameters() if not n.startswith("mtp."))
        own = {name: parameter.main_grad.clone() for name, parameter in found.items()}
        return network.guess_metrics()["train/mtp_loss"], own, others

    measured, own, others = run_ranks(1, on_a_rank)[0]
    assert measured == pytest.approx(loss, abs=1e-5)
    assert others == 0.0
    for name, gradient in own.items():
        torch.testing.assert_close(gradient, gradients[name], atol=1e-6, rtol=1e-4)


def targets_of(batch: Batch) -> int:
    return sum(max(0, len(s.tokens) - 2) for s in batch.samples)


def formula(source: Path, batch: Batch) -> tuple[float, dict[str, torch.Tensor]]:
    """Mean cross entropy by transformers' layers, one sequence after the other, and its gradient."""
    policy, tensors = load_model(source), load_file(source / "model.safetensors")
    layer = type(policy.model.layers[-1])(policy.config, 3).float()
    names = {k.removeprefix(LAYER): v for k, v in tensors.items() if k.startswith(LAYER)}
    loaded = layer.load_state_dict(in_layer(names), strict=False)
    assert not loaded.missing_keys
    norm_cls = type(policy.model.norm)
    enorm, hnorm, last = (norm_cls(policy.config.hidden_size, policy.config.rms_norm_eps) for _ in range(3))
    project = torch.nn.Linear(2 * policy.config.hidden_size, policy.config.hidden_size, bias=False)
    own = {"enorm.weight": enorm.weight, "hnorm.weight": hnorm.weight, "shared_head.norm.weight": last.weight}
    own |= {"eh_proj.weight": project.weight}
    for name, parameter in own.items():
        parameter.data = names[name].clone()
    total = torch.zeros(())
    for sample in batch.samples:
        tokens = torch.from_numpy(sample.tokens.astype("int64"))[None]
        with torch.no_grad():
            hidden = policy.model(tokens[:, :-1]).last_hidden_state
            following = policy.model.embed_tokens(tokens[:, 1:])
            places = torch.arange(hidden.shape[1])[None]
            rotation = policy.model.rotary_emb(hidden, places)
        joined = project(torch.cat((enorm(following), hnorm(hidden)), -1))
        made = layer(joined, position_embeddings=rotation, position_ids=places, attention_mask=causal(joined.shape[1]))
        logits = policy.lm_head(last(made[0] if isinstance(made, tuple) else made))
        total = total + torch.nn.functional.cross_entropy(logits[0, :-1], tokens[0, 2:], reduction="sum")
    mean = total / targets_of(batch)
    mean.backward()
    further = {"self_attn.o_proj.weight": layer.self_attn.o_proj.weight, "mlp.gate.weight": layer.mlp.gate.weight}
    return float(mean.detach()), {name: p.grad for name, p in (own | further).items() if p.grad is not None}


def causal(length: int) -> torch.Tensor:
    return torch.full((length, length), float("-inf")).triu(1)[None, None]


def in_layer(names: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of files as transformers' layer has them: its experts in one."""
    experts = sorted(
        {int(n.split(".")[2]) for n in names if n.startswith("mlp.experts.") and n.split(".")[2].isdigit()}
    )
    if not experts:
        return names
    of = lambda kind, i: names[f"mlp.experts.{i}.{kind}_proj.weight"]  # noqa: E731
    joined = {
        "mlp.experts.gate_up_proj": torch.stack([torch.cat((of("gate", i), of("up", i))) for i in experts]),
        "mlp.experts.down_proj": torch.stack([of("down", i) for i in experts]),
    }
    return names | joined


def test_an_update_that_the_layer_alone_prevents_names_it(megatron: None, tmp_path: Path) -> None:
    source = make(tmp_path / "model")
    batch, spec = make_batch(source), training(source)

    def on_a_rank() -> str:
        from rljob_trainer.megatron.engine import Engine
        from rljob_trainer.megatron.optimizer import NonFiniteError

        engine = Engine(spec, lambda: None)
        engine._policy.modules[0].mtp.layers[0].eh_proj.weight.data[0, 0] = float("inf")
        with pytest.raises(NonFiniteError) as raised:
            train_step(engine, batch)
        return str(raised.value)

    assert run_ranks(1, on_a_rank) == ["the norm of the gradient of the layer for multi-token prediction is nan"]


def test_a_reference_without_the_layer_is_the_policy_without_it_on_every_stage(megatron: None, tmp_path: Path) -> None:
    source, other = make(tmp_path / "model"), make_model(tmp_path / "other", "glm4_moe", tied=False, seed=7)
    batch = make_batch(source)

    def on_a_rank(spec: RLJobSpec) -> float:
        from rljob_trainer.megatron.engine import Engine

        return train_step(Engine(spec, lambda: None), batch)["train/kl"]

    def penalty(multi_token: bool, pipeline: int) -> float:
        spec = training(source, multi_token, pipeline, pipeline=pipeline)
        named = spec.reference.model_copy(update={"path": str(other)})
        return run_ranks(pipeline, partial(on_a_rank, spec.model_copy(update={"reference": named})))[0]

    expected = penalty(False, 1)
    assert expected > 0
    for pipeline in (1, 2):
        assert penalty(True, pipeline) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_what_goes_in_comes_out_without_the_copies_of_what_it_shares(megatron: None, tmp_path: Path, kind: str) -> None:
    source = make(tmp_path / "model", kind, copies=True)
    spec = training(source)

    def on_a_rank() -> None:
        from rljob_trainer.megatron.engine import Engine
        from rljob_trainer.megatron.huggingface import write_hugging_face

        write_hugging_face(Engine(spec, lambda: None), source, tmp_path / "out")

    run_ranks(1, on_a_rank)
    given, made = (load_file(path / "model.safetensors") for path in (source, tmp_path / "out"))
    copies = {f"{LAYER}embed_tokens.weight", f"{LAYER}shared_head.head.weight"}
    assert given.keys() - made.keys() == copies
    assert made.keys() <= given.keys()
    assert all(torch.equal(tensor, given[name]) for name, tensor in made.items())
    assert json.loads((tmp_path / "out/config.json").read_text())["num_nextn_predict_layers"] == 1


@pytest.mark.parametrize("name", extra_but(("pipeline and tensor",), LAYOUTS))
def test_every_layout_trains_it_as_one_rank_does(megatron: None, tmp_path: Path, name: str) -> None:
    source = make(tmp_path / "model")
    batch, sizes = make_batch(source), LAYOUTS[name]
    one, tensors = trained(training(source), batch)
    many, found = trained(training(source, nodes=4 if "tensor" in sizes else 2, **sizes), batch)
    for metric in ("train/mtp_loss", "train/mtp_accuracy", "train/grad_norm"):
        assert many[metric] == pytest.approx(one[metric], rel=1e-5)
    assert found.keys() == tensors.keys()
    for key, tensor in tensors.items():
        torch.testing.assert_close(found[key], tensor, atol=3e-4, rtol=0)


def test_a_checkpoint_has_its_weights_and_moments(megatron: None, tmp_path: Path) -> None:
    source = make(tmp_path / "model")
    spec, batches = training(source), [make_batch(source, step) for step in (1, 2)]

    def on_a_rank(resumes: bool) -> dict[str, torch.Tensor]:
        from rljob_trainer.megatron.engine import Engine

        engine = Engine(spec, lambda: None)
        if resumes:
            engine.load(tmp_path / "saved")
        else:
            train_step(engine, batches[0])
            write(engine, tmp_path / "saved")
        train_step(engine, batches[1])
        return {name: tensor.clone() for name, tensor in engine.export()}

    through, resumed = (run_ranks(1, partial(on_a_rank, resumes))[0] for resumes in (False, True))
    assert any(name.startswith(LAYER) for name in through)
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in through.items())


@pytest.mark.parametrize("saves", [True, False])
def test_a_checkpoint_is_refused_where_only_one_of_both_has_the_layer(
    megatron: None, tmp_path: Path, saves: bool
) -> None:
    source = make(tmp_path / "model")

    def on_a_rank(has: bool) -> str:
        from rljob_trainer.megatron.engine import Engine

        engine = Engine(training(source, has), lambda: None)
        if has == saves:
            write(engine, tmp_path / "saved")
            return ""
        with pytest.raises(ConfigurationError) as raised:
            engine.load(tmp_path / "saved")
        return str(raised.value)

    _, said = (run_ranks(1, partial(on_a_rank, has))[0] for has in (saves, not saves))
    holds = "a" if saves else "no"
    assert f"the checkpoint holds {holds} layer for multi-token prediction; change it back" in said
