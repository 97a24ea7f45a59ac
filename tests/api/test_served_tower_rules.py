"""Towers that servers would not have, or would have otherwise than they are trained."""

from typing import Any

import pytest

from api.model_configs import VISION, M, T, check
from api.specs import make_spec
from rljob_api.families import FAMILIES
from rljob_api.rules.model import model_violations

SEEING = [name for name, family in FAMILIES.items() if family.vision]
QWEN3_5 = ("qwen3_5", "qwen3_5_moe")
"""Their towers have no layers that the language model's first ones see, and a part of a head is rotated."""
ELSE = "or set spec.task to sft, dpo or pretrain"
THETA, KIND = "vLLM's towers have rope_theta = 10000", 'vLLM\'s towers have rope_type = "axial"'
LEGACY = 'vLLM\'s towers have type = "axial"'
GATED = "vLLM's towers of this type have silu, swish, gelu or gelu_pytorch_tanh"
ODD = [
    ({"rope_theta": 5000}, "vision_config.rope_theta = 5000", THETA, "use another model"),
    ({"rope_parameters": {"rope_theta": 333.0}}, "vision_config.rope_parameters.rope_theta = 333.0", THETA, "use another model"),
    ({"rope_scaling": {"rope_type": "yarn"}}, 'vision_config.rope_scaling.rope_type = "yarn"', KIND, "remove it there"),
    ({"rope_parameters": {"type": "default"}}, 'vision_config.rope_parameters.type = "default"', LEGACY, "remove it there"),
    ({"hidden_act": "relu"}, 'vision_config.hidden_act = "relu"', GATED, "use another model"),
]  # fmt: skip


@pytest.mark.parametrize(("vision", "value", "rule", "fix"), ODD)
def test_a_tower_that_servers_do_not_have_is_trained_without_rollouts(
    vision: dict[str, Any], value: str, rule: str, fix: str
) -> None:
    given = VISION | {"vision_config": vision}
    (found,) = model_violations(make_spec(), given)
    assert found.field == M
    assert found.rule == f"its config.json has {value}, and {rule}"
    assert found.fix == f"{fix}, {ELSE}"
    assert not list(model_violations(make_spec(task="sft"), given))
    assert not list(model_violations(make_spec(train={"steps": 1, "batches": {"replay": "/b"}}), given))


ON_GPUS = {"trainer": {"device": "gpu"}, "rollout": {"vllmArgs": {"gdn-prefill-backend": "triton"}}}


def published(kind: str, **vision: Any) -> dict[str, Any]:
    """What a config.json of the family says of positions, and of its tower."""
    rope = {"rope_type": "default", "mrope_section": [24, 20, 20]}
    rope |= {} if kind == "qwen2_5_vl" else {"mrope_interleaved": True}
    return {"model_type": kind, "text_config": {"rope_parameters": rope}, "vision_config": vision}


def said(config: dict[str, Any]) -> list[tuple[str, str]]:
    """Rules that it breaks on GPUs, and fixes."""
    return [(v.rule, v.fix) for v in model_violations(make_spec(**ON_GPUS), config)]


@pytest.mark.parametrize("kind", SEEING)
def test_a_tower_as_published_is_served(kind: str) -> None:
    rope = {"rope_theta": 10000.0, "rope_type": "axial", "type": "axial"}
    act = "silu" if kind == "qwen2_5_vl" else "gelu_pytorch_tanh"
    tower = {"hidden_act": act, "rope_parameters": rope, "rope_theta": None, "num_heads": 16, "hidden_size": 1152}
    assert said(published(kind, **tower, deepstack_visual_indexes=[]) | {"rms_norm_eps": 1e-6}) == []
    ((rule, _),) = said(published(kind, **tower | {"hidden_act": "mish"}))
    assert rule.startswith('its config.json has vision_config.hidden_act = "mish", and vLLM\'s towers of this type')


@pytest.mark.parametrize("kind", SEEING)
def test_a_norm_outside_the_language_model_is_the_towers_where_nothing_moves_it_inside(kind: str) -> None:
    found = said(published(kind) | {"rms_norm_eps": 1e-5})
    assert [fix for _, fix in found] == ([] if kind == "qwen2_5_vl" else [f"remove it there, {ELSE}"])


