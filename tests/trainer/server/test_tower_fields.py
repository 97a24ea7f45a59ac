"""Nearly all fields of a model with a vision tower in other values at once, on a real server, with images in the prompts: it says what transformers
says. vLLM's towers are its own, and what they compute otherwise would draw rollouts from another model."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers.activations import ACT2FN

from extra import extra_but
from rljob_api.families import FAMILIES
from rljob_api.rules.served_tower import GATED, PLAIN
from trainer.data.vision import save_processor
from trainer.megatron.config_drawn import Drawn
from trainer.megatron.config_fields import Setting
from trainer.megatron.config_parity import saved
from trainer.megatron.config_rows import rows
from trainer.megatron.vision import image_for
from trainer.server import test_config_fields as texts
from trainer.server.servers import Server, spec
from trainer.server.test_vision import difference, prompts, publish_and_generate, served_config

APART = tuple(f"text_config.{key}" for key in texts.APART)
"""Sizes of the language model, which vLLM's kernels for CPUs want."""
OF_TOWERS = [
    Setting(("rms_norm_eps",), 0.1),
    Setting(("vision_config", "deepstack_visual_indexes"), [2, 0]),
    Setting(("vision_config", "fullatt_block_indexes"), [0]),
    Setting(("vision_config", "hidden_act"), "tanh"),
    Setting(("vision_config", "rope_theta"), 333.0),
]
"""Values for fields that hold lists, and for those that a tower lacks."""
SEEING = [name for name, family in FAMILIES.items() if "cpu" in family.servers and family.vision]


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_activations_that_towers_may_have_are_transformers_own_in_vllm(name: str) -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.activation import _ACTIVATION_REGISTRY, get_act_and_mul_fn

    numbers = torch.linspace(-6, 6, 97)
    with set_current_vllm_config(VllmConfig()):
        plain, theirs = _ACTIVATION_REGISTRY[name](numbers), ACT2FN[name](numbers)
        assert torch.allclose(plain, theirs, atol=1e-6)
        if name in GATED:
            gated = get_act_and_mul_fn(name)(torch.cat((numbers, numbers.flip(0))))
            assert torch.allclose(gated, theirs * numbers.flip(0), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", extra_but(("qwen3_vl",), SEEING))
def test_fields_of_towers_are_followed_together_or_refused(
    start: Callable[..., Server], tmp_path: Path, kind: str
) -> None:
    drawn = Drawn(served_config(kind), spec(tmp_path, "images"), APART, [*OF_TOWERS, *texts.SERVERS_OWN])
    (row,) = rows(drawn.settings, drawn.possible, seed=7, most=1)
    subject = drawn.subject(row)
    assert subject and len([one for one in row if one.path[0] == "vision_config"]) > 5
    model, vision = (
        saved(subject.model, tmp_path / "model", drawn.config(row)),
        subject.model.config.vision_config,
    )
    cut = {key: getattr(vision, key) for key in ("patch_size", "temporal_patch_size")}
    save_processor(model, kind, merge_size=vision.spatial_merge_size, **cut)
    asked = prompts([[], [image_for(vision, (4, 2), 0)], [image_for(vision, (1, 3), 1), image_for(vision, (3, 3), 2)]])
    server = start(model, image_key="images")
    answers = publish_and_generate(server, model, 0, asked)
    server.kill()
    assert difference(model, answers, asked=asked) < 1e-4, "; ".join(map(str, row))
    assert difference(model, answers, shown=False, asked=asked) > 0.05, "images must matter for this to say anything"
