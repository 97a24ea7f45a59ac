"""Each field of a family's configuration, in other values that transformers computes with: the trainer says what transformers says, or refuses it. A
field that nobody reads on the way would be trained wrongly in silence."""

from pathlib import Path

import pytest

from extra import extra_but
from rljob_api.families import has_latent_attention
from rljob_trainer.failure import ConfigurationError
from trainer.megatron.config_fields import settings, with_settings
from trainer.megatron.config_parity import OF_LATENTS, ROUNDING, difference, saved, subject, trained, training, wide
from trainer.megatron.kinds import KINDS, TIED, make_config

IN_TEST = ("gemma3_text",)
"""In `make test`. Half a minute each."""
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", extra_but(IN_TEST, KINDS))
def test_a_field_is_followed_or_refused_or_changes_nothing(megatron: None, tmp_path: Path, kind: str) -> None:
    usual = make_config(kind, tied=kind in TIED)
    config = wide(usual.to_dict())
    reference = subject(usual, config)
    assert reference
    known = provided(saved(reference.model, tmp_path / "usual"))
    compared, wrong, latent = 0, [], has_latent_attention(config)
    for number, one in enumerate(settings(config)):
        other = subject(usual, with_settings(config, [one]), reference.model.state_dict())
        if not other:
            continue
        effect, directory = difference(other.said, reference.said), saved(other.model, tmp_path / str(number))
        if effect < 2 * ROUNDING and provided(directory) in (None, known):
            continue
        compared += 1
        found = trained(directory, other.samples)
        error = difference(found, other.said) if found else 0.0
        if error > ROUNDING and not (latent and one.path[-1] == OF_LATENTS):
            wrong.append(f"{one}: off by {error:.1e}, where it changes transformers by {effect:.1e}")
    assert compared > 5
    assert wrong == []


def provided(directory: Path) -> dict[str, str] | None:
    """What megatron's configuration says of a model, without what no log-probability depends on; None: it is refused."""
    from rljob_trainer.megatron.provider import open_bridge

    try:
        provider = open_bridge(training(directory)).to_megatron_provider(load_weights=False)
    except ConfigurationError:
        return None
    return {key: repr(value) for key, value in vars(provider).items() if key not in WITHOUT_EFFECT}
