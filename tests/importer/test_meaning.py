"""Settings whose value an import once lost, or replaced without a word: each with the value that it has in its own system."""

import json
from typing import Any

import pytest
import yaml

from cli.conftest import Rljob
from importer.converted import verl
from importer.test_golden_files import CASES, GROUP, HERE, INFINITE, VERL, spec_of
from importer.test_values import text_of
from rljob_api.rules import validate
from rljob_import import Options
from rljob_import.report import imported

VAL = "data.val_files=/data/v.parquet trainer.test_freq=5 "
KWARGS = "actor_rollout_ref.rollout.val_kwargs."


@pytest.mark.parametrize(("value", "said"), [("False", True), ("True", False), ("null", True)])
def test_verls_evaluation_before_the_first_step_is_reported_when_it_is_off(value: str, said: bool) -> None:
    report = verl(f"{VAL}trainer.val_before_train={value}").report
    assert ("trainer.val_before_train = " in report.partition("Not expressible")[2]) is said


@pytest.mark.parametrize("sampled", ["", f"{KWARGS}do_sample=False", f"{KWARGS}do_sample=True"])
def test_verl_answers_held_out_prompts_by_the_temperature_alone(sampled: str) -> None:
    """verl 1dda039b9, experimental/agent_loop/agent_loop.py: temperature, top_p and top_k of val_kwargs, and never do_sample."""
    given = f"{VAL}{KWARGS}temperature=1 {KWARGS}top_p=0.7 {KWARGS}n=30 {sampled}"
    evaluation = yaml.safe_load(verl(given).manifest)["spec"]["evaluation"]
    assert evaluation["sampling"]["temperature"] == 1 and evaluation["sampling"]["topP"] == 0.7
    assert evaluation["samplesPerPrompt"] == 30
    greedy = yaml.safe_load(verl(VAL).manifest)["spec"]["evaluation"]
    assert greedy["sampling"].get("temperature", 0) == 0 and "samplesPerPrompt" not in greedy


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("exp_avg_dtype=bf16 {o}exp_avg_sq_dtype=bf16 {o}use_precision_aware_optimizer=True", True),
        ("exp_avg_sq_dtype=fp16 {o}use_precision_aware_optimizer=True", True),
        ("exp_avg_dtype=bf16 {o}exp_avg_sq_dtype=bf16", False),
        ("exp_avg_dtype=float32 {o}use_precision_aware_optimizer=True", False),
        ("use_precision_aware_optimizer=True", False),
    ],
)
def test_verls_narrower_moments_are_reported_where_its_optimizer_reads_their_type(given: str, said: bool) -> None:
    o = "actor_rollout_ref.actor.optim."
    report = verl(f"{o}betas=[0.9,0.95] {o}{given.format(o=o)}").report
    assert ("train.optimizer.momentsDtype" in report.partition("Not expressible")[2]) is said


def test_trinitys_critic_has_an_optimizer_of_its_own() -> None:
    tree = yaml.safe_load((HERE / "trinity/ppo-megatron.yaml").read_text())
    critic = tree["trainer"]["trainer_config"].setdefault("critic", {})
    critic["optim"] = {"lr": 2e-5, "weight_decay": 0.02, "betas": [0.8, 0.98], "lr_warmup_steps": 5}
    critic.pop("cliprange_value", None)
    found = spec_of("trinity", json.dumps(tree), CASES["trinity/ppo-megatron.yaml"])["critic"]
    rates = {"learningRate": 2e-5, "weightDecay": 0.02, "beta1": 0.8, "beta2": 0.98, "warmupSteps": 5}
    assert found["optimizer"].items() >= rates.items()
    assert found["clip"] == 0, "Trinity's default is not to clip"


def test_rolls_critic_has_the_defaults_of_transformers() -> None:
    tree = yaml.safe_load((HERE / "roll/async-ppo.yaml").read_text())
    tree["critic"]["training_args"] = {"adam_beta1": 0.8, "warmup_ratio": 0.1}
    optimizer = spec_of("roll", json.dumps(tree), CASES["roll/async-ppo.yaml"])["critic"]["optimizer"]
    assert optimizer == {"learningRate": 5e-5, "decay": "linear", "beta1": 0.8, "beta2": 0.999, "warmupSteps": 20}


