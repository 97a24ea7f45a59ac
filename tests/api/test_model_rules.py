import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.sized import gpu_spec
from api.specs import make_spec
from rljob_api.families import FAMILIES
from rljob_api.rules.engine import Violation
from rljob_api.rules.model import model_violations
from rljob_api.spec import RLJobSpec

P, M = "spec.trainer.parallelism", "spec.model.path"
DENSE = {
    "model_type": "llama",
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "num_hidden_layers": 12,
    "vocab_size": 101,
}
EXPERTS = DENSE | {"model_type": "qwen3_moe", "num_experts": 6, "moe_intermediate_size": 32}
LATENT = DENSE | {
    "model_type": "deepseek_v3",
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 33,
    "num_key_value_heads": 3,
    "kv_lora_rank": 512,
}
SPARSE = LATENT | {
    "model_type": "glm_moe_dsa",
    "num_key_value_heads": 8,
    "indexer_rope_interleave": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "index_n_heads": 4,
    "index_head_dim": 32,
    "index_topk": 16,
}
SHARED = {"index_topk_freq": 4, "index_skip_topk_offset": 3}
"""Layers 0, 1, 2, 6 and 10 have indexers."""
HYBRID = DENSE | {
    "model_type": "qwen3_5_text",
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
MINIMAX = DENSE | {"model_type": "minimax_m2", "num_local_experts": 6, "head_dim": 32, "rotary_dim": 16}
MINIMAX |= {"scoring_func": "sigmoid", "use_routing_bias": True}
NEXT = HYBRID | {"model_type": "qwen3_next"}
VISION = {
    "model_type": "qwen2_5_vl",
    "vision_config": {"depth": 2},
    "text_config": DENSE | {"model_type": "qwen2_5_vl_text"},
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}


def check(config: dict[str, Any], trainer: dict[str, Any] | None = None, **sizes: int | bool) -> list[tuple[str, str]]:
    spec = make_spec(trainer={"device": "cpu", "nodes": 24, "parallelism": sizes} | (trainer or {}))
    return [(v.field, v.rule) for v in model_violations(spec, config)]


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
    (MINIMAX | {"rope_parameters": {"partial_rotary_factor": 1.0}}, {}, M, "its rotary_dim = 16 is not supported"),
    (MINIMAX | {"qk_norm_type": "per_head"}, {}, M, "its qk_norm_type = per_head is not supported"),
    ({k: v for k, v in SPARSE.items() if k != "indexer_rope_interleave"}, {}, M, "its config.json has no indexer_rope_interleave"),
    (SPARSE | {"indexer_rope_interleave": False}, {}, M, "its indexer_rope_interleave = False is not supported"),
    (SPARSE | {"indexer_types": ["full", "shared"] * 6}, {}, M, "its indexer_types are not what index_topk_freq, index_skip_topk_offset and"),
    (SPARSE | {"indexer_types": ["full"] * 2}, {}, M, "its config.json has indexer_types = \"2 layers\", which must name num_hidden_layers = 12"),
    (SPARSE | {"indexer_types": ["full", "none"] * 6}, {}, M, "its config.json has indexer_types = "),
    (SPARSE | {"index_topk_pattern": "SF" * 6}, {}, M, "its config.json has index_topk_pattern = \"SFSFSFSFSFSF\", which must give"),
    (SPARSE | {"index_topk_pattern": 4}, {}, M, "its config.json has index_topk_pattern = 4, which must name F or S for each layer"),
    (SPARSE | {"index_topk_freq": 0}, {}, M, "its config.json has index_topk_freq = 0, which must be a whole number from 1"),
    (SPARSE | SHARED, {"pipeline": 3}, f"{P}.pipeline", "a piece of a stage would begin with layer 4, which takes the tokens that"),
    (SPARSE | SHARED, {"pipeline": 2, "virtualPipeline": 2}, f"{P}.pipeline", "a piece of a stage would begin with layer 3, which takes"),
    (SPARSE | {"mlp_layer_types": ["sparse"] * 6}, {}, M, "its mlp_layer_types = ['sparse', 'sparse'"),
    (SPARSE | {"index_topk": 0}, {}, M, "its config.json has index_topk = 0, which must be a whole number from 1"),
    (EXPERTS | {"mlp_only_layers": [0]}, {}, M, "its mlp_only_layers = [0] is not supported"),
    (EXPERTS | {"decoder_sparse_step": 2}, {}, M, "its decoder_sparse_step = 2 is not supported"),
    (DENSE | {"quantization_config": {"bits": 4}}, {}, M, "its quantization_config = {'bits': 4} is not supported"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "sizes", "field", "rule"), RULES)
