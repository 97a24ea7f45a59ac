"""Models with which servers do not generate, and cuts that vLLM would refuse."""

from typing import Any

import pytest

from api.model_configs import DENSE, EXPERTS, HYBRID, NEXT, SHARED, SPARSE, VISION, M, P, T, check
from api.specs import make_spec
from rljob_api.families import FAMILIES
from rljob_api.rules.foreign_keys import KEYS
from rljob_api.rules.model import model_violations
from rljob_api.rules.served_model import WINDOWS_ONLY_IF_USED

QWEN3_5 = {
    "model_type": "qwen3_5",
    "text_config": {"rope_parameters": {"mrope_section": [11, 11, 10], "mrope_interleaved": True}},
}


@pytest.mark.parametrize("kind", ["glm_moe_dsa", "deepseek_v32"])
def test_a_family_with_sparse_attention_generates_on_gpus(kind: str) -> None:
    config = SPARSE | {"model_type": kind, "indexer_rope_interleave": kind == "glm_moe_dsa"}
    assert not list(model_violations(make_spec(trainer={"device": "gpu"}), config))
    (found,) = model_violations(make_spec(trainer={"device": "cpu"}), config)
    assert found.rule == f"nothing shows that vLLM generates with {kind} on a cpu as it is trained"
    assert found.fix == "set spec.trainer.device: gpu, or set spec.task to sft, dpo or pretrain"


def test_layers_that_share_an_indexer_generate_on_gpus_alone() -> None:
    assert not list(model_violations(make_spec(trainer={"device": "gpu"}), SPARSE | SHARED))
    (found,) = model_violations(make_spec(trainer={"device": "cpu"}), SPARSE | SHARED)
    assert found.field == M and found.fix.startswith("set spec.trainer.device: gpu")


def test_every_family_generates_on_gpus() -> None:
    assert [name for name, family in FAMILIES.items() if "gpu" not in family.servers] == []