@pytest.mark.parametrize(("given", "offload"), [(None, True), (True, True), (False, False)])
def test_rolls_training_states_leave_gpus_that_generate(given: bool | None, offload: bool) -> None:
    tree = yaml.safe_load((HERE / "roll/rlvr-moe.yaml").read_text())
    tree["actor_train"].pop("is_offload_states", None)
    if given is not None:
        tree["actor_train"]["is_offload_states"] = given
    trainer = spec_of("roll", json.dumps(tree), CASES["roll/rlvr-moe.yaml"])["trainer"]
    parts = ("parameters", "gradients", "optimizer")
    assert trainer.get("offload", {}) == (dict.fromkeys(parts, True) if offload else {})


@pytest.mark.parametrize(
    ("precision", "fsdp", "dtype"),
    [
        ("fp32", {}, "float32"),
        ("fp32", {"mixed_precision": {"param_dtype": "bf16"}}, "bfloat16"),
        ("fp32", {"mixed_precision": {"param_dtype": "fp16"}}, "bfloat16"),
        ("fp32", {"amp_autocast": {"enabled": True, "precision": "bf16"}}, "bfloat16"),
        ("fp32", {"amp_autocast": {"enabled": False, "precision": "bf16"}}, "float32"),
        ("bf16", {}, "bfloat16"),
    ],
)
def test_mixed_precision_of_rlinf_is_the_type_of_the_passes(precision: str, fsdp: dict[str, Any], dtype: str) -> None:
    actor = {"model": {"precision": precision}, "fsdp_config": fsdp}
    tree = INFINITE | {"data": {"train_data_paths": ["/data/a.parquet"]}, "actor": actor}
    assert spec_of("rlinf", json.dumps(tree))["model"].get("dtype", "bfloat16") == dtype


@pytest.mark.parametrize(("mode", "ours"), [("R2", "trainer"), ("R3", "rollout"), ("disabled", "none")])
def test_router_replay_is_imported(mode: str, ours: str | None) -> None:
    key = "actor_rollout_ref.actor.megatron.router_replay.mode"
    correction = yaml.safe_load(verl(f"{key}={mode}").manifest)["spec"]["algorithm"].get("rolloutCorrection", {})
    assert correction.get("routerReplay") == ours


def test_adapters_of_roll_and_trinity_are_imported() -> None:
    tree = yaml.safe_load((HERE / "roll/rlvr-moe.yaml").read_text())
    tree["actor_train"].setdefault("model_args", {}).update(lora_rank=16, lora_alpha=8, lora_target="o_proj")
    lora = spec_of("roll", json.dumps(tree), CASES["roll/rlvr-moe.yaml"])["model"]["lora"]
    assert lora == {"rank": 16, "alpha": 8, "targets": ["linear_proj"]}
    tree = yaml.safe_load((HERE / "trinity/dapo.yaml").read_text().replace("${oc.env:TASKS}", "/data/a.jsonl"))
    tree["model"]["lora_configs"] = [{"name": "a", "lora_rank": 4, "lora_alpha": 64}]
    assert spec_of("trinity", json.dumps(tree), CASES["trinity/dapo.yaml"])["model"]["lora"] == {"rank": 4, "alpha": 64}


