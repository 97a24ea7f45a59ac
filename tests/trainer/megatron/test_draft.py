"""An EAGLE-3 draft: trained by a loss of its own on what the policy computes, while the policy is trained as it is without a draft."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from extra import extra_but
from rljob_api.spec import RLJobSpec
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.trajectory import Trajectory
from trainer.drafts import make_draft
from trainer.megatron.gang import changed, run_engines
from trainer.megatron.models import job, load_model, make_batch, make_model, ranks_of, train_step
from trainer.megatron.test_checkpoint import write
from trainer.ranks import run_ranks

pytestmark = pytest.mark.slow

WIDTH, VOCABULARY, OWN = 64, 160, 96
SEEN = [1, 2, 4]
"""Of the policy's four layers: the last is what the fourth gives."""
GUESSES = 3


@pytest.fixture(scope="module")
def policy(megatron: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("policy") / "model", "qwen3", tied=False)


@pytest.fixture(scope="module")
def draft(policy: Path) -> Path:
    return make_draft(policy.with_name("draft"), WIDTH, VOCABULARY, SEEN, OWN)


def training(policy: Path, draft: Path | None, rate: float | None = 1e-2, **layout: Any) -> RLJobSpec:
    """Two optimizer steps, with gradients that are clipped."""
    spec = job(policy, optimizer={"learningRate": 1e-3, "clipGrad": 0.3}, miniBatches=2, **layout)
    if not draft:
        return spec
    speculation = {"method": "eagle3", "draft": str(draft), "tokens": GUESSES, "learningRate": rate}
    return changed(spec, rollout={"speculation": speculation})


def weights(engine: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in engine.draft.in_files()}


def test_its_loss_and_gradient_are_those_of_the_formula(policy: Path, draft: Path) -> None:
    batch = make_batch(policy)
    loss, right, gradients = formula(policy, draft, batch)
    spec = changed(training(policy, draft), train={"optimizer": {"clipGrad": 0}})

    def on_a_rank() -> Any:
        from rljob_trainer.megatron.engine import Engine
        from rljob_trainer.megatron.step import MiniBatch

        engine = Engine(spec, lambda: None)
        step = engine.measure(batch)
        micro_batches = list(step.micro_batches())
        assert len(micro_batches) < len(batch.samples), "several samples are packed"

        def learn(micro: Any, raw: torch.Tensor) -> Any:
            engine.draft.learn(micro, raw[0])
            return raw.sum() * 0.0, None

        with engine.draft.listening():
            engine._policy.passes.backward(MiniBatch(micro_batches, [0], 1), learn)
        engine.draft.clip()
        own = {name: p.grad.clone() for name, p in engine.draft._draft.named_parameters()}
        policys = max(float(p.main_grad.abs().max()) for p in engine._policy.modules[0].parameters())
        return engine.draft.metrics(), own, policys

    metrics, own, policys = run_ranks(1, on_a_rank)[0]
    assert metrics["train/draft_loss"] == pytest.approx(loss, abs=1e-5)
    assert metrics["train/draft_accuracy"] == pytest.approx(right)
    assert policys == 0.0
    assert own.keys() == gradients.keys()
    for name, gradient in own.items():
        assert gradient.abs().max() > 0
        torch.testing.assert_close(gradient, gradients[name], atol=1e-6, rtol=1e-4)