def test_a_broken_rule_is_found_at_its_field(
    config: dict[str, Any], sizes: dict[str, Any], field: str, rule: str
) -> None:
    ((found, text),) = ((f, r) for f, r in check(config, **sizes) if "vLLM generates" not in r)
    assert found == field
    assert text.startswith(rule)


@pytest.mark.parametrize("kind", ["mimo", "gpt2"])
def test_a_family_that_is_not_proven_is_refused_with_the_list_of_those_that_are(kind: str) -> None:
    (found,) = model_violations(make_spec(), DENSE | {"model_type": kind})
    assert (found.rule, found.fix) == (f"its model_type is {kind}", f"use one of {', '.join(FAMILIES)}")


@pytest.mark.parametrize("kind", ["glm_moe_dsa", "deepseek_v32"])
@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_a_family_with_sparse_attention_is_trained_and_does_not_generate(kind: str, device: str) -> None:
    config = SPARSE | {"model_type": kind, "indexer_rope_interleave": kind == "glm_moe_dsa"}
    (found,) = model_violations(make_spec(trainer={"device": device}), config)
    assert found.rule == f"nothing shows that vLLM generates with {kind} on a {device} as it is trained"
    assert found.fix == "set spec.task to sft, dpo or pretrain"


@pytest.mark.parametrize("kinds", [SHARED, {"index_topk_pattern": "FFFSSSFSSSFS"}])
def test_pieces_of_stages_begin_with_layers_that_choose_tokens(kinds: dict[str, Any]) -> None:
    cut = {"transformerConfig": {"pipeline_model_parallel_layout": "Etttttt|tttt|ttL"}}
    found = [*check(SPARSE | kinds, cut, pipeline=3), *check(SPARSE | kinds, pipeline=2)]
    assert [rule for _, rule in found if "vLLM generates" not in rule] == []


def test_keys_that_an_indexer_would_ignore_are_refused() -> None:
    keys = {"dsa_indexer_loss_coeff": 0.1, "dsa_kernel_backend": "cudnn"}
    found = check(SPARSE, {"transformerConfig": keys})
    rule = "config.json says how the indexer chooses, and it is frozen"
    fields = [(f"spec.trainer.transformerConfig.{key}", rule) for key in keys]
    assert [each for each in found if "vLLM generates" not in each[1]] == fields
    assert check(LATENT, {"transformerConfig": keys}) == []


@pytest.mark.parametrize("kind", ["qwen3_5", "qwen3_5_moe"])
@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_a_family_that_generates_without_its_tower_alone_is_refused_with_the_way_to_that(
    device: str, kind: str
) -> None:
    (found,) = model_violations(make_spec(trainer={"device": device}), {"model_type": kind})
    assert found.rule == f"nothing shows that vLLM generates with {kind} on a {device} as it is trained"
    way = "save its language model as a directory of its own, with transformers' AutoModelForCausalLM, or "
    works = device in FAMILIES[FAMILIES[kind].language].servers
    assert works == (device == "gpu")
    assert found.fix == f"{way * works}set spec.task to sft, dpo or pretrain"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("kimi_k25", "its vision tower is not trained"),
        ("kimi_vl", "its vision tower is not trained"),
        ("kimi_linear", "megatron-bridge 0.6.2 cannot convert it"),
        ("kimi_k3", "megatron-bridge 0.6.2 cannot convert it"),
        ("glm5_next", "megatron-bridge 0.6.2 cannot convert it"),
    ],
)
def test_relatives_of_families_are_refused_with_the_reason(kind: str, reason: str) -> None:
    (found,) = model_violations(make_spec(), DENSE | {"model_type": kind})
    assert (found.rule, found.fix) == (f"its model_type is {kind}: {reason}", f"use one of {', '.join(FAMILIES)}")


@pytest.mark.parametrize("config", [HYBRID, NEXT | {"num_experts": 6}])
def test_gated_delta_nets_generate_on_gpus_with_the_kernels_that_were_compared(config: dict[str, Any]) -> None:
    def rules(**given: Any) -> list[tuple[str, str]]:
        return [(v.field, v.fix) for v in model_violations(make_spec(**given), config)]

    def servers(backend: str) -> dict[str, Any]:
        return {"trainer": {"device": "gpu"}, "rollout": {"vllmArgs": {"gdn-prefill-backend": backend}}}

    where = "spec.rollout.vllmArgs.gdn-prefill-backend"
    assert rules(**servers("triton")) == []
    assert rules(trainer={"device": "gpu"}) == rules(**servers("flashinfer")) == [(where, "set triton")]
    assert rules(trainer={"device": "cpu"}) == [
        ("spec.model.path", "set spec.trainer.device: gpu, or set spec.task to sft, dpo or pretrain")
    ]


