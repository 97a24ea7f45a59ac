"""Sparse attention: what an indexer chooses, one query at a time in numpy, and what a pack of samples learns, against transformers' autograd."""

import gc
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extra import extra_but
from rljob_api.spec import RLJobSpec
from rljob_trainer.algorithm.cross_entropy import CrossEntropyObjective
from rljob_trainer.wire.batch import Batch
from trainer.megatron.gang import changed, equal, gradient, run_engines, weights
from trainer.megatron.models import job, load_model, make_batch, make_model, train_step
from trainer.megatron.test_supervised import given as demonstrated
from trainer.ranks import run_ranks

KINDS = ("glm_moe_dsa", "deepseek_v32", "glm_moe_dsa, shared")
LEARNS_NOTHING = {"optimizer": {"learningRate": 1e-30, "clipGrad": 0}}
SELECTIVE = {"granularity": "selective", "modules": ["core_attn", "moe"]}
CUTS: dict[str, dict[str, Any]] = {
    "small micro-batches": {"train": {"tokensPerMicroBatch": 40}},
    "tensor": {"trainer": {"nodes": 2, "parallelism": {"tensor": 2}}},
    "pipeline": {"trainer": {"nodes": 2, "parallelism": {"pipeline": 2}, "recompute": {"granularity": "full"}}},
    "context": {"trainer": {"nodes": 2, "parallelism": {"context": 2}}},
    "recomputed": {"trainer": {"nodes": 2, "parallelism": {"expert": 2}, "recompute": SELECTIVE}},
}


@settings(max_examples=30)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5), most=st.integers(1, 12), seed=st.integers(0, 99))
def test_a_query_attends_to_the_tokens_of_the_highest_scores_in_its_own_sequence(
    megatron: None, lengths: list[int], most: int, seed: int
) -> None:
    torch.manual_seed(seed)
    tokens, starts = sum(lengths), np.cumsum([0, *lengths])
    q, k, v = (torch.randn(tokens, 2, 8) for _ in range(3))
    asked, weighed, offered = torch.randn(tokens, 16, 4), torch.randn(tokens, 16), torch.randn(tokens, 4)
    out = _attend(q, k, v, (asked, weighed, offered), starts, most).view(tokens, 2, 8)
    scores = np.einsum(
        "th,ths->ts", weighed.double(), np.maximum(np.einsum("thd,sd->ths", asked.double(), offered.double()), 0)
    )
    for t in range(tokens):
        own = np.arange(max(s for s in starts if s <= t), t + 1)
        chosen = own[np.argsort(-scores[t, own])[:most]]
        logits = np.einsum("hd,shd->hs", q[t].double(), k[chosen].double()) / np.sqrt(8)
        shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        np.testing.assert_allclose(out[t].numpy(), np.einsum("hs,shd->hd", shares, v[chosen].double()), atol=1e-5)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, index: tuple[torch.Tensor, ...], starts: np.ndarray, most: int
) -> torch.Tensor:
    """As on one rank, in pieces of few queries."""
    from rljob_trainer.megatron.plain_torch import sparse_attention
    from rljob_trainer.megatron.plain_torch.pieces import padded_pieces

    batches, place = padded_pieces(tuple(map(int, starts)), 1, 0, q.device)
    found = sparse_attention.Index(*index)
    parts = [
        sparse_attention.attend_to_chosen(b, (q, k, v), sparse_attention.choices(b, found, most, at_once=64), 8**-0.5)
        for b in batches
    ]
    return torch.cat(parts).index_select(0, place)


def test_masks_are_never_given_to_cudnn(megatron: None) -> None:
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.slow
@pytest.mark.parametrize("kind", extra_but(["glm_moe_dsa, shared"], KINDS))
def test_a_pack_learns_what_autograd_says_of_each_sample_alone_in_any_cut(
    megatron: None, tmp_path: Path, kind: str
) -> None:
    source = make_model(tmp_path / "model", kind, tied=False)
    batch = Batch.of(1, [demonstrated(t) for t in make_batch(source, groups=4, samples=2).samples], {})
    loss, expected = _oracle(source, batch)

    def step(engine: Any) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        return train_step(engine, batch), gradient(engine)

    def spec(given: dict[str, Any]) -> RLJobSpec:
        sections: dict[str, Any] = {"train": {"tokensPerMicroBatch": 4096}} | given
        train = LEARNS_NOTHING | sections["train"]
        return changed(job(source), **sections | {"task": "sft", "algorithm": {}, "rollout": {}, "train": train})

    cuts = {"whole": {}} | CUTS
    for name, cut in cuts.items():
        world = cut.get("trainer", {}).get("nodes", 1)
        metrics, found = run_engines(world, {name: (spec(cut), step)}, lambda of: CrossEntropyObjective(of.sft))[name]
        assert metrics["train/loss"] == pytest.approx(loss, rel=1e-5)
        assert [n for n, g in expected.items() if (found[n] - g).abs().max() > 1e-3 * g.abs().max()] == [], name
        assert not any(found[n].any() for n in found if ".indexer." in n)
    assert all(g.any() for n, g in expected.items() if ".experts." not in n)