class Plain(torch.nn.Module):
    """EAGLE-3 as a server runs it: one response, a guess at a time."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        given = json.loads((directory / "config.json").read_text())
        config = LlamaConfig(**given)
        config._attn_implementation = "eager"
        self.w = torch.nn.ParameterDict()
        tensors = load_file(directory / "model.safetensors")
        self.ids = torch.arange(len(tensors["d2t"])) + tensors["d2t"]
        for name in ("fc", "lm_head", *(f"midlayer.self_attn.{x}_proj" for x in "qkvo")):
            self.w[name.replace(".", "/")] = tensors[f"{name}.weight"]
        norm = lambda: LlamaRMSNorm(WIDTH, config.rms_norm_eps)  # noqa: E731
        self.norms = torch.nn.ModuleDict(
            {n: norm() for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm", "norm")}
        )
        for name, module in self.norms.items():
            module.weight.data = tensors[f"{name}.weight" if name == "norm" else f"midlayer.{name}.weight"].clone()
        self.mlp = LlamaMLP(config)
        self.mlp.load_state_dict(
            {k.removeprefix("midlayer.mlp."): v for k, v in tensors.items() if k.startswith("midlayer.mlp.")}
        )
        self.rotary = LlamaRotaryEmbedding(config)

    def hidden(self, following: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Of the last of n rows, by causal attention to all."""
        n = len(features)
        joined = torch.cat((self.norms["input_layernorm"](following), self.norms["hidden_norm"](features)), -1)[None]
        q, k, v = (
            torch.nn.functional.linear(joined, self.w[f"midlayer/self_attn/{x}_proj"])
            .view(1, n, -1, 32)
            .transpose(1, 2)
            for x in "qkv"
        )
        q, k = apply_rotary_pos_emb(q, k, *self.rotary(joined, torch.arange(n)[None]))
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        found = torch.nn.functional.linear(found.transpose(1, 2).reshape(n, -1), self.w["midlayer/self_attn/o_proj"])
        hidden = features[-1] + found[-1]
        made: torch.Tensor = hidden + self.mlp(self.norms["post_attention_layernorm"](hidden))
        return made

    def guesses(self, seen: torch.Tensor, following: torch.Tensor, last: int) -> list[torch.Tensor]:
        """Logits of one guess after another behind row `last`, whose own hidden states stand for the policy's."""
        features, found = torch.nn.functional.linear(seen[: last + 1], self.w["fc"]), []
        for step in range(min(GUESSES, len(seen) - last - 1)):
            hidden = self.hidden(following[: last + 1 + step], features)
            found.append(torch.nn.functional.linear(self.norms["norm"](hidden), self.w["lm_head"]))
            features = torch.cat((features, hidden[None]))
        return found

    def gradients(self) -> dict[str, torch.Tensor]:
        own = {f"{name.replace('/', '.')}.weight": p.grad for name, p in self.w.items()}
        own |= {
            f"{'' if name == 'norm' else 'midlayer.'}{name}.weight": m.weight.grad for name, m in self.norms.items()
        }
        return own | {f"midlayer.mlp.{name}": p.grad for name, p in self.mlp.named_parameters()}


def formula(policy: Path, draft: Path, batch: Batch) -> tuple[float, float, dict[str, torch.Tensor]]:
    """Cross entropy and accuracy of first guesses, and the gradient of the loss of all: one sample, and one response in it, after another."""
    model, plain = load_model(policy), Plain(draft)
    total, first, right, count = torch.zeros(()), 0.0, 0, 0
    for sample in batch.samples:
        tokens, learnt = torch.from_numpy(sample.tokens.astype("int64")), learnt_places(sample)
        with torch.no_grad():
            seen, logits = read(model, tokens)
            following = model.get_input_embeddings()(tokens[1:])
        for last in range(len(seen)):
            for step, guess in enumerate(plain.guesses(seen, following, last)):
                place = last + 1 + step
                if place not in learnt:
                    continue
                wanted = logits[place][plain.ids].softmax(-1)
                loss = -(wanted * guess.log_softmax(-1)).sum() * (int(logits[place].argmax()) in plain.ids.tolist())
                total = total + 0.8**step * loss
                if step == 0:
                    first, count = first + float(loss.detach()), count + 1
                    right += int(plain.ids[guess.argmax()] == tokens[place + 1])
    (total / count).backward()
    return first / count, right / count, plain.gradients()


def learnt_places(sample: Trajectory) -> set[int]:
    """Of tokens that predict one in the loss."""
    return {sample.prompt_length - 1 + i for i, learnt in enumerate(sample.response_mask) if learnt}