def test_rope_scaling_of_llama_3_is_known_with_its_own_frequencies_only() -> None:
    assert check(DENSE | {"rope_scaling": LLAMA3}) == []
    ((_, rule),) = check(DENSE | {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 4096}})
    assert rule.startswith("its rope_scaling = {")


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


REWARD = {"rewards": [{"model": {"path": "/data/judge"}}], "data": {"train": ["/data/a.parquet"], "imageKey": "images"}}
SEEN = [
    ({"trainer": {"nodes": 2, "parallelism": {"pipeline": 2}}}, f"{P}.pipeline", "pipeline parallelism of models with a vision"),
    ({"trainer": {"nodes": 2, "parallelism": {"context": 2}}}, f"{P}.context", "context parallelism of models with a vision"),
    ({"trainer": {"nodes": 2, "overlap": {"gradReduce": True}}}, "spec.trainer.overlap.gradReduce", "a micro-batch without an image"),
    ({"algorithm": {"advantage": "gae"}, "critic": {}}, "spec.critic", "a critic of the type qwen2_5_vl is not proven"),
    ({"model": {"path": "/data/model", "lora": {}}}, "spec.model.lora", "adapters are refused in models of the type qwen2_5_vl: not proven with"),
    ({"task": "rewardModel"}, "spec.task", "reward models of the type qwen2_5_vl are not proven"),
    (REWARD, "spec.rewards[0].model", "reward models on the trainer's ranks read no images"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "field", "rule"), SEEN)
def test_what_is_not_proven_with_images_is_refused_by_name(changes: dict[str, Any], field: str, rule: str) -> None:
    (found,) = model_violations(make_spec(**changes), VISION)
    assert found.field == field and found.rule.startswith(rule)


def test_images_are_read_and_parts_are_frozen_where_there_is_a_tower() -> None:
    data, frozen = {"train": ["/data/a.parquet"], "imageKey": "images"}, {"path": "/data/model", "freeze": ["vision"]}
    spec = make_spec(data=data, model=frozen, task="sft")
    assert list(model_violations(spec, VISION)) == []
    refused = [(v.field, v.fix) for v in model_violations(spec, DENSE)]
    fix = "remove it, or use one of qwen2_5_vl, qwen3_vl, qwen3_vl_moe, qwen3_5, qwen3_5_moe"
    assert refused == [("spec.data.imageKey", fix), ("spec.model.freeze", fix)]
    assert [v.fix for v in model_violations(make_spec(data=data), DENSE)] == [
        fix.removesuffix(", qwen3_vl_moe, qwen3_5, qwen3_5_moe")
    ]
    whole = make_spec(
        task="sft", model=frozen | {"freeze": ["projector", "vision"]}, trainer={"overlap": {"gradReduce": True}}
    )
    assert list(model_violations(whole, VISION)) == [], "nothing of the tower has a gradient"


def test_a_language_model_in_a_section_of_its_own_keeps_the_rules() -> None:
    assert set(check(VISION, tensor=3)) > set(check(DENSE, tensor=3)) != set()
    odd = [rule for field, rule in check(VISION, tensor=2) if field == f"{P}.tensor"]
    assert odd == ["vocab_size = 101 of a model with a vision tower is not divisible by it"]
    flat = {key: value for key, value in VISION.items() if key != "text_config"} | DENSE | {"model_type": "qwen2_5_vl"}
    assert check(flat | {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}) == []


def test_nothing_is_generated_on_a_device_where_that_is_not_proven() -> None:
    biased = {"model_type": "gpt_oss", "vocab_size": 101}
    (found,) = (v for v in model_violations(make_spec(), biased) if v.field == M and v.rule.startswith("nothing shows"))
    assert found.rule == "nothing shows that vLLM generates with gpt_oss on a cpu as it is trained"
    assert found.fix == "set spec.trainer.device: gpu, or set spec.task to sft, dpo or pretrain"
    assert not [v for v in model_violations(make_spec(trainer={"device": "gpu"}), biased) if v.rule == found.rule]


