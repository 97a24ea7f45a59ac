"""The vision tower of a model's config.json against the servers that generate with it. Trainer and transformers have the same towers, vLLM 0.32
its own (model_executor/models/qwen2_5_vl.py, qwen3_vl.py), in which some of these numbers are constants."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rljob_api.config_json import ROPES
from rljob_api.families import has_delta_nets, language_of, rope_of
from rljob_api.rules.engine import Violation
from rljob_api.spec import RLJobSpec
from rljob_api.type_errors import as_written

GATED = ("silu", "swish", "gelu", "gelu_pytorch_tanh")
"""Activations that vLLM has next to a gate (model_executor/layers/activation.py, `get_act_and_mul_fn`)."""
PLAIN = (*GATED, "relu", "relu2", "sigmoid", "tanh")
"""Those without one, in the same file (`_ACTIVATION_REGISTRY`), of which transformers has the same, and which have no kernel for GPUs alone."""
WITH_GATES = ("qwen2_5_vl",)
"""Families whose towers have gates."""
ANGLES = {"rope_theta": (10000,)}
ROTATED = ANGLES | {"rope_type": ("axial", "default"), "type": ("axial",)}
"""What vLLM's towers rotate by. With `type: default` no server starts: transformers makes `axial` of `rope_type`, which then says something else."""
DEEP = ("qwen3_vl", "qwen3_vl_moe")
"""Families in which the language model sees what some layers of the tower see."""
FRAMES = 2
"""Of the video with which vLLM measures a tower of Qwen3-VL or Qwen3.5 when a server starts. A patch may not have more."""
NORM = 1e-6
"""What transformers' towers, and so the trainer's, have in their norms."""
OTHER, REMOVED = "use another model", "remove it there"
RESTORED = "restore the file from where the model was published"
WHOLE = "mm-encoder-tp-mode"
"""An argument of vLLM. With `data` each GPU has the whole tower."""


class Odd(NamedTuple):
    """A value with which a server's tower would be another one, or none."""

    key: str
    value: Any
    rule: str
    fix: str


def tower_violations(spec: RLJobSpec, config: Mapping[str, Any]) -> Iterator[Violation]:
    """`config`: of a family that reads images, with its sections as they are."""
    vision = config.get("vision_config") or {}
    of_tower = (
        *_rotation(vision),
        *_activation(config, vision),
        *_deep(config, vision),
        *_frames(config, vision),
        *_norm(config),
    )
    for odd in (*of_tower, *_places(language_of(dict(config)))):
        value = "unset" if odd.value is None else as_written(odd.value)
        rule = f"its config.json has {odd.key} = {value}, and {odd.rule}"
        fix = f"{odd.fix}, or set spec.task to sft, dpo or pretrain"
        yield Violation("spec.model.path", spec.model.path, rule, fix)


def tower_widths(spec: RLJobSpec, config: Mapping[str, Any]) -> dict[str, int]:
    """Heads and matrices of a config.json's tower that the GPUs of a server divide, by their keys."""
    vision = config.get("vision_config") or {}
    keys = () if spec.rollout.vllm_args.get(WHOLE) == "data" else ("num_heads", "intermediate_size")
    return {f"vision_config.{key}": vision[key] for key in keys if vision.get(key)}


def _rotation(vision: Mapping[str, Any]) -> Iterator[Odd]:
    """Of transformers' tower, whose rotary embeddings a config.json can change."""
    sections = {f"vision_config.{name}.": vision.get(name) or {} for name in ROPES}
    for prefix, section in {"vision_config.": vision, **sections}.items():
        for key, values in (ROTATED if section is not vision else ANGLES).items():
            if section.get(key) not in (None, *values):
                rule = f"vLLM's towers have {key} = {as_written(values[0])}"
                yield Odd(f"{prefix}{key}", section[key], rule, OTHER if key in ANGLES else REMOVED)


def _activation(config: Mapping[str, Any], vision: Mapping[str, Any]) -> Iterator[Odd]:
    known, value = GATED if config["model_type"] in WITH_GATES else PLAIN, vision.get("hidden_act")
    if value not in (None, *known):
        rule = f"vLLM's towers of this type have {', '.join(known[:-1])} or {known[-1]}"
        yield Odd("vision_config.hidden_act", value, rule, OTHER)


def _deep(config: Mapping[str, Any], vision: Mapping[str, Any]) -> Iterator[Odd]:
    """vLLM has one class for the towers of Qwen3-VL and Qwen3.5."""
    key = "deepstack_visual_indexes"
    if config["model_type"] not in (*DEEP, *WITH_GATES) and vision.get(key):
        rule = "vLLM has a projector for each of these layers, and trainer and transformers do not"
        yield Odd(f"vision_config.{key}", vision[key], rule, REMOVED)


def _frames(config: Mapping[str, Any], vision: Mapping[str, Any]) -> Iterator[Odd]:
    key = "temporal_patch_size"
    if config["model_type"] not in WITH_GATES and (vision.get(key) or 0) > FRAMES:
        rule = f"vLLM's towers of this type start with {FRAMES} at most"
        yield Odd(f"vision_config.{key}", vision[key], rule, OTHER)


def _norm(config: Mapping[str, Any]) -> Iterator[Odd]:
    """A number of the language model, outside its section. transformers moves it inside in Qwen2.5-VL."""
    value = config.get("rms_norm_eps")
    if config["model_type"] != "qwen2_5_vl" and value not in (None, NORM):
        rule = (
            f"outside text_config it is that of the tower's norms in vLLM, which is {NORM} in trainer and transformers"
        )
        yield Odd("rms_norm_eps", value, rule, REMOVED)


def _places(language: Mapping[str, Any]) -> Iterator[Odd]:
    """How the language model rotates by time, row and column, which transformers' classes of a family know and vLLM reads."""
    rope, gated = rope_of(dict(language))[1], language["model_type"] in WITH_GATES
    alternating, sections = rope.get("mrope_interleaved"), rope.get("mrope_section")
    if bool(alternating) is gated:
        rule = f"vLLM rotates by it, and trainer and transformers as with {as_written(not gated)}"
        yield Odd("mrope_interleaved", alternating, rule, f"set it to {as_written(not gated)} next to mrope_section")
    half = _half_of_head(language)
    if sections and half and sum(sections) != half:
        yield Odd("mrope_section", sections, f"vLLM takes numbers whose sum is {half}, half of a head", RESTORED)


def _half_of_head(language: Mapping[str, Any]) -> int:
    """0: not in the file, or a part of it is rotated."""
    hidden, heads = language.get("hidden_size") or 0, language.get("num_attention_heads") or 1
    width = language.get("head_dim") or (hidden // heads if language["model_type"] in WITH_GATES else 0)
    return 0 if has_delta_nets(dict(language)) else width // 2