def read(model: Any, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states [n - 1, layers x hidden] that the draft reads, and logits [n - 1, vocabulary]."""
    found: dict[int, torch.Tensor] = {}
    keep = lambda i: lambda _, given: found.__setitem__(i, given[0][0])  # noqa: E731
    layers = [*model.model.layers, model.model.norm]
    hooks = [layers[i].register_forward_pre_hook(keep(i)) for i in SEEN]
    logits = model(tokens[None, :-1]).logits[0]
    for hook in hooks:
        hook.remove()
    return torch.cat([found[i] for i in SEEN], -1), logits


def test_the_policy_is_trained_bit_by_bit_as_without_the_draft(policy: Path, draft: Path) -> None:
    batch = make_batch(policy)

    def trained(engine: Any) -> Any:
        metrics = train_step(engine, batch)
        named = {name: tensor.clone() for name, tensor in engine.export()}
        return metrics, named, weights(engine) if engine.draft else {}

    cases = {"with": training(policy, draft), "without": training(policy, None)}
    found = run_engines(1, {name: (spec, trained) for name, spec in cases.items()})
    (metrics, both, guessing), (alone_metrics, alone, _) = found["with"], found["without"]
    assert all(torch.equal(tensor, both[name]) for name, tensor in alone.items())
    assert metrics.keys() - alone_metrics.keys() == {"train/draft_loss", "train/draft_accuracy"}
    assert all(metrics[name] == value for name, value in alone_metrics.items() if name.startswith("train"))
    before = load_file(draft / "model.safetensors")
    assert {name for name in before if torch.equal(before[name], guessing[name])} == {"d2t", "t2d"}


LAYOUTS = {
    "tensor": {"tensor": 2},
    "data": {"data": 2},
    "both": {"tensor": 2, "data": 2},
    "recompute": {"trainer": {"nodes": 1, "recompute": {"granularity": "full"}}},
}


@pytest.mark.parametrize("layout", extra_but(("tensor", "data"), list(LAYOUTS)))
def test_every_layout_trains_it_as_one_rank_does(policy: Path, draft: Path, layout: str) -> None:
    batch = make_batch(policy)

    def trained(engine: Any) -> Any:
        return train_step(engine, batch), weights(engine)

    rate = 1e-3  # Adam makes rounding as large as the rate where a gradient is nearly 0
    alone, own = run_engines(1, {"one": (training(policy, draft, rate), trained)})["one"]
    spec = training(policy, draft, rate, **LAYOUTS[layout])
    metrics, found = run_engines(ranks_of(spec), {"several": (spec, trained)})["several"]
    for name in ("train/draft_loss", "train/draft_accuracy"):
        assert metrics[name] == pytest.approx(alone[name], rel=1e-5)
    for name, tensor in own.items():
        torch.testing.assert_close(found[name], tensor, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("layout", [{}, {"tensor": 2}], ids=str)
def test_a_checkpoint_continues_it_bit_by_bit(
    policy: Path, draft: Path, tmp_path: Path, layout: dict[str, int]
) -> None:
    batches, moves_little = [make_batch(policy, step) for step in (1, 2)], {"optimizer": {"learningRate": 1e-6}}
    spec = changed(training(policy, draft, **layout), train=moves_little)

    def whole(engine: Any) -> Any:
        train_step(engine, batches[0])
        write(engine, tmp_path / "saved")
        return train_step(engine, batches[1]), weights(engine)

    def resumed(engine: Any) -> Any:
        engine.load(tmp_path / "saved")
        return train_step(engine, batches[1]), weights(engine)

    cases = {"whole": (spec, whole), "resumed": (spec, resumed)}
    found = run_engines(ranks_of(spec), cases)
    assert found["whole"][0] == found["resumed"][0]
    assert all(torch.equal(t, found["resumed"][1][name]) for name, t in found["whole"][1].items())


def refused_load(saves: RLJobSpec, loads: RLJobSpec, directory: Path) -> str:
    """Why a job refuses the checkpoint of another one."""

    def refused(engine: Any) -> str:
        with pytest.raises(ConfigurationError) as raised:
            engine.load(directory)
        return str(raised.value)

    run_engines(1, {"saved": (saves, lambda engine: write(engine, directory))})
    return str(run_engines(1, {"refused": (loads, refused)})["refused"])


def test_a_checkpoint_without_a_draft_is_refused_where_one_is_trained(
    policy: Path, draft: Path, tmp_path: Path
) -> None:
    message = refused_load(training(policy, None), training(policy, draft), tmp_path / "saved")
    assert message.startswith("spec.rollout.speculation.learningRate = set: the checkpoint holds no draft")


def test_a_checkpoint_with_a_draft_is_refused_where_none_is_trained(policy: Path, draft: Path, tmp_path: Path) -> None:
    """Its manifest says what servers held with the draft."""
    message = refused_load(training(policy, draft), training(policy, None), tmp_path / "saved")
    assert message.startswith("spec.rollout.speculation.learningRate = unset: the checkpoint holds a draft")


def test_a_checkpoint_of_a_draft_with_other_tokens_is_refused(policy: Path, draft: Path, tmp_path: Path) -> None:
    other = make_draft(tmp_path / "other", WIDTH, VOCABULARY, [1, 2, 3], own=96, seed=4)
    message = refused_load(training(policy, draft), training(policy, other), tmp_path / "saved")
    assert message.startswith(f"spec.rollout.speculation.draft = {other}: the checkpoint's draft has other tokens")


def test_servers_get_it_with_the_policy_and_an_export_has_a_directory_of_it(
    policy: Path, draft: Path, tmp_path: Path
) -> None:
    spec = training(policy, draft, tensor=2)

    def on_a_rank() -> Any:
        from rljob_trainer.megatron.engine import Engine
        from rljob_trainer.megatron.huggingface import write_draft

        engine = Engine(spec, lambda: None)
        write_draft(engine.draft, tmp_path)
        phases = engine.export_served()
        sent = [[(n, t.clone()) for n, t in phase.tensors] for phase in phases]
        own = [pair for pairs, phase in zip(sent, phases, strict=True) if phase.sends for pair in pairs]
        return dict(own), sum(phase.bytes for phase in phases)

    (sent, size), (others, none) = run_ranks(2, on_a_rank)
    files = load_file(draft / "model.safetensors")
    assert not others and not none
    assert {n.removeprefix("draft.") for n in sent if n.startswith("draft.")} == files.keys() - {"t2d"}
    assert {n for n in sent if not n.startswith("draft.")} == load_file(policy / "model.safetensors").keys()
    assert all(torch.equal(sent[f"draft.{n}"], t) for n, t in files.items() if n != "t2d")
    assert size == sum(tensor.nbytes for tensor in sent.values())
    assert (tmp_path / "draft" / "config.json").read_bytes() == (draft / "config.json").read_bytes()
    written = load_file(tmp_path / "draft" / "model.safetensors")
    assert written.keys() == files.keys() and all(torch.equal(written[n], t) for n, t in files.items())


def test_a_gradient_that_is_not_finite_prevents_the_update_and_names_the_draft(policy: Path, draft: Path) -> None:
    batch = make_batch(policy)

    def broken(engine: Any) -> str:
        from rljob_trainer.megatron.optimizer import NonFiniteError

        engine.draft._draft.fc.weight.data[0, 0] = float("inf")
        with pytest.raises(NonFiniteError) as raised:
            train_step(engine, batch)
        return str(raised.value)

    assert run_engines(1, {"broken": (training(policy, draft), broken)}) == {
        "broken": "the norm of the gradient of the draft is nan"
    }


@pytest.mark.parametrize(
    ("config", "tensors", "problem"),
    [
        ({"norm_before_residual": True}, {}, "has norm_before_residual = True"),
        ({"num_hidden_layers": 2}, {}, "has num_hidden_layers = 2"),
        ({"num_hidden_layers": None}, {}, "has no num_hidden_layers"),
        ({}, {"d2t": torch.zeros(96, dtype=torch.int32)}, "d2t holds torch.int32"),
        ({"hidden_size": 32}, {}, "has hidden_size = 32, the policy's is 64"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, {}, "rotated by linear"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 5]}, {}, "inputs of layers [1, 2, 5], and the policy has 4"),
        ({}, {"embed_tokens.weight": torch.zeros(VOCABULARY, WIDTH)}, "its files have embed_tokens.weight"),
        ({}, {"norm.weight": None}, "its files lack norm.weight"),
        ({}, {"fc.weight": torch.zeros(WIDTH, WIDTH)}, "fc.weight has the shape [64, 64]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_draft_of_another_form_is_refused(
    draft: Path, tmp_path: Path, config: dict[str, Any], tensors: dict[str, Any], problem: str
) -> None:
    from rljob_trainer.megatron.draft.files import read as read_draft

    whole = load_file(draft / "model.safetensors") | tensors
    save_file({n: t for n, t in whole.items() if t is not None}, tmp_path / "model.safetensors")
    given = json.loads((draft / "config.json").read_text()) | config
    (tmp_path / "config.json").write_text(json.dumps({key: value for key, value in given.items() if value is not None}))
    with pytest.raises(ConfigurationError, match="spec.rollout.speculation.draft") as raised:
        read_draft(str(tmp_path), WIDTH, VOCABULARY, 4)
    assert problem in str(raised.value)
