"""Each field of a family's configuration, in other values that transformers computes with: the trainer says what transformers says, or refuses it. A
field that nobody reads on the way would be trained wrongly in silence."""

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from rljob_api.families import has_latent_attention
from rljob_api.spec import RLJobSpec
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.wire.trajectory import Trajectory
from trainer.megatron.config_fields import changes
from trainer.megatron.kinds import KINDS, TIED, make_config
from trainer.megatron.models import job, random_model, turn_experts
from trainer.ranks import run_ranks

SPREAD = 0.15
"""Of random weights. With transformers' 0.02 attention is nearly even, and what rotates or caps its scores hardly shows."""
DRAW = random.Random(3)
SEQUENCES = [tuple(DRAW.randrange(4, 120) for _ in range(length)) for length in (24, 13)]
"""Both are longer than any window."""
ROUNDING = 1e-4
"""Of a log-probability, at most. A field with less effect cannot be distinguished from it."""
IN_TEST = ("gemma3_text",)
"""In `make test`. Half a minute each."""
OF_LATENTS = "rms_norm_eps"
"""transformers has 1e-6 in the norms of latents whatever it says; trainer and vLLM follow it: docs/models.md."""


WITHOUT_EFFECT = (
    "hf_model_id",
    "hf_config",
    "text_config",
    "vision_config",
    "generation_config",
    "seq_length",
    "attention_dropout",
)
"""Of megatron's configuration."""


class Subject(NamedTuple):
    """What transformers computes with a configuration."""

    model: Any
    said: list[torch.Tensor]
    """Log-probabilities of SEQUENCES."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", [k if k in IN_TEST else pytest.param(k, marks=pytest.mark.extra) for k in KINDS])
def test_a_field_is_followed_or_refused_or_changes_nothing(megatron: None, tmp_path: Path, kind: str) -> None:
    usual = make_config(kind, tied=kind in TIED)
    reference = subject(usual, wide(usual.to_dict()))
    assert reference
    known = settings(saved(reference.model, tmp_path / "usual", kind))
    compared, wrong, latent = 0, [], has_latent_attention(usual.to_dict())
    for number, change in enumerate(changes(wide(usual.to_dict()))):
        other = subject(usual, change.config, reference.model.state_dict())
        if not other:
            continue
        effect, directory = difference(other.said, reference.said), saved(other.model, tmp_path / str(number), kind)
        if effect < 2 * ROUNDING and settings(directory) in (None, known):
            continue
        compared += 1
        found = trained(directory)
        error = difference(found, other.said) if found else 0.0
        if error > ROUNDING and not (latent and change.name.startswith(OF_LATENTS)):
            wrong.append(f"{change.name}: off by {error:.1e}, where it changes transformers by {effect:.1e}")
    assert compared > 5
    assert wrong == []


def wide(config: dict[str, Any]) -> dict[str, Any]:
    """With larger weights, in sections too."""
    sections = {key: wide(value) for key, value in config.items() if key == "text_config"}
    return config | sections | {"initializer_range": SPREAD}


def subject(usual: Any, config: Mapping[str, Any], weights: dict[str, Any] | None = None) -> Subject | None:
    """None: transformers refuses it, or has weights of other shapes that are its own. `weights`: instead of random ones."""
    try:
        model = random_model(type(usual)(**config), 0).eval()
        if weights:
            model.load_state_dict(weights, strict=False)  # raises for other shapes
        return Subject(model, [log_probs(model, tokens) for tokens in SEQUENCES])
    except Exception:
        return None


@torch.no_grad()
def log_probs(model: Any, tokens: tuple[int, ...]) -> torch.Tensor:
    """Of all tokens but the first."""
    ids = torch.tensor([tokens])
    return model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]


def saved(model: Any, directory: Path, kind: str) -> Path:
    model.save_pretrained(directory)
    if kind == "qwen3_vl_moe":
        turn_experts(directory)
    return directory


def settings(directory: Path) -> dict[str, str] | None:
    """What megatron's configuration says of a model, without what no log-probability depends on; None: it is refused."""
    from rljob_trainer.megatron.provider import open_bridge

    try:
        provider = open_bridge(training(directory)).to_megatron_provider(load_weights=False)
    except ConfigurationError:
        return None
    return {key: repr(value) for key, value in vars(provider).items() if key not in WITHOUT_EFFECT}


def training(directory: Path) -> RLJobSpec:
    return job(directory, tokensPerMicroBatch=4096, batches={"replay": "/batches"})


def trained(directory: Path) -> list[torch.Tensor] | None:
    """The trainer's log-probabilities of SEQUENCES; None: it refuses the model."""
    spec = training(directory)

    def on_a_rank() -> list[torch.Tensor] | None:
        from rljob_trainer.megatron.engine import Engine

        try:
            return list(Engine(spec, lambda: None).log_probs([*samples()]))
        except ConfigurationError:
            return None

    return run_ranks(1, on_a_rank)[0]


def samples() -> Iterator[Trajectory]:
    """One of each of SEQUENCES, whose prompt is its first token."""
    for number, tokens in enumerate(SEQUENCES):
        written = {"policy_step": 0, "prompt_index": number, "group": number, "sample": 0, "data_source": "test"}
        drawn = (0.0,) * (len(tokens) - 1)
        yield Trajectory.of_response(tokens[:1], tokens[1:], drawn, finish_reason="stop", reward=0.0, **written)


def difference(some: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(some, others, strict=True))
