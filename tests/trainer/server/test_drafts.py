"""Servers that guess with an EAGLE-3 draft which is trained with the policy: every policy brings its draft."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from rljob_trainer.rank.weights.publisher import Publisher
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.rollout_client import Generation
from rljob_trainer.wire.trajectory import Trajectory
from rljob_trainer.wire.weights.transport import over_tcp
from trainer.megatron.gang import changed
from trainer.megatron.models import job, train_step
from trainer.ranks import run_ranks
from trainer.server import models
from trainer.server.servers import TOKEN, Server, spec
from trainer.server.test_speculation import (
    BOUND,
    SAMPLING,
    acceptance,
    deviation,
    drawn,
    eagle,
    log_prob_error,
    publish,
    repeating,
)

pytestmark = pytest.mark.slow

ROUNDS = 6
Drawn = list[tuple[tuple[int, ...], Generation]]


def guessing(draft: Path) -> dict[str, Any]:
    return {"method": "eagle3", "draft": str(draft), "tokens": 2, "learningRate": 5e-3}


def of_draft(path: Path) -> list[tuple[str, torch.Tensor]]:
    return [(f"draft.{n}", t) for n, t in load_file(path / "model.safetensors").items() if n != "t2d"]


def test_an_update_brings_its_draft_and_one_without_or_with_another_form_is_refused(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    policy, draft = repeating(tmp_path / "policy", 1), eagle(tmp_path / "draft", own=96)
    server = start(policy, job=spec(policy, speculation=guessing(draft)))
    whole, own = models.tensors(policy), of_draft(draft)
    publish(server, whole + own, 1)
    send = lambda given: Publisher(1, TOKEN, over_tcp("127.0.0.1")).publish(  # noqa: E731
        2, iter(given), [server.endpoint], lambda: None
    )
    without, cut = send(whole), send(whole + [(n, t[1:]) if n.endswith("fc.weight") else (n, t) for n, t in own])
    publish(server, whole + own, 3)
    found = drawn(server, 4)
    server.kill()
    assert not without.ok and not cut.ok
    assert log_prob_error(AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval(), found) < 1e-4


def test_a_draft_that_is_trained_online_guesses_more_of_a_policy_that_moves(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    policy, draft = repeating(tmp_path / "policy", 1), eagle(tmp_path / "draft", own=96)
    server = start(policy, job=spec(policy, speculation=guessing(draft)))
    optimizer = {"learningRate": 1e-4}
    trained = job(policy, temperature=SAMPLING.temperature, miniBatches=4, epochsPerStep=2, optimizer=optimizer)
    trained = changed(trained, rollout={"speculation": guessing(draft)}, train={"tokensPerMicroBatch": 1024})

    def on_a_rank() -> Any:
        from rljob_trainer.megatron import compat

        compat.install()
        from rljob_trainer.megatron.engine import Engine

        engine, lengths, shares = Engine(trained, lambda: None), [], []
        for step in range(1, ROUNDS + 1):
            publish(server, served(engine), step)
            found = drawn(server, 8)
            lengths.append(acceptance(found))
            shares.append(train_step(engine, learnt_from(found, step))["train/draft_accuracy"])
        publish(server, served(engine), ROUNDS + 1)
        return lengths, shares, {n: t.clone() for n, t in engine.export()}

    lengths, shares, exported = run_ranks(1, on_a_rank)[0]
    found, last = drawn(server, 64), AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval()
    server.kill()
    moved = load(last, exported)
    print("acceptance lengths", lengths, acceptance(found), "first guesses that were right", shares)
    assert moved > 0
    assert lengths[0] < 1.1, "a random draft guesses nothing"
    assert acceptance(found) > 1.4
    assert shares[-1] > shares[0] + 0.2
    assert log_prob_error(last, found) < 1e-4
    assert deviation(last, found, SAMPLING.temperature) < BOUND


def served(engine: Any) -> list[tuple[str, torch.Tensor]]:
    return [(name, tensor.clone()) for phase in engine.export_served() for name, tensor in phase.tensors]


def learnt_from(found: Drawn, step: int) -> Batch:
    """Responses to three prompts, of which those that end in an even token are rewarded."""
    each = len(found) // 3
    samples = [
        Trajectory.of_response(
            prompt,
            tuple(answer.tokens.tolist()),
            tuple(answer.log_probs.tolist()),
            policy_step=step - 1,
            prompt_index=i // each,
            group=i // each,
            sample=i % each,
            finish_reason="length",
            reward=float(answer.tokens[-1] % 2 == 0),
            data_source="test",
        )
        for i, (prompt, answer) in enumerate(found)
    ]
    return Batch.of(step, samples, {})


@torch.no_grad()
def load(policy: PreTrainedModel, tensors: dict[str, torch.Tensor]) -> float:
    """How far the policy has moved by what it gets."""
    own = policy.state_dict()
    moved = max(float((own[name] - tensor).abs().max()) for name, tensor in tensors.items())
    policy.load_state_dict(tensors)
    return moved