@pytest.mark.parametrize(
    "config", [HYBRID, NEXT | {"num_experts": 6}, QWEN3_5, QWEN3_5 | {"model_type": "qwen3_5_moe"}]
)
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
    assert check(DENSE | {"max_position_embeddings": 64, "rope_scaling": yarn}) == []
    assert check(DENSE | {"max_position_embeddings": 64, "rope_scaling": yarn | {"factor": 1.5}}) != [], (
        "angles end at 18"
    )
    allowed = make_spec(env=[{"name": "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "value": "1"}])
    assert list(model_violations(allowed, short)), "vLLM would read behind the end of its angles"
    longer = make_spec(rollout={"vllmArgs": {"hf-overrides": {"max_position_embeddings": 24}}})
    assert not list(model_violations(longer, short))
    whole = make_spec(rollout={"tensorParallel": 2, "dataParallel": 2, "expertParallel": True})
    assert not list(model_violations(whole, EXPERTS | {"moe_intermediate_size": 30}))


def test_a_family_without_proven_generation_trains_without_rollouts() -> None:
    config = DENSE | {"model_type": "gpt_oss", "num_local_experts": 6, "rope_scaling": {"type": "yarn"}}
    ((field, rule),) = check(config)
    others = make_spec(
        trainer={"device": "cpu", "nodes": 2, "parallelism": {"tensor": 2}},
        train={"steps": 1, "batches": {"replay": "/b"}},
    )
    (cut,) = model_violations(others, config)
    assert (cut.field, cut.fix) == (f"{P}.expertTensor", "set 1")
    assert (field, rule) == (M, "nothing shows that vLLM generates with gpt_oss on a cpu as it is trained")
    assert not list(model_violations(make_spec(train={"steps": 1, "batches": {"replay": "/b"}}), config))


def test_experts_come_from_the_prefix_cache_which_must_be_on() -> None:
    algorithm = {"rolloutCorrection": {"routerReplay": "rollout"}}
    uncached = make_spec(algorithm=algorithm, rollout={"vllmArgs": {"enable-prefix-caching": False}})
    (found,) = (v for v in model_violations(uncached, EXPERTS) if v.field.endswith("routerReplay"))
    assert found.rule.endswith("vllmArgs.enable-prefix-caching is false")


OWN_KEYS = [
    ({"sliding_window": 4096}, "sliding_window", "4096"),
    ({"head_dtype": "bfloat16"}, "head_dtype", '"bfloat16"'),
    ({"is_encoder_decoder": True}, "is_encoder_decoder", "true"),
    ({"is_mm_prefix_lm": True}, "is_mm_prefix_lm", "true"),
    ({"rswa_window": 0}, "rswa_window", "0"),
    ({"compression_config": {"quant_method": "fp8"}}, "compression_config", '{"quant_method": "fp8"}'),
    ({"rope_parameters": {"rope_type": "default", "rope_dim": 8}}, "rope_parameters.rope_dim", "8"),
    ({"rope_scaling": {"type": "default", "use_fope": True}}, "rope_scaling.use_fope", "true"),
    ({"rope_parameters": {"mrope_section": [8, 4, 4]}}, "rope_parameters.mrope_section", "[8, 4, 4]"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary_factor", "0.5"),
    ({"rope_parameters": {"sliding_attention": {"rope_dim": 8}}}, "rope_parameters.sliding_attention.rope_dim", "8"),
]


@pytest.mark.parametrize("section", ["", "text_config"])
def test_a_key_that_vllm_alone_follows_counts_in_and_outside_the_section_of_the_language_model(section: str) -> None:
    text = VISION["text_config"] | {"is_encoder_decoder": section == "text_config"}
    given = VISION | {"text_config": text, "is_encoder_decoder": section == ""}
    assert check(given) == [
        (M, "its config.json has is_encoder_decoder = true, which vLLM follows, and trainer and transformers do not")
    ]
    assert check(given | {"is_encoder_decoder": False, "text_config": text | {"is_encoder_decoder": False}}) == []


@pytest.mark.parametrize(("config", "key", "value"), OWN_KEYS)
def test_a_key_that_vllm_alone_follows_is_refused_where_there_are_rollouts(
    config: dict[str, Any], key: str, value: str
) -> None:
    given, replayed = DENSE | config, {"steps": 1, "batches": {"replay": "/b"}}
    (found,) = model_violations(make_spec(), given)
    assert found.field == M
    assert found.rule == (
        f"its config.json has {key} = {value}, which vLLM follows, and trainer and transformers do not"
    )
    assert found.fix == "remove it there, or set spec.task to sft, dpo or pretrain"
    assert not list(model_violations(make_spec(train=replayed), given)), "nothing is generated"


def test_a_key_that_vllm_alone_reads_is_taken_where_it_says_nothing() -> None:
    rope = {"rope_type": "default", "use_fope": False, "rope_dim": None, "partial_rotary_factor": 1.0}
    for name in ("model", "float32", None):
        assert (
            check(
                DENSE
                | {"sliding_window": 0, "head_dtype": name, "compression_config": None, "rope_parameters": rope}
                | {"is_encoder_decoder": False, "is_mm_prefix_lm": False, "rswa_window": None}
            )
            == []
        )


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_family_that_has_windows_sections_or_heads_that_rotate_in_part_may_say_so(kind: str) -> None:
    """What a family may say of them is a matter of its other rules."""
    rope = {"rope_type": "default", "partial_rotary_factor": 0.5, "mrope_section": [8, 4, 4]}
    config = {"model_type": kind, "rope_parameters": rope, "sliding_window": 8}
    rules = "".join(v.rule for v in model_violations(make_spec(), config))
    windows = FAMILIES[kind].windows or kind in WINDOWS_ONLY_IF_USED
    assert ("sliding_window = 8, which" in rules) is not windows
    parts = kind in KEYS["partial_rotary_factor"].families
    assert ("partial_rotary_factor = 0.5, which" in rules) is not parts
    sections = FAMILIES[kind].vision or kind in ("qwen3_5_text", "qwen3_5_moe_text")
    assert ("mrope_section = [8, 4, 4], which" in rules) is not sections


@pytest.mark.parametrize(
    ("kind", "key", "value", "served"),
    [
        ("mixtral", "hidden_act", "gelu", "silu"),
        ("llama", "hidden_act", "relu", "silu"),
        ("gemma3_text", "hidden_activation", "silu", "gelu_pytorch_tanh"),
    ],
)
def test_an_activation_that_vllm_does_not_compute_is_trained_without_rollouts(
    kind: str, key: str, value: str, served: str
) -> None:
    given, replayed = {"model_type": kind, key: value}, make_spec(train={"steps": 1, "batches": {"replay": "/b"}})
    (found,) = model_violations(make_spec(), given)
    assert found.rule == f'its config.json has {key} = "{value}", and vLLM computes {served} in models of this type'
    assert not list(model_violations(make_spec(), {"model_type": kind, key: served}))
    assert not list(model_violations(replayed, given))
