"""An objective of one's own: the engine learns what it is given, also where environments wrote a part of a trajectory."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rljob_api.spec.agent import AgentSpec
from rljob_trainer.algorithm.advantages import estimate, reinforce
from rljob_trainer.algorithm.episodes import Episodes
from rljob_trainer.algorithm.objective import MeasuredStep, MetricAccumulator, Objective, Output, Targets, TokenLoss
from rljob_trainer.algorithm.tokens import Sequences
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.trajectory import Segment, Trajectory
from trainer.megatron.gang import column, of_all_rows, run_engines, weights
from trainer.megatron.models import job, make_batch, train_step

pytestmark = pytest.mark.slow

STEPS = 2
RATE, EPSILON = 1e-3, 1e-6
LAYOUTS: dict[str, dict[str, int]] = {
    "one rank": {},
    "TP2 DP2": {"tensor": 2},
    "CP2 PP2": {"context": 2, "pipeline": 2},
}


class WeightedCrossEntropy(Objective):
    """Supervised fine-tuning: -reward x log-probability, averaged over the tokens that the policy wrote."""

    prefix = "sft"
    token_metrics = ("cross_entropy",)

    def loss_weights(self, counts: Sequence[int]) -> list[float]:
        return [1 / sum(counts)] * len(counts)

    def advantages(self, step: MeasuredStep) -> Targets:
        columns = step.batch.columns
        lengths, rewards = columns.response_length.tolist(), columns.reward.tolist()
        return Targets({"weight": {row: torch.full((lengths[row],), rewards[row]) for row in step.rows}})

    def loss(self, columns: Mapping[str, torch.Tensor], sequences: Sequences, output: Output) -> TokenLoss:
        log_probs = output.predictions(temperature=1.0).log_probs
        loss = -columns["weight"] * log_probs * columns["mask"]
        return TokenLoss(loss, columns["mask"], {"cross_entropy": -log_probs.detach() * columns["mask"]})

    def metrics(self, sums: MetricAccumulator) -> dict[str, float]:
        return {"sft/cross_entropy": sums.mean("cross_entropy")}


def with_tool_output(trajectory: Trajectory) -> Trajectory:
    """What the policy wrote is cut in the middle by two tokens of an environment."""
    given, response = trajectory.segments
    assert response.log_probs is not None
    half = len(response.tokens) // 2
    parts = [
        replace(response, tokens=response.tokens[cut], log_probs=response.log_probs[cut])
        for cut in (slice(0, half), slice(half, None))
    ]
    tool = Segment(np.array([7, 11], np.int32), "environment")
    return replace(trajectory, segments=tuple(s for s in (given, parts[0], tool, parts[1]) if len(s.tokens)))


@pytest.fixture(scope="module")
def batches(model: Path) -> list[Batch]:
    """Rewards differ, and every second trajectory has a gap in its loss mask."""
    made = []
    for step in range(1, STEPS + 1):
        plain = make_batch(model, step).samples
        cut = [with_tool_output(t) if i % 2 else t for i, t in enumerate(plain)]
        made.append(Batch.of(step, [replace(t, reward=0.5 + i % 3) for i, t in enumerate(cut)], {}))
    return made


def oracle(model: Path, batches: Sequence[Batch]) -> tuple[list[float], list[float], dict[str, torch.Tensor]]:
    """Losses, cross entropies and weights of transformers' model after torch's Adam."""
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    adam = torch.optim.AdamW(policy.parameters(), lr=RATE, eps=EPSILON, betas=(0.9, 0.95), weight_decay=0.0)
    losses, entropies = [], []
    for batch in batches:
        count = sum(int(t.loss_mask.sum()) for t in batch.samples)
        total, entropy = torch.zeros(()), torch.zeros(())
        for t in batch.samples:
            ids, mask = torch.from_numpy(t.tokens).long(), torch.from_numpy(t.loss_mask)[1:]
            log_probs = policy(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
            total = total - t.reward * log_probs[mask].sum() / count
            entropy = entropy - log_probs[mask].detach().sum() / count
        adam.zero_grad()
        total.backward()
        adam.step()
        losses.append(float(total.detach()))
        entropies.append(float(entropy))
    return losses, entropies, {name: p.detach() for name, p in policy.named_parameters()}


def test_an_objective_that_the_engine_does_not_know_learns_as_torch_does_in_every_layout(
    model: Path, batches: list[Batch]
) -> None:
    def learn(engine: Any) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
        return [train_step(engine, batch) for batch in batches], weights(engine)

    losses, entropies, expected = oracle(model, batches)
    optimizer = {"learningRate": RATE, "epsilon": EPSILON, "beta2": 0.95, "clipGrad": 0}
    for name, sizes in LAYOUTS.items():
        world = 4 if sizes else 1
        spec = job(model, trainer={"nodes": world, "parallelism": sizes}, algorithm={}, optimizer=optimizer)
        metrics, found = run_engines(world, {name: (spec, learn)}, lambda spec: WeightedCrossEntropy())[name]
        assert [m["sft/loss"] for m in metrics] == pytest.approx(losses, abs=2e-6)
        assert [m["sft/cross_entropy"] for m in metrics] == pytest.approx(entropies, abs=2e-6)
        assert not any(key.startswith("train_rollout/") for m in metrics for key in m)
        for key, weight in expected.items():
            assert float((found[key] - weight).abs().max()) < 2e-5, (name, key)


def test_what_an_environment_wrote_has_no_advantage_and_does_not_count_where_advantages_are_whitened(
    model: Path, batches: list[Batch]
) -> None:
    spec = job(model, data=2, algorithm={"advantage": "reinforce++"}, batches={"replay": "/r"})

    def advantages(engine: Any) -> list[torch.Tensor]:
        step = engine.measure(batches[0].part(engine.parts(batches[0].columns)[engine.data_rank]))
        return of_all_rows(step, engine.objective.advantages(step).columns["advantages"])

    found = run_engines(2, {"": (spec, advantages)})[""]
    masks = [torch.from_numpy(t.response_mask) for t in batches[0].samples]
    assert not all(mask.all() for mask in masks)
    assert not any(row[~mask].any() for row, mask in zip(found, masks, strict=True))
    chosen = torch.cat([row[mask] for row, mask in zip(found, masks, strict=True)])
    assert chosen.all()
    assert (float(chosen.mean()), float(chosen.var())) == pytest.approx((0.0, 1.0), abs=1e-6)


def of_an_agent(batch: Batch) -> Batch:
    """Two trajectories in a group, each in two branches; where a tool had its say, the turn before it earned something."""
    found = []
    for i, t in enumerate(batch.samples):
        first = next(n for n, s in enumerate(t.segments) if s.source == "policy")
        earned = replace(t.segments[first], reward=0.5) if len(t.segments) == 4 else t.segments[first]
        segments = (*t.segments[:first], earned, *t.segments[first + 1 :])
        found.append(replace(t, segments=segments, reward=float(i // 2 % 3), sample=i // 2 % 2, branch=i % 2))
    return Batch.of(batch.step, found, {})


def test_turns_earn_where_they_end_and_a_trajectory_of_branches_weighs_as_one(
    model: Path, batches: list[Batch]
) -> None:
    algorithm = {"advantage": "reinforce++", "gamma": 0.9, "aggregation": "sequenceMeanTokenMean"}
    spec = job(model, data=2, algorithm=algorithm, batches={"replay": "/r"})
    agent = AgentSpec.model_validate({"python": {"path": "/agent.py"}, "maxTurns": 4, "maxTokens": 64})
    spec = spec.model_copy(update={"rollout": spec.rollout.model_copy(update={"agent": agent})})
    batch = of_an_agent(batches[0])

    def measured(engine: Any) -> list[list[torch.Tensor]]:
        step = engine.measure(batch.part(engine.parts(batch.columns)[engine.data_rank]))
        step.put_loss_weights(engine.objective)
        found = engine.objective.advantages(step).columns["advantages"]
        return [of_all_rows(step, found), column(step, "train/loss_weights")]

    advantages, weights = run_engines(2, {"": (spec, measured)})[""]
    masks = [torch.from_numpy(t.response_mask).double() for t in batch.samples]
    turns = [torch.from_numpy(t.response_turn_rewards).double() for t in batch.samples]
    assert any(row.any() for row in turns)
    mask, counts = torch.cat(masks), torch.tensor([len(row) for row in masks])
    columns = batch.columns
    episodes = Episodes(
        *(torch.from_numpy(column) for column in (columns.reward, columns.group)),
        counts,
        mask,
        torch.zeros_like(mask),
        turn_rewards=torch.cat(turns),
        trajectories=torch.from_numpy(columns.trajectory),
    )
    expected = estimate(episodes, spec.algorithm, reinforce).advantages
    torch.testing.assert_close(torch.cat(advantages).double(), expected, rtol=1e-5, atol=1e-6)
    of_rows = [float((w * m).sum()) for w, m in zip(weights, masks, strict=True)]
    assert [a + b for a, b in zip(of_rows[::2], of_rows[1::2], strict=True)] == pytest.approx([1 / 8] * 8)
