"""A layout against a model's config.json, and which models there are."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.model_configs import (
    DENSE,
    EXPERTS,
    GEMMA,
    GLM,
    HYBRID,
    LATENT,
    LLAMA3,
    LOCAL,
    MINIMAX,
    NEXT,
    M,
    P,
    T,
    check,
    require_broken,
)
from api.sized import gpu_spec
from api.specs import make_spec
from rljob_api.config_json import Unfit, contradictions
from rljob_api.families import FAMILIES
from rljob_api.rules.engine import Violation
from rljob_api.rules.foreign_keys import EXPERTS as EXPERTS_OF
from rljob_api.rules.foreign_keys import KEYS, foreign_keys
from rljob_api.rules.model import model_violations
from rljob_api.spec import RLJobSpec

ABOVE = {
    "rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 64}
}
PHI = DENSE | {"model_type": "phi3", "rope_scaling": {"type": "default", "partial_rotary_factor": 0.75}}
YARN = {"type": "yarn"}
OSS = DENSE | {"model_type": "gpt_oss", "num_local_experts": 6}
RULES = [
    (DENSE | {"num_key_value_heads": 3}, {"tensor": 3}, f"{P}.tensor", "num_attention_heads = 8 of the model is not divisible by it"),
    (DENSE | {"num_key_value_heads": 3}, {"tensor": 2}, f"{P}.tensor", "num_key_value_heads = 3 of the model must be a multiple or a divisor of it"),
    (DENSE | {"intermediate_size": 99}, {"tensor": 2}, f"{P}.tensor", "intermediate_size = 99 of the model is not divisible by it"),
    (DENSE, {"pipeline": 8}, f"{P}.pipeline", "num_hidden_layers = 12 of the model is not divisible by it"),
    (DENSE, {"pipeline": 2, "virtualPipeline": 4}, f"{P}.virtualPipeline", "num_hidden_layers / pipeline = 6 layers of a stage are not divisible"),
    (EXPERTS, {"expert": 4}, f"{P}.expert", "the number of experts = 6 of the model is not divisible by it"),
    (EXPERTS | {"moe_intermediate_size": 33}, {"tensor": 2}, f"{P}.expertTensor", "moe_intermediate_size = 33 of the model is not"),
    (EXPERTS, {"tensor": 2, "sequence": False}, f"{P}.sequence", "with tensor parallelism a mixture-of-experts layer trains on"),
    (DENSE, {"expert": 2}, f"{P}.expert", "the model has no experts"),
    (DENSE, {"expertTensor": 1}, f"{P}.expertTensor", "the model has no experts"),
    (DENSE | {"model_type": "gpt2"}, {}, M, "its model_type is gpt2"),
    (DENSE | {"rope_scaling": {"type": "dynamic"}}, {}, M, "its rope_type = dynamic is not supported"),
    (DENSE | {"rope_scaling": {"type": "yarn", "attention_factor": 2.0}}, {}, M, "its rope_scaling = {'type': 'yarn', 'attention_factor': 2.0}"),
    (DENSE | {"rope_scaling": YARN | {"mscale": 0.5}}, {}, M, "its rope_scaling = {'type': 'yarn', 'mscale': 0.5}"),
    (LATENT | {"rope_scaling": YARN | {"mscale": 0.5, "mscale_all_dim": 0}}, {}, M, "its rope_scaling = {'type': 'yarn', 'mscale': 0.5"),
    (OSS | {"rope_scaling": YARN | {"mscale": 0.5, "mscale_all_dim": 0.5}}, {}, M, "its rope_scaling = {'type': 'yarn', 'mscale': 0.5"),
    (DENSE | {"mlp_bias": True}, {}, M, "its mlp_bias = True is not supported"),
    (DENSE | {"attention_bias": True}, {}, M, "its attention_bias = True is not supported"),
    (DENSE | {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64}, {}, M, "its sliding_window = 64 is not supported"),
    (LATENT | {"n_group": 8, "topk_group": 2}, {}, M, "its topk_group = 2 is not supported"),
    (LATENT | {"scoring_func": "softmax"}, {}, M, "its scoring_func = softmax is not supported"),
    (LATENT | {"n_shared_experts": 3}, {"tensor": 2, "expertTensor": 1}, f"{P}.tensor", "moe_intermediate_size * n_shared_experts = 99 of"),
    (LATENT | {"intermediate_size": 99}, {"tensor": 2, "expertTensor": 1}, f"{P}.tensor", "intermediate_size = 99 of the model is not"),
    (HYBRID | {"linear_num_key_heads": 3}, {"tensor": 2}, f"{P}.tensor", "linear_num_key_heads = 3 of the model is not divisible by it"),
    (HYBRID | {"linear_num_value_heads": 9}, {"tensor": 2}, f"{P}.tensor", "linear_num_value_heads = 9 of the model is not"),
    (HYBRID | {"linear_num_value_heads": 6}, {"tensor": 2, "context": 2}, f"{P}.context", "linear_num_value_heads = 6 of the model, 3 on each of 2"),
    (NEXT | {"num_experts": 6, "shared_expert_intermediate_size": 33}, {"tensor": 2}, f"{P}.tensor", "shared_expert_intermediate_size = 33 of"),
    (HYBRID | {"layer_types": ["linear_attention"]}, {}, M, "its config.json has layer_types = "),
    (HYBRID | {"linear_key_head_dim": 0}, {}, M, "its config.json has linear_key_head_dim = 0, which must be a whole number from 1"),
    (NEXT | {"norm_topk_prob": False}, {}, M, "its norm_topk_prob = False is not supported"),
    (NEXT | {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, {}, M, "its rope_scaling = "),
    ({k: v for k, v in MINIMAX.items() if k != "use_routing_bias"}, {}, M, "its config.json has no use_routing_bias"),
    (MINIMAX | {"rotary_dim": None}, {}, M, "its config.json has no rotary_dim"),
    (MINIMAX | {"rotary_dim": None, "rope_parameters": {"rotary_dim": 2}}, {}, M, "its config.json has no rotary_dim"),
    (MINIMAX | {"rope_parameters": {"partial_rotary_factor": 1.0}}, {}, M, "its rotary_dim = 16 is not supported"),
    (MINIMAX | {"tie_word_embeddings": True}, {}, M, "its tie_word_embeddings = True is not supported"),
    (MINIMAX | {"qk_norm_type": "per_head"}, {}, M, "its qk_norm_type = per_head is not supported"),
    (NEXT | {"num_experts": 6, "shared_expert_intermediate_size": 0}, {}, M, "its shared_expert_intermediate_size = 0 is not supported"),
    (EXPERTS | {"mlp_only_layers": [0]}, {}, M, "its mlp_only_layers = [0] is not supported"),
    (DENSE | {"per_layer_config": {"1": {"rms_norm_eps": 0.1}}}, {}, M, "its per_layer_config = {"),
    (EXPERTS | {"decoder_sparse_step": 2}, {}, M, "its decoder_sparse_step = 2 is not supported"),
    (EXPERTS | {"num_experts_per_tok": 1}, {}, M, "its num_experts_per_tok = 1 is not supported"),
    (LATENT | {"n_shared_experts": 0}, {}, M, "its n_shared_experts = 0 is not supported"),
    (LATENT | {"topk_group": 0}, {}, M, "its config.json has topk_group = 0, which must be a whole number from 1"),
    (NEXT | {"partial_rotary_factor": 0.5}, {}, M, "its partial_rotary_factor = 0.5 is not supported"),
    (LATENT | {"tie_word_embeddings": True}, {}, M, "its tie_word_embeddings = True is not supported"),
    (LATENT | {"rope_scaling": {"type": "yarn", "truncate": False}}, {}, M, "its rope_scaling = "),
    (GLM | {"partial_rotary_factor": 1.0}, {}, M, "its partial_rotary_factor = 1.0 is not supported"),
    (GLM | {"rope_parameters": {"partial_rotary_factor": 1.0}}, {}, M, "its rope_scaling = "),
    (GEMMA | {"final_logit_softcapping": 30.0}, {}, M, "its final_logit_softcapping = 30.0 is not supported"),
    (GEMMA | {"use_bidirectional_attention": True}, {}, M, "its use_bidirectional_attention = True is not supported"),
    (GEMMA | {"use_qk_norm": False}, {}, M, "its use_qk_norm = False is not supported"),
    (GEMMA | {"sliding_window_pattern": 4}, {}, M, "its sliding_window_pattern = 4 is not supported"),
    (GEMMA | {"layer_types": [LOCAL] * 12}, {}, M, "its layer_types = ['sliding_attention', "),
    (GEMMA | {"rope_parameters": {LOCAL: {"rope_type": "linear", "factor": 8.0}}}, {}, M, "its rope_parameters = "),
    (GEMMA | {"rope_parameters": {LOCAL: {"type": "yarn", "rope_type": "default"}}}, {}, M, "its rope_parameters = "),
    (GEMMA | {"rope_parameters": {LOCAL: 3}}, {}, M, "its config.json has rope_parameters.sliding_attention = 3"),
    (DENSE | {"model_type": "mistral", "hidden_act": "gelu"}, {}, M, "its hidden_act = gelu is not supported"),
    (DENSE | {"layer_types": [LOCAL] * 12}, {}, M, "its layer_types = ['sliding_attention', "),
    (DENSE | {"model_type": "mistral", "sliding_window": 8, "layer_types": ["full_attention"] * 12}, {}, M, "its layer_types = ['full_attention', "),
    (DENSE | {"hidden_size": 3}, {}, M, "its config.json has hidden_size = 3, which must be at least num_attention_heads = "),
    (LATENT | {"n_group": 2, "topk_group": 4}, {}, M, "its config.json has topk_group = 4, which must be at most n_group = 2: experts are chosen"),
    (DENSE | ABOVE | {"rope_theta": 1e6}, {}, M, "its config.json has rope_theta = 1000000.0, which must be 10000.0, as rope_parameters.rope_"),
    (DENSE | ABOVE | {"original_max_position_embeddings": 16}, {}, M, "its config.json has original_max_position_embeddings = 16, which must be 64"),
    (PHI | {"partial_rotary_factor": 0.5}, {}, M, "its config.json has partial_rotary_factor = 0.5, which must be 0.75, as rope_scaling.partial_"),
    (DENSE | ABOVE | {"rope_scaling": {"type": "linear", "factor": 2.0}}, {}, M, "its config.json has rope_parameters = {"),
    (DENSE | {"rope_scaling": {"type": "yarn", "rope_type": "linear"}}, {}, M, "its config.json has rope_scaling.type = \"yarn\", which must be"),
    (NEXT | {"num_experts": 6, "num_local_experts": 8}, {}, M, "its num_local_experts = 8 is not supported"),
    (DENSE | {"quantization_config": {"bits": 4}}, {}, M, "its quantization_config = {'bits': 4} is not supported"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "sizes", "field", "rule"), RULES)
def test_a_broken_rule_is_found_at_its_field(
    config: dict[str, Any], sizes: dict[str, Any], field: str, rule: str
) -> None:
    require_broken(config, sizes, field, rule)


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("key", [*KEYS, *EXPERTS_OF])
def test_a_key_of_a_part_that_a_family_lacks_is_refused_unless_it_says_that_there_is_none(kind: str, key: str) -> None:
    """Such as norms of queries and keys, which GLM-4.5 may have and Llama has not: megatron-bridge reads `use_qk_norm` in every config.json."""
    families, nothing = KEYS[key] if key in KEYS else (EXPERTS_OF[key], (0,))
    something = False if True in nothing else 7
    assert foreign_keys(kind, {key: something}) == ([] if kind in families else [key])
    assert [foreign_keys(kind, {key: value}) for value in (None, *nothing)] == [[]] * (1 + len(nothing))


def test_a_foreign_key_is_named_with_its_value() -> None:
    require_broken(EXPERTS | {"routed_scaling_factor": 1.5}, {}, M, "its routed_scaling_factor = 1.5 is not supported")
    require_broken(DENSE | {"num_experts": 4}, {}, M, "its num_experts = 4 is not supported")


def test_what_qwen3_coder_says_besides_is_taken() -> None:
    coder = {"use_qk_norm": True, "qkv_bias": False, "shared_expert_intermediate_size": 0, "decoder_sparse_step": 1}
    assert check(EXPERTS | coder | {"mlp_only_layers": [], "use_sliding_window": False}) == []


def test_a_number_of_a_rope_that_a_file_says_twice_in_the_same_way_is_taken() -> None:
    same = ABOVE["rope_parameters"]
    assert (
        check(DENSE | ABOVE | {"rope_scaling": same, "rope_theta": 1e4, "original_max_position_embeddings": 64}) == []
    )


@pytest.mark.parametrize(
    ("kind", "width", "rule"),
    [
        ("qwen3_vl_moe", 32, "must not be 64 or 64 / 2: with hidden_size = 64 a matrix of an expert is square"),
        ("qwen3_vl_moe", 64, "must not be 64 or 64 / 2: with hidden_size = 64 a matrix of an expert is square"),
        ("qwen3_vl_moe", 48, ""),
        ("gpt_oss", 32, "must not be 64 / 2: with hidden_size = 64 a matrix of an expert is square"),
        ("gpt_oss", 64, ""),
        ("qwen3_moe", 32, ""),
    ],
)
def test_square_experts_are_refused_where_only_their_shape_says_which_way_they_lie(
    kind: str, width: int, rule: str
) -> None:
    """As published, gpt-oss has square down-projections, of which megatron-bridge knows how they lie."""
    key = "intermediate_size" if kind == "gpt_oss" else "moe_intermediate_size"
    text = {"hidden_size": 64, key: width}
    config = {"model_type": kind} | ({"text_config": text} if kind == "qwen3_vl_moe" else text)
    assert contradictions(config) == ([Unfit(key, width, rule)] if rule else [])


@pytest.mark.parametrize("kind", ["mimo", "gpt2"])
def test_a_family_that_is_not_proven_is_refused_with_the_list_of_those_that_are(kind: str) -> None:
    (found,) = model_violations(make_spec(), DENSE | {"model_type": kind})
    assert (found.rule, found.fix) == (f"its model_type is {kind}", f"use one of {', '.join(FAMILIES)}")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("kimi_k25", "its vision tower is not trained"),
        ("kimi_vl", "its vision tower is not trained"),
        ("kimi_linear", "megatron-bridge 0.6.2 cannot convert it"),
        ("kimi_k3", "megatron-bridge 0.6.2 cannot convert it"),
        ("deepseek_v4", "megatron-core 0.19.2 has neither its compressed attention nor its hyper-connections"),
        ("glm5_next", "megatron-bridge 0.6.2 cannot convert it"),
    ],
)
def test_relatives_of_families_are_refused_with_the_reason(kind: str, reason: str) -> None:
    (found,) = model_violations(make_spec(), DENSE | {"model_type": kind})
    assert (found.rule, found.fix) == (f"its model_type is {kind}: {reason}", f"use one of {', '.join(FAMILIES)}")


def test_rope_scaling_of_llama_3_is_known_with_its_own_frequencies_only() -> None:
    assert check(DENSE | {"rope_scaling": LLAMA3}) == []
    ((_, rule),) = check(DENSE | {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 4096}})
    assert rule.startswith("its rope_scaling = {")


def test_windows_in_the_published_layers_are_known() -> None:
    layers = ([LOCAL] * 5 + ["full_attention"]) * 2
    rope = {"full_attention": {"rope_type": "default"}, LOCAL: {"rope_type": "default"}}
    assert check(GEMMA | {"layer_types": layers, "rope_parameters": rope, "sliding_window": 512}) == []
    assert check(GEMMA | {"layer_types": layers[::-1]}) != []


def test_recomputed_layers_fit_into_a_piece_of_a_stage() -> None:
    blocks = {"recompute": {"granularity": "full", "method": "block", "layers": 4}}
    assert check(DENSE, blocks, pipeline=3) == []
    assert check(DENSE, blocks, pipeline=2, virtualPipeline=2) == [
        ("spec.trainer.recompute.layers", "a piece of a stage has 3 layers")
    ]


def test_adapters_are_refused_where_none_are_proven() -> None:
    spec = make_spec(model={"path": "/data/model", "lora": {}})
    rules = [(v.field, v.rule) for v in model_violations(spec, {"model_type": "qwen3_vl"})]
    rule = "adapters are refused in models of the type qwen3_vl: not proven with a vision tower"
    assert ("spec.model.lora", rule) in rules
    for config in (DENSE, EXPERTS):
        assert not [v for v in model_violations(spec, config) if v.field.startswith("spec.model.lora")]


def test_modules_of_experts_are_recomputed_in_models_that_have_some() -> None:
    field = "spec.trainer.recompute.modules"
    experts = {"recompute": {"granularity": "selective", "modules": ["moe", "layernorm"]}}
    dense = {"recompute": {"granularity": "selective", "modules": ["mlp"]}}
    assert check(EXPERTS, experts) == check(DENSE, dense) == []
    assert check(EXPERTS, dense) == [(field, "the model has experts in its place: name moe")]
    assert check(DENSE, experts) == [
        (field, "the model has no experts"),
        (field, "the norms of a model without experts are parts of its matrices"),
    ]


def test_layers_that_do_not_divide_are_cut_as_transformer_config_says() -> None:
    even, wrong = (
        found
        for pipeline, given in ((7, {}), (8, {"num_layers_in_first_pipeline_stage": 4}))
        for found in model_violations(uneven(pipeline, **given), DENSE)
    )
    assert (even.field, even.fix) == (
        f"{P}.pipeline",
        "choose a divisor of 12, or set account_for_embedding_in_pipeline_split: true, account_for_loss_in_pipeline_split: true in "
        "transformerConfig, for stages of other than equal size",
    )
    assert (wrong.field, wrong.value) == ("spec.trainer.transformerConfig.num_layers_in_first_pipeline_stage", "4")
    assert wrong.rule == "leaves 8 of 12 layers for 7 other stages, which must share them equally"
    assert [*model_violations(uneven(8, num_layers_in_first_pipeline_stage=5), DENSE)] == []


def uneven(pipeline: int, **given: int) -> RLJobSpec:
    return make_spec(
        trainer={
            "device": "cpu",
            "nodes": pipeline,
            "parallelism": {"pipeline": pipeline},
            "transformerConfig": given,
        }
    )


def test_a_refused_model_type_comes_with_the_supported_ones() -> None:
    (v,) = model_violations(make_spec(), {"model_type": "gpt2"})
    assert v.fix == f"use one of {', '.join(FAMILIES)}"


def test_a_vocabulary_divides_always_because_it_is_padded() -> None:
    assert check(DENSE, tensor=4) == []


@pytest.mark.parametrize(
    ("config", "replay", "rule"),
    [
        (DENSE, "trainer", "the model has no experts"),
        (EXPERTS | {"num_experts": 2**15 + 6}, "rollout", "the model has 32774 experts, and the number of one takes two bytes"),
        (EXPERTS | {"num_experts": 384}, "rollout", None),
        (DENSE | {"model_type": "mixtral", "num_local_experts": 8, "sliding_window": 64}, "rollout", None),
        (EXPERTS | {"num_experts": 256}, "rollout", None),
        (DENSE, "none", None),
    ],
)  # fmt: skip
def test_experts_are_replayed_where_there_are_some_and_somebody_says_which(
    config: dict[str, Any], replay: str, rule: str | None
) -> None:
    spec = make_spec(algorithm={"rolloutCorrection": {"routerReplay": replay}})
    found = [v for v in model_violations(spec, config) if v.field == "spec.algorithm.rolloutCorrection.routerReplay"]
    assert [rule in v.rule for v in found] == [True] if rule else not found


@given(
    heads=st.integers(1, 96),
    groups=st.integers(1, 16),
    width=st.integers(1, 512),
    size=st.sampled_from((1, 2, 3, 4, 6, 8)),
)
def test_what_does_not_divide_is_one_message_whose_sizes_divide(heads: int, groups: int, width: int, size: int) -> None:
    """For each of the fields, of the trainer and of servers, and with the same words."""
    config = DENSE | {"num_attention_heads": heads, "num_key_value_heads": groups, "intermediate_size": width}

    def judged(size: int) -> dict[str, list[Violation]]:
        found: dict[str, list[Violation]] = {"spec.trainer.parallelism.tensor": [], T: []}
        spec = gpu_spec(parallelism={"tensor": size}, rollout={"tensorParallel": size, "sampling": {"maxTokens": 8}})
        for violation in model_violations(spec, config):
            if violation.field in found:
                found[violation.field].append(violation)
        return found

    trainer, servers = judged(size).values()
    assert [(v.value, v.rule, v.fix) for v in trainer] == [(v.value, v.rule, v.fix) for v in servers]
    whole = heads % size == 0 and width % size == 0 and (groups % size == 0 or size % groups == 0)
    assert len(trainer) == (not whole)
    for violation in trainer:
        fits = [int(number) for number in re.findall(r"\d+", violation.fix)]
        assert 1 in fits and not any(judged(number)[T] for number in fits)
