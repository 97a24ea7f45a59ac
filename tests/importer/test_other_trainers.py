"""FSDP and DeepSpeed: what their settings become where Megatron trains, and that the report says so."""

import json
from typing import Any

import pytest
import yaml

from importer.converted import verl
from importer.test_golden_files import CASES, FACTORY, HERE, INFINITE, V1, spec_of
from importer.test_values import options_of
from rljob_import import Options
from rljob_import.report import imported

MODEL, ACTOR = "actor_rollout_ref.model.", "actor_rollout_ref.actor."
OVERRIDE = f"+{ACTOR}megatron.override_transformer_config.recompute_granularity"
CHECKPOINTING = f"{MODEL}enable_gradient_checkpointing"


def recompute(spec: dict[str, Any]) -> str:
    return str(spec.get("trainer", {}).get("recompute", {}).get("granularity", "none"))


@pytest.mark.parametrize(
    ("given", "granularity"),
    [
        ("", "full"),
        (f"{ACTOR}strategy=fsdp2 {CHECKPOINTING}=True", "full"),
        (f"{CHECKPOINTING}=False", "none"),
        (f"{ACTOR}strategy=fsdp {OVERRIDE}=selective", "selective"),
        (f"model_engine=megatron {CHECKPOINTING}=True", "none"),
        (f"{ACTOR}megatron.tensor_model_parallel_size=2", "none"),
        ("--config-name=ppo_megatron_trainer", "none"),
        ("actor@actor_rollout_ref.actor=megatron_actor", "none"),
    ],
)
def test_verls_gradient_checkpointing_is_full_recomputation_unless_megatron_trains(
    given: str, granularity: str
) -> None:
    """verl 1dda039b9: only engines other than Megatron read enable_gradient_checkpointing, which is on by default."""
    found = verl(given)
    assert recompute(yaml.safe_load(found.manifest)["spec"]) == granularity
    assert ("the trainer is Megatron: choose trainer.parallelism (`kubectl rljob plan --suggest`" in found.report) is (
        "megatron" not in given or "strategy" in given
    )


def test_a_strategy_that_is_not_written_is_reported_as_verls_default() -> None:
    assert f"  {ACTOR}strategy = fsdp: by default; the trainer is Megatron" in verl("").report


@pytest.mark.parametrize(
    "key", [f"{ACTOR}ulysses_sequence_parallel_size", f"{ACTOR}fsdp_config.ulysses_sequence_parallel_size"]
)
def test_ulysses_becomes_context_parallelism_with_its_token_budget(key: str) -> None:
    budget = f"{ACTOR}use_dynamic_bsz=True {ACTOR}ppo_max_token_len_per_gpu=8192 "
    spec = yaml.safe_load(verl(f"{budget}{key}=4").manifest)["spec"]
    assert spec["trainer"]["parallelism"]["context"] == 4
    assert spec["train"]["tokensPerMicroBatch"] == 4 * 8192
    report = verl(f"{budget}model_engine=megatron {key}=4").report
    assert f"  {key} = 4: the job is the same without it" in report


def test_what_fsdp_keeps_in_host_memory_stays_there() -> None:
    given = f"{ACTOR}fsdp_config.param_offload=True {ACTOR}fsdp_config.optimizer_offload=True"
    every = {"parameters": True, "gradients": True, "optimizer": True}
    assert yaml.safe_load(verl(given).manifest)["spec"]["trainer"]["offload"] == every, (
        "FSDP holds no gradients between steps"
    )
    megatron = f"model_engine=megatron {ACTOR}megatron.param_offload=True"
    assert yaml.safe_load(verl(megatron).manifest)["spec"]["trainer"]["offload"] == {"parameters": True}
    critic = yaml.safe_load(verl("algorithm.adv_estimator=gae critic.fsdp_config.param_offload=True").manifest)["spec"][
        "critic"
    ]
    assert critic["offload"] == {"parameters": True, "gradients": True}


@pytest.mark.parametrize("role", ["actor_rollout_ref.ref", "critic"])
def test_another_roles_ulysses_is_reported_where_it_is_not_the_policys(role: str) -> None:
    given = f"algorithm.adv_estimator=gae {role}.ulysses_sequence_parallel_size=2 "
    assert f"  {role}.ulysses_sequence_parallel_size = 2: the " in verl(given).report.partition("Changed or assumed")[2]
    same = verl(f"{given}{ACTOR}ulysses_sequence_parallel_size=2").report.partition("Changed or assumed")[2]
    assert f"{role}.ulysses" not in same