@pytest.mark.parametrize(
    ("system", "text", "part"),
    [
        ("verl", "algorithm.adv_estimator=grpo_passk", "advantage"),
        ("verl", "actor_rollout_ref.actor.policy_loss.loss_mode=sapo", "loss"),
        ("rlinf", {"algorithm": {"group_size": 4, "adv_type": "gigpo"}}, "advantage"),
        ("roll", {"adv_estimator": "gigpo"}, "advantage"),
        ("roll", {"pg_variant": "topr"}, "loss"),
        ("rlinf", {"algorithm": {"group_size": 4, "loss_type": "decoupled"}}, "loss"),
        ("trinity", {"algorithm_type": "asymre"}, "advantage"),
        ("trinity", {"algorithm_type": "sapo"}, "loss"),
        ("trinity", {"algorithm_type": "grpo", "policy_loss_fn": "sapo"}, "loss"),
    ],
)
def test_an_algorithm_that_is_not_there_is_refused_unless_a_formula_is_named(system: str, text: Any, part: str) -> None:
    options = CASES["roll/rlvr-moe.yaml"] if system == "roll" else Options()
    base = {
        "roll": lambda: yaml.safe_load((HERE / "roll/rlvr-moe.yaml").read_text()),
        "rlinf": lambda: INFINITE | {"data": {"train_data_paths": ["/data/a.parquet"]}},
    }
    if system == "trinity":
        tree = yaml.safe_load((HERE / "trinity/dapo.yaml").read_text().replace("${oc.env:TASKS}", "/data/a.jsonl"))
        text = tree | {"algorithm": {"repeat_times": 8} | text}
        base["trinity"], options = dict, CASES["trinity/dapo.yaml"]
    given = VERL + GROUP + text if system == "verl" else json.dumps(base[system]() | text)
    (problem,) = imported(system, given, "file", options).problems
    assert "name its file with --formula" in problem.text
    own = imported(system, given, "file", Options(**vars(options) | {"formula": "/data/formula.py"}))
    assert not own.problems, own.problems
    algorithm = yaml.safe_load(own.manifest)["spec"]["algorithm"]
    assert algorithm[part] == "python"
    assert algorithm[f"{part}Function"] == {"path": "/data/formula.py", "function": part}


def test_a_reward_model_of_verls_is_a_pool() -> None:
    rm = "reward.reward_model."
    given = f"{rm}enable=True {rm}model_path=/data/rm {rm}rollout.tensor_model_parallel_size=4"
    spec = yaml.safe_load(verl(given).manifest)["spec"]
    (pool,) = spec["pools"]
    assert pool == {
        "name": "scores",
        "model": "/data/rm",
        "replicas": 1,
        "tensorParallel": 4,
        "vllmArgs": {"runner": "pooling"},
    }
    assert spec["rewards"] == [{"vllm": {"pool": "scores"}}] and validate(spec, "demo").valid
    more = f"{given} {rm}enable_resource_pool=True {rm}n_gpus_per_node=8 {rm}nnodes=2"
    assert yaml.safe_load(verl(more).manifest)["spec"]["pools"][0]["replicas"] == 4
    assert "reward-model:8000" in verl(f"{rm}enable=True").manifest, "a model without a name is served elsewhere"


def test_what_leaves_numerators_and_not_denominators_is_said() -> None:
    text = text_of("roll/rlvr-moe.yaml", ("max_len_mask",), True)
    report = imported("roll", text, "file", CASES["roll/rlvr-moe.yaml"]).report
    assert "max_len_mask = true: what is masked gives no gradient, and stays in denominators" in report
    rejected = (
        "algorithm.rollout_correction.rollout_rs=token_k1 algorithm.rollout_correction.rollout_rs_threshold=0.5_2.0"
    )
    assert "gives no gradient, and stays in the denominators" in verl(rejected).report


def test_the_model_of_a_hub_is_fetched() -> None:
    spec = yaml.safe_load(verl("actor_rollout_ref.model.path=Qwen/Qwen3-8B").manifest)["spec"]
    assert spec["model"].items() >= {"path": "/data/Qwen/Qwen3-8B", "source": "hf://Qwen/Qwen3-8B"}.items()
    assert validate(spec, "demo").valid
    assert "source" not in yaml.safe_load(verl("").manifest)["spec"]["model"]


def test_checkpoints_without_a_bound_are_said_to_take_space() -> None:
    assert "14 bytes per parameter" in verl("").report
    assert "14 bytes per parameter" not in verl("trainer.max_actor_ckpt_to_keep=3").report


@pytest.mark.parametrize("system", ["trl", "TRL", "slime", "NeMo-RL", "nemo_rl", "OpenRLHF"])
def test_a_system_that_is_not_read_is_refused_with_the_pages_for_it(rljob: Rljob, system: str) -> None:
    screen = rljob("import", system, "file.yaml")
    assert screen.code == 2
    assert f"{system} is not read" in screen.err and "write the job by docs/" in screen.err


