"""The sizes that plan computes from config.json, against the parameters of transformers' models of the same configuration."""

import math
from typing import Any

import pytest
import torch
import transformers

from rljob_api.families import FAMILIES
from rljob_api.sizing.shape import Shape
from trainer.megatron.kinds import config_class
from trainer.megatron.models import kind_of_model

EXPERTS = {"num_hidden_layers": 6, "vocab_size": 32000}
SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"num_key_value_heads": 8}),
    "mistral": ("MistralConfig", {"head_dim": 96}),
    "phi3": ("Phi3Config", {}),
    "gemma3_text": ("Gemma3TextConfig", {}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen2_5_vl": ("Qwen2_5_VLConfig", {"num_hidden_layers": 6, "vision_config": {"out_hidden_size": 8192}}),
    "qwen3_vl": (
        "Qwen3VLConfig",
        {"text_config": {"num_hidden_layers": 6}, "vision_config": {"out_hidden_size": 4096}},
    ),
    "qwen3_vl_moe": (
        "Qwen3VLMoeConfig",
        {"text_config": {"num_hidden_layers": 4}, "vision_config": {"out_hidden_size": 2048}},
    ),
    "qwen3": ("Qwen3Config", {"num_key_value_heads": 8}),
    "qwen3_moe": ("Qwen3MoeConfig", EXPERTS),
    "qwen3_next": ("Qwen3NextConfig", {"num_hidden_layers": 8, "vocab_size": 32000}),
    "qwen3_5": (
        "Qwen3_5Config",
        {"text_config": {"num_hidden_layers": 8}, "vision_config": {"out_hidden_size": 4096}},
    ),
    "qwen3_5_moe": (
        "Qwen3_5MoeConfig",
        {"text_config": {"num_hidden_layers": 8, "vocab_size": 32000}, "vision_config": {"out_hidden_size": 2048}},
    ),
    "qwen3_5_text": ("Qwen3_5TextConfig", {"num_hidden_layers": 8}),
    "qwen3_5_moe_text": ("Qwen3_5MoeTextConfig", {"num_hidden_layers": 8, "vocab_size": 32000}),
    "mixtral": ("MixtralConfig", EXPERTS),
    "glm4": ("Glm4Config", {}),
    "glm4_moe": ("Glm4MoeConfig", EXPERTS),
    "minimax_m2": ("MiniMaxM2Config", EXPERTS),
    "gpt_oss": ("GptOssConfig", EXPERTS),
    "deepseek_v2": ("DeepseekV2Config", EXPERTS | {"q_lora_rank": None, "first_k_dense_replace": 1}),
    "deepseek_v3": ("DeepseekV3Config", EXPERTS),
    "kimi_k2": ("KimiK2Config", EXPERTS),
    "deepseek_v32": ("DeepseekV32Config", EXPERTS),
    "glm_moe_dsa": ("GlmMoeDsaConfig", EXPERTS | {"index_topk_freq": 3}),
}
"""A configuration of each family, of the usual widths."""


@pytest.mark.parametrize("kind", FAMILIES)
def test_parameters_are_those_of_transformers(kind: str) -> None:
    name, more = SIZES[kind]
    config = config_class(name)(**more)
    with torch.device("meta"):
        model = kind_of_model(config).from_config(config)
    shape = Shape.of(config.to_dict())
    assert shape
    assert math.isclose(shape.parameters, sum(p.numel() for p in model.parameters()), rel_tol=1e-3)


def test_minimax_m2_has_as_many_parameters_as_its_files() -> None:
    """transformers' defaults are the published numbers; of the files, 228.7 billion is what the registry says."""
    shape = Shape.of(transformers.MiniMaxM2Config().to_dict())
    assert shape
    assert math.isclose(shape.parameters, 228.7e9, rel_tol=1e-3)


def test_glm_5_has_as_many_parameters_as_its_report_says() -> None:
    """transformers' defaults are the published numbers; 744 billion is what its report says (arXiv 2602.15763), without multi-token prediction."""
    shape = Shape.of(transformers.GlmMoeDsaConfig().to_dict())
    assert shape
    assert math.isclose(shape.parameters, 744e9, rel_tol=1e-3)