@pytest.mark.parametrize("kind", SEEING)
def test_layers_of_a_tower_that_only_the_server_projects_are_refused(kind: str) -> None:
    found = said(published(kind, depth=2, deepstack_visual_indexes=[0]))
    assert [fix for _, fix in found] == ([f"remove it there, {ELSE}"] if kind in QWEN3_5 else [])


@pytest.mark.parametrize("kind", SEEING)
def test_patches_of_more_frames_than_a_server_starts_with_are_refused(kind: str) -> None:
    found = said(published(kind, temporal_patch_size=3))
    assert [fix for _, fix in found] == ([] if kind == "qwen2_5_vl" else [f"use another model, {ELSE}"])
    assert said(published(kind, temporal_patch_size=2)) == []


@pytest.mark.parametrize("kind", SEEING)
def test_time_row_and_column_are_rotated_as_the_family_does(kind: str) -> None:
    """transformers alternates them in all models of a family or in none, whatever the key says."""
    config = published(kind)
    rope = config["text_config"]["rope_parameters"]
    right = bool(rope.get("mrope_interleaved"))
    ((rule, fix),) = said(config | {"text_config": {"rope_parameters": rope | {"mrope_interleaved": not right}}})
    assert "vLLM rotates by it, and trainer and transformers as with" in rule
    assert fix == f"set it to {str(right).lower()} next to mrope_section, {ELSE}"
    without = {key: value for key, value in rope.items() if key != "mrope_section"}
    sft = make_spec(task="sft")
    for spec in (make_spec(**ON_GPUS), sft):
        found = [v.rule for v in model_violations(spec, config | {"text_config": {"rope_parameters": without}})]
        assert found == ["its config.json has no mrope_section"], "no trainer starts either"
    heads = {"head_dim": 64, "hidden_size": 256, "num_attention_heads": 4}
    found = [rule for rule, _ in said(config | {"text_config": heads | {"rope_parameters": rope}}) if "half" in rule]
    assert len(found) == (kind not in QWEN3_5), "a part of whose heads is rotated"
    fitting = rope | {"mrope_section": [12, 10, 10]}
    assert not [
        rule for rule, _ in said(config | {"text_config": heads | {"rope_parameters": fitting}}) if "half" in rule
    ]


def test_a_server_divides_the_tower_unless_each_of_its_gpus_has_all_of_it() -> None:
    """3420, of Qwen2.5-VL's towers, is divided by 4 and not by 8."""
    config = VISION | {"vision_config": {"num_heads": 16, "hidden_size": 1280, "intermediate_size": 3420}}
    text = config["text_config"] | {"num_key_value_heads": 8}
    wide = {**config, "text_config": text, "vocab_size": 104}
    (found,) = model_violations(make_spec(rollout={"tensorParallel": 8}), wide)
    assert (found.field, found.fix) == (T, "choose 1, 2 or 4")
    assert found.rule == "vision_config.intermediate_size = 3420 of the model is not divisible by it"
    copied = {"tensorParallel": 8, "vllmArgs": {"mm-encoder-tp-mode": "data"}}
    assert not list(model_violations(make_spec(rollout=copied), wide))
    assert not list(model_violations(make_spec(rollout={"tensorParallel": 4}), wide))


@pytest.mark.parametrize(
    ("vision", "rule"),
    [
        ({"num_heads": 3, "hidden_size": 32}, "num_heads = 3, which must divide hidden_size = 32 into heads of a mult"),
        (
            {"num_heads": 16, "hidden_size": 32},
            "num_heads = 16, which must divide hidden_size = 32 into heads of a mult",
        ),
        ({"num_heads": "2"}, 'num_heads = "2", which must be a whole number'),
        ({"rope_scaling": ["yarn"]}, 'rope_scaling = ["yarn"], which must be a mapping'),
    ],
)
def test_a_tower_that_cannot_be_computed_is_refused(vision: dict[str, Any], rule: str) -> None:
    ((field, found),) = check(VISION | {"vision_config": vision})
    assert field == M and f"vision_config.{rule}" in found
