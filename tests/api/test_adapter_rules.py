"""Targets of adapters, and the directories that they begin from."""

from typing import Any

import pytest

from api.specs import make_spec
from rljob_api.families import FAMILIES
from rljob_api.family import ADAPTED, Family
from rljob_api.rules import validate
from rljob_api.rules.lora import (
    adapter_violations,
    beginning_violations,
    given_violations,
    modules_of,
    named_modules,
    parts_of,
    settled,
)

QWEN = {"model_type": "qwen2", "num_attention_heads": 14, "num_key_value_heads": 2}
GIVEN = {"peft_type": "LORA", "r": 32, "lora_alpha": 32, "bias": "none", "target_modules": ["q_proj", "v_proj"]}
PAIR = {"path": "/data/adapter", "targets": ["linear_q", "linear_v"]}


def lora_spec(trainer: dict[str, Any] | None = None, **lora: Any) -> Any:
    return make_spec(model={"path": "/data/model", "lora": lora}, trainer=trainer or {})


def test_a_whole_matrix_and_parts_do_not_go_together() -> None:
    spec = lora_spec(targets=["linear_q", "linear_fc1"]).model_dump(by_alias=True, exclude_none=True, mode="json")
    (found,) = [v for v in validate(spec, "job").violations if v.field == "spec.model.lora.targets"]
    assert found.fix == "name all its parts in place of linear_fc1"


@pytest.mark.parametrize("targets", [["linear_qkv", "linear_fc1"], ["linear_q", "linear_proj", "linear_fc2"]])
def test_whole_matrices_go_together_and_so_do_parts(targets: list[str]) -> None:
    spec = lora_spec(targets=targets).model_dump(by_alias=True, exclude_none=True, mode="json")
    assert not [v for v in validate(spec, "job").violations if v.field == "spec.model.lora.targets"]


@pytest.mark.parametrize(
    ("tensor", "targets", "refused"), [(2, "linear_q", 0), (4, "linear_q", 1), (4, "linear_qkv", 0)]
)
def test_adapters_of_queries_alone_need_whole_heads_on_every_rank(tensor: int, targets: str, refused: int) -> None:
    spec = lora_spec({"nodes": 4, "parallelism": {"tensor": tensor}}, targets=[targets])
    assert len(list(adapter_violations(spec, QWEN))) == refused


def test_the_modules_of_parts_are_those_of_the_whole() -> None:
    whole = modules_of(["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"])
    assert modules_of(parts_of(whole)) == whole


def refusals(
    lora: dict[str, Any], config: dict[str, Any], modules: tuple[str, ...] = ("q_proj", "v_proj")
) -> list[str]:
    spec = lora_spec(**PAIR | lora)
    return [f"{v.field}: {v.rule}; {v.fix}" for v in given_violations(spec.model.lora, {}, GIVEN | config, modules)]


def test_adapters_of_the_same_settings_are_taken() -> None:
    assert not refusals({}, {"lora_dropout": 0.05, "use_dora": False, "rank_pattern": {}, "modules_to_save": None})


REFUSED: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = (
    ({"rank": 8}, {}, "spec.model.lora.rank: the adapters in /data/adapter have r = 32; set that, or remove spec.model.lora.path"),
    ({}, {"lora_alpha": 16}, "spec.model.lora.alpha: the adapters in /data/adapter have lora_alpha = 16; set that, or remove spec.model.lora.path"),
    ({}, {"use_rslora": True}, "spec.model.lora.path: its use_rslora = True is not supported; use plain LoRA, or merge it into the model first"),
    (
        {"targets": ["linear_qkv"]},
        {},
        "spec.model.lora.targets: the adapters in /data/adapter are of q_proj, v_proj; set [linear_q, linear_v], or remove spec.model.lora.path",
    ),
)  # fmt: skip


@pytest.mark.parametrize(("lora", "config", "said"), REFUSED)
def test_other_adapters_are_refused(lora: dict[str, Any], config: dict[str, Any], said: str) -> None:
    assert refusals(lora, config) == [said]


def test_adapters_of_other_modules_than_attention_and_feed_forward_are_to_be_merged() -> None:
    assert refusals({}, {}, ("q_proj", "lm_head"))[0].endswith("; merge them into the model first")


def test_the_modules_of_an_adapter_configuration_are_its_names_last_parts_and_unknown_of_an_expression() -> None:
    assert named_modules({"target_modules": ["q_proj", "model.layers.0.self_attn.v_proj"]}) == {"q_proj", "v_proj"}
    assert named_modules({"target_modules": ".*_proj"}) is None


@pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))
def test_a_family_has_adapters_of_all_matrices_or_says_why_not(family: Family) -> None:
    assert (set(family.adapters) == set(ADAPTED)) == (not family.unadapted)


@pytest.mark.parametrize("targets", [["linear_qkv", "linear_fc1"], ["linear_q", "linear_fc1_up"]])
def test_experts_have_no_adapters_and_the_message_says_what_has(targets: list[str]) -> None:
    config = {"model_type": "qwen3_moe", "num_attention_heads": 32, "num_key_value_heads": 4}
    (found,) = adapter_violations(lora_spec(targets=targets), config)
    assert str(found) == (
        f"spec.model.lora.targets = {', '.join(targets)}: {targets[1]}: refused in models of the type qwen3_moe: its feed-forward layers are "
        "experts; name matrices among linear_qkv, linear_proj only, or their parts"
    )


def test_what_the_files_have_as_one_tensor_has_one_adapter() -> None:
    config = {"model_type": "phi3", "num_attention_heads": 32, "num_key_value_heads": 32}
    (found,) = adapter_violations(lora_spec(targets=["linear_q", "linear_proj"]), config)
    assert str(found) == (
        "spec.model.lora.targets = linear_q, linear_proj: linear_q: refused in models of the type phi3: one tensor of its files has all parts; "
        "name matrices among linear_qkv, linear_proj, linear_fc1, linear_fc2 only"
    )
    given = GIVEN | {"target_modules": ["qkv_proj", "o_proj"]}
    assert not list(beginning_violations(lora_spec(path="/a", targets=["linear_qkv", "linear_proj"]), config, given))
    (found,) = beginning_violations(lora_spec(path="/a"), config, given)
    assert found.fix == "set [linear_qkv, linear_proj], or remove spec.model.lora.path"


def test_latent_attention_has_adapters_of_its_output_and_the_message_names_no_parts() -> None:
    config = {"model_type": "deepseek_v3", "num_attention_heads": 16, "num_key_value_heads": 16}
    (found,) = adapter_violations(lora_spec(targets=["linear_proj", "linear_fc1"]), config)
    assert str(found) == (
        "spec.model.lora.targets = linear_proj, linear_fc1: linear_fc1: refused in models of the type deepseek_v3: queries, keys and values come "
        "from latents, and its feed-forward layers are experts; name matrices among linear_proj only"
    )


@pytest.mark.parametrize(
    ("kind", "sync", "refused"),
    [("gpt_oss", "adapters", 1), ("gpt_oss", "merged", 0), ("qwen3_moe", "adapters", 0)],
)
def test_adapters_come_alone_only_to_servers_of_families_that_were_tested_with_them(
    kind: str, sync: str, refused: int
) -> None:
    found = list(adapter_violations(lora_spec(sync=sync), {"model_type": kind}))
    assert [(v.field, v.fix) for v in found] == [("spec.model.lora.sync", "set merged")] * refused


@pytest.mark.parametrize("family", [f for f in FAMILIES.values() if f.adapters], ids=lambda f: f.model_type)
def test_targets_that_are_not_named_are_all_that_the_family_has(family: Family) -> None:
    config = {"model_type": family.model_type}
    spec = lora_spec()
    assert not list(adapter_violations(spec, config))
    assert settled(spec.model.lora, config).targets == list(family.adapters)


def test_adapters_to_begin_from_are_held_against_the_targets_that_the_model_has() -> None:
    # whose family decides
    spec, given = lora_spec(path="/data/adapter"), GIVEN | {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}
    said = {kind: list(beginning_violations(spec, {"model_type": kind}, given)) for kind in ("qwen2", "qwen3_moe")}
    assert not said["qwen3_moe"] and not list(beginning_violations(spec, None, given))
    (found,) = said["qwen2"]
    assert found.rule == "the adapters in /data/adapter are of k_proj, o_proj, q_proj, v_proj"
    assert found.value == "unset (for this model: linear_qkv, linear_proj, linear_fc1, linear_fc2)"


def test_targets_that_a_family_has_no_adapters_of_are_refused_with_those_that_it_has() -> None:
    config = {"model_type": "glm4", "num_attention_heads": 32, "num_key_value_heads": 2}
    (found,) = adapter_violations(lora_spec(targets=["linear_q", "linear_fc1_up", "linear_fc2"]), config)
    assert str(found) == (
        "spec.model.lora.targets = linear_q, linear_fc1_up, linear_fc2: linear_fc1_up: refused in models of the type glm4: one tensor of its "
        "files has gate and up; name matrices among linear_qkv, linear_proj, linear_fc2 only, or their parts"
    )
    assert not list(adapter_violations(lora_spec(targets=["linear_q", "linear_proj"]), config))