def _oracle(source: Path, batch: Batch) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of transformers' model, a sample at a time, by the names in files. The indexer has none."""
    policy, losses = load_model(source), []
    for sample in batch.samples:
        ids = torch.from_numpy(sample.tokens).long()
        said = policy(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        losses.append(-said[torch.from_numpy(sample.loss_mask)[1:]])
    loss = torch.cat(losses).mean()
    loss.backward()
    named = dict(policy.named_parameters())
    assert {".indexer." in n for n, p in named.items() if p.grad is None} == {True}
    return loss.item(), {n: g for name, p in named.items() if p.grad is not None for n, g in _as_in_files(name, p.grad)}


def _as_in_files(name: str, gradient: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    experts, _, matrix = name.rpartition(".experts.")
    if not experts:
        return [(name, gradient)]
    parts = [m.removesuffix("_proj") for m in (["gate_proj", "up_proj"] if matrix == "gate_up_proj" else [matrix])]
    return [
        (f"{experts}.experts.{i}.{part}_proj.weight", half)
        for i, one in enumerate(gradient)
        for part, half in zip(parts, one.chunk(len(parts)), strict=True)
    ]


@pytest.mark.slow
def test_attention_to_all_tokens_would_say_something_else(megatron: None, tmp_path: Path) -> None:
    """So that what is compared with transformers is sparse, and short samples need no indexer."""
    source = make_model(tmp_path / "model", "glm_moe_dsa", tied=False)
    batch = make_batch(source)
    config = source / "config.json"
    spec = job(source, tokensPerMicroBatch=4096, batches={"replay": "/r"})
    assert max(run_ranks(1, partial(_differences, spec, batch, False))[0]) < 1e-5
    config.write_text(json.dumps(json.loads(config.read_text()) | {"index_topk": 16}))
    assert max(run_ranks(1, partial(_differences, spec, batch, True))[0]) > 1e-3


OURS = ("indexer_types", "layer_types", "mlp_layer_types")
"""Keys that transformers writes, and published files do not have."""
PUBLISHED = {"moe_layer_freq": 1, "num_nextn_predict_layers": 1, "ep_size": 1, "pretraining_tp": 1}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["glm_moe_dsa", "deepseek_v32", "deepseek_v32, yarn"])
def test_directories_with_the_keys_of_published_ones_say_what_transformers_says(
    megatron: None, tmp_path: Path, kind: str
) -> None:
    """Also with rotations written as before transformers 5, as DeepSeek does."""
    source = make_model(tmp_path / "model", kind, tied=False)
    batch = make_batch(source)
    file = source / "config.json"
    config = {key: value for key, value in json.loads(file.read_text()).items() if key not in OURS} | PUBLISHED
    if kind != "glm_moe_dsa":
        rope = config.pop("rope_parameters")
        config["rope_theta"], named = rope.pop("rope_theta"), rope.pop("rope_type")
        config["rope_scaling"] = rope | {"type": named} if named != "default" else None
    file.write_text(json.dumps(config))
    spec = job(source, tokensPerMicroBatch=4096, batches={"replay": "/r"})
    assert max(run_ranks(1, partial(_differences, spec, batch, False))[0]) < 1e-5


def _differences(spec: RLJobSpec, batch: Batch, without_indexer: bool) -> list[float]:
    from rljob_trainer.megatron.engine import Engine
    from rljob_trainer.megatron.plain_torch.sparse_attention import SparseAttention

    engine = Engine(spec, lambda: None)
    for module in (m for chunk in engine._policy.modules for m in chunk.modules() if isinstance(m, SparseAttention)):
        if without_indexer:
            module.indexer = None
    asked = zip(engine.log_probs(batch.samples), batch.samples, strict=True)
    return [float((found - torch.from_numpy(s.response_log_probs.copy())).abs().max()) for found, s in asked]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "indexers"), [("glm_moe_dsa", 4), ("glm_moe_dsa, shared", 2)])
def test_training_leaves_indexers_bit_for_bit_and_keeps_no_choice_behind_a_pass(
    megatron: None, tmp_path: Path, kind: str, indexers: int
) -> None:
    source = make_model(tmp_path / "model", kind, tied=False)
    batch = make_batch(source)

    def steps(engine: Any) -> list[dict[str, torch.Tensor]]:
        from rljob_trainer.megatron.plain_torch.sparse_attention import Choice

        first = weights(engine)
        for _ in range(2):
            step = engine.measure(batch)
            engine.update(step, engine.objective.advantages(step))
            assert not [held for held in gc.get_objects() if isinstance(held, Choice)]
        learn = [(n, p.requires_grad) for m in engine._policy.modules for n, p in m.named_parameters()]
        assert all(learns != (".indexer." in n) for n, learns in learn)
        return [first, weights(engine)]

    spec = job(source, tokensPerMicroBatch=64, batches={"replay": "/r"})
    first, last = run_engines(1, {"": (spec, steps)})[""]
    frozen = [name for name in first if ".indexer." in name]
    assert len(frozen) == indexers * 5
    assert all(equal(first[n], last[n]) == (n in frozen) for n in first if ".experts." not in n and "bias" not in n)