SFT = "torchrun -m verl.trainer.sft_trainer data.train_files=/data/a.parquet model.path=/data/m trainer.total_training_steps=5 "


def test_verls_supervised_trainer_is_on_fsdp_by_default() -> None:
    spec = spec_of(
        "verl",
        SFT + "engine.ulysses_sequence_parallel_size=2 data.max_token_len_per_gpu=6000 trainer.n_gpus_per_node=8",
    )
    assert recompute(spec) == "full" and spec["trainer"]["parallelism"]["context"] == 2
    assert spec["train"]["tokensPerMicroBatch"] == 2 * 6000
    assert recompute(spec_of("verl", f"{SFT}engine=megatron")) == "none"


def of_case(case: str, change: Any) -> dict[str, Any]:
    tree = yaml.safe_load((HERE / case).read_text())
    change(tree)
    return spec_of(case.split("/")[0], json.dumps(tree), options_of(case))


@pytest.mark.parametrize(("off", "granularity"), [(None, "full"), (True, "none")])
def test_rolls_fsdp_computes_layers_again_and_shares_sequences(off: bool | None, granularity: str) -> None:
    def change(tree: dict[str, Any]) -> None:
        tree["sft_train"]["strategy_args"] = {"strategy_name": "fsdp2_train", "strategy_config": {}}
        tree["sft_train"].setdefault("model_args", {}).update(ulysses_size=2, disable_gradient_checkpointing=off)

    spec = of_case("roll/sft.yaml", change)
    assert recompute(spec) == granularity and spec["trainer"]["parallelism"]["context"] == 2


def test_trinitys_default_is_fsdp() -> None:
    def change(tree: dict[str, Any]) -> None:
        del tree["trainer"]["trainer_strategy"]
        tree["trainer"]["ulysses_sequence_parallel_size"] = 2

    spec = of_case("trinity/dapo.yaml", change)
    assert recompute(spec) == "full" and spec["trainer"]["parallelism"]["context"] == 2
    assert spec["train"]["tokensPerMicroBatch"] == 2 * 24576


@pytest.mark.parametrize(
    ("backend", "on", "granularity"), [("fsdp", True, "full"), ("fsdp", False, "none"), ("megatron", True, "none")]
)
def test_rlinfs_fsdp_computes_layers_again_where_it_is_told_to(backend: str, on: bool, granularity: str) -> None:
    actor = {"training_backend": backend, "enable_offload": True, "fsdp_config": {"gradient_checkpointing": on}}
    spec = spec_of("rlinf", json.dumps(INFINITE | {"data": {"train_data_paths": ["/data/a.parquet"]}, "actor": actor}))
    assert recompute(spec) == granularity
    assert ("offload" in spec["trainer"]) is (backend == "fsdp")


@pytest.mark.parametrize(
    ("text", "granularity"),
    [
        (FACTORY, "full"),
        (FACTORY.replace("}", ", disable_gradient_checkpointing: true}"), "none"),
        (FACTORY.replace("}", ", use_mca: true}"), "none"),
        (FACTORY.replace("}", ", use_mca: true, recompute_granularity: full}"), "full"),
        (V1 + "model_class: llm}", "full"),
        (V1 + "model_class: llm, enable_activation_checkpointing: false}", "none"),
    ],
)
def test_llama_factory_computes_layers_again_unless_it_is_switched_off(text: str, granularity: str) -> None:
    assert recompute(spec_of("llamafactory", text, Options(data_sets={"pictures": {}}))) == granularity


def test_llama_factorys_deepspeed_is_reported() -> None:
    text = FACTORY.replace("}", ", deepspeed: ds_z3_config.json}")
    report = imported("llamafactory", text, "file", Options(data_sets={"pictures": {}})).report
    assert "  deepspeed = ds_z3_config.json: the trainer is Megatron: choose" in report.partition("Changed")[2]


def test_no_case_on_megatron_is_said_to_have_another_trainer() -> None:
    on_megatron = (
        "verl/grpo.sh",
        "verl/ppo.yaml",
        "verl/streamed.sh",
        "verl/guide.sh",
        "roll/sft.yaml",
        "trinity/sft.yaml",
    )
    for case in on_megatron:
        found = imported(case.split("/")[0], (HERE / case).read_text(), case, CASES[case])
        assert "choose trainer.parallelism" not in found.report, case