def test_latents_of_another_width_are_generated_with_on_gpus_alone() -> None:
    narrow = {"model_type": "deepseek_v2", "kv_lora_rank": 32, "qk_rope_head_dim": 64, "vocab_size": 101}
    (found,) = model_violations(make_spec(), narrow)
    assert str(found) == (
        "spec.model.path = /data/model: vLLM's CPU build computes latent attention with kv_lora_rank = 512 only, and the model has 32; set "
        "spec.trainer.device: gpu, or set spec.task to sft, dpo or pretrain"
    )
    assert list(model_violations(make_spec(trainer={"device": "gpu"}), narrow)) == []
    assert list(model_violations(make_spec(), narrow | {"kv_lora_rank": 512})) == []


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


T = "spec.rollout.tensorParallel"


@pytest.mark.parametrize(
    ("config", "rollout", "field", "rule"),
    [
        (DENSE, {"tensorParallel": 3}, T, "num_attention_heads = 8 of the model is not divisible by it"),
        (
            DENSE,
            {"pipelineParallel": 64},
            "spec.rollout.pipelineParallel",
            "some stages would have none of the model's",
        ),
        (
            DENSE,
            {"tensorParallel": 2, "expertParallel": True},
            "spec.rollout.expertParallel",
            "the model has no experts",
        ),
        (DENSE, {"dataParallel": 2}, "spec.rollout.dataParallel", "the model has no experts, so copies of it"),
        (
            EXPERTS,
            {"dataParallel": 16, "expertParallel": True},
            "spec.rollout.expertParallel",
            "tensorParallel x dataParallel = 16 GPUs would share",
        ),
        (DENSE | {"num_key_value_heads": 3}, {"tensorParallel": 2}, T, "num_key_value_heads = 3 of the model must be"),
        (DENSE | {"intermediate_size": 90}, {"tensorParallel": 4}, T, "intermediate_size = 90 of the model is not"),
        (EXPERTS | {"moe_intermediate_size": 30}, {"tensorParallel": 4}, T, "moe_intermediate_size = 30 of the model"),
        (DENSE | {"max_position_embeddings": 23}, {}, "spec.rollout.sampling.maxTokens", "the longest prompt and resp"),
    ],
)
def test_what_vllm_would_refuse_is_found_before_a_server_starts(
    config: dict[str, Any], rollout: dict[str, Any], field: str, rule: str
) -> None:
    sampling = {"sampling": {"maxTokens": 8}}
    (found, *others) = model_violations(make_spec(rollout=sampling | rollout), config)
    assert found.field == field and found.rule.startswith(rule)
    assert all("intermediate_size" in v.rule for v in others)
    replayed = make_spec(rollout=sampling | rollout, train={"steps": 1, "batches": {"replay": "/b"}})
    assert not list(model_violations(replayed, config)), "nothing is generated"


def test_positions_are_those_that_vllm_counts() -> None:
    short = DENSE | {"max_position_embeddings": 12}
    assert check(short | {"rope_scaling": {"type": "linear", "factor": 2.0}}) == []
    yarn = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 12}
    assert check(DENSE | {"max_position_embeddings": 24, "rope_scaling": yarn}) == []
    assert check(short | {"rope_scaling": yarn}) != [], "the factor is in max_position_embeddings already"
    allowed = make_spec(env=[{"name": "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "value": "1"}])
    assert not list(model_violations(allowed, short))
    whole = make_spec(rollout={"tensorParallel": 2, "dataParallel": 2, "expertParallel": True})
    assert not list(model_violations(whole, EXPERTS | {"moe_intermediate_size": 30}))


def test_a_family_without_proven_generation_trains_without_rollouts() -> None:
    config = EXPERTS | {"model_type": "gpt_oss", "rope_scaling": {"type": "yarn"}}
    ((field, rule),) = check(config)
    others = make_spec(
        trainer={"device": "cpu", "nodes": 2, "parallelism": {"tensor": 2}},
        train={"steps": 1, "batches": {"replay": "/b"}},
    )
    (cut,) = model_violations(others, config)
    assert (cut.field, cut.fix) == (f"{P}.expertTensor", "set 1")
    assert (field, rule) == (M, "nothing shows that vLLM generates with gpt_oss on a cpu as it is trained")
    assert not list(model_violations(make_spec(train={"steps": 1, "batches": {"replay": "/b"}}), config))


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


def test_a_refused_model_type_is_told_the_supported_ones() -> None:
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


def test_experts_come_from_the_prefix_cache_which_must_be_on() -> None:
    algorithm = {"rolloutCorrection": {"routerReplay": "rollout"}}
    uncached = make_spec(algorithm=algorithm, rollout={"vllmArgs": {"enable-prefix-caching": False}})
    (found,) = (v for v in model_violations(uncached, EXPERTS) if v.field.endswith("routerReplay"))
    assert found.rule.endswith("vllmArgs.enable-prefix-caching is false")


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