def test_a_penalty_of_rlinfs_reinforce_is_in_the_reward() -> None:
    algorithm = {"group_size": 4, "adv_type": "reinpp", "reinpp_kl_beta": 0.01, "kl_penalty_type": "k1"}
    tree = INFINITE | {"data": {"train_data_paths": ["/data/a.parquet"]}, "algorithm": algorithm}
    assert spec_of("rlinf", json.dumps(tree))["algorithm"]["kl"] == {
        "coefficient": 0.01,
        "where": "reward",
        "estimator": "k1",
    }


def test_prompts_as_json_text_need_no_change() -> None:
    text = text_of("roll/rlvr-moe.yaml", ("exp_name",), "demo")
    assert "JSON text" not in imported("roll", text, "file", CASES["roll/rlvr-moe.yaml"]).report


FILTER = (
    "algorithm.filter_groups.enable=True algorithm.filter_groups.max_num_gen_batches=9 algorithm.filter_groups.metric="
)
BUFFER = " reward.reward_kwargs.overlong_buffer_cfg.enable=True reward.reward_kwargs.overlong_buffer_cfg.len=9"


@pytest.mark.parametrize(
    ("given", "heading"),
    [
        ("acc", "Changed"),
        ("score", "Implied"),
        ("seq_reward", "Implied"),
        (f"seq_reward{BUFFER} reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=1", "Changed"),
        ("seq_final_reward", "Implied"),
        ("seq_final_reward algorithm.use_kl_in_reward=True", "Changed"),
        ("entropy", "Not expressible"),
    ],
)
def test_verls_metric_of_groups_is_the_same_only_where_it_is_the_reward_that_groups_are_filtered_by(
    given: str, heading: str
) -> None:
    sections = [part for part in verl(FILTER + given).report.split("\n\n") if "filter_groups.metric = " in part]
    assert len(sections) == 1 and sections[0].startswith(heading)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("reward.custom_reward_function.path=/home/me/reward.py", "put the file at /home/me/reward.py on the volume"),
        ("custom_reward_function.path=code/reward.py", "put the file at /data/code/reward.py on the volume"),
        ("reward.reward_manager.module.path=code/manager.py", "name it in spec.rewards[].python"),
        ("actor_rollout_ref.rollout.quantization_config_file=q.json", "rollout.vllmArgs.quantization"),
        ("actor_rollout_ref.rollout.dtype=float16", "model.dtype"),
        ("actor_rollout_ref.rollout.logprobs_mode=raw_logprobs", "that tokens were drawn with"),
    ],
)
def test_what_verl_runs_with_and_an_rljob_without_is_never_said_to_be_implied(given: str, said: str) -> None:
    lines = [line for line in verl(given).report.splitlines() if line.startswith(f"  {given.split('=')[0]} = ")]
    implied = verl(given).report.partition("Implied")[2].partition("\n\n")[0]
    assert len(lines) == 1 and said in lines[0] and lines[0] not in implied


@pytest.mark.parametrize(
    ("estimator", "whitened", "said"),
    [("grpo", True, "Not expressible"), ("gae", False, "Changed"), ("gae", True, "")],
)
def test_rolls_whitening_is_reported_where_an_rljob_does_otherwise(estimator: str, whitened: bool, said: str) -> None:
    case = "roll/rlvr-moe.yaml" if estimator == "grpo" else "roll/async-ppo.yaml"
    tree = yaml.safe_load((HERE / case).read_text()) | {"adv_estimator": estimator, "whiten_advantages": whitened}
    report = imported("roll", json.dumps(tree), "roll.yaml", CASES[case]).report
    sections = [part for part in report.split("\n\n") if "  whiten_advantages = " in part]
    assert [part.partition(" ")[0] for part in sections] == ([said.partition(" ")[0]] if said else ["Implied,"])


def test_rlinfs_own_reward_function_has_to_be_named() -> None:
    tree = yaml.safe_load((HERE / "rlinf/grpo.yaml").read_text())
    tree["reward"]["custom_fn"] = {"path": "mine.py"}
    report = imported("rlinf", json.dumps(tree), "rlinf.yaml", CASES["rlinf/grpo.yaml"]).report
    assert "reward.custom_fn.path = mine.py" in report.partition("Not expressible")[2]
