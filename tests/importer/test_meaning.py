"""Settings whose value an import once lost, or replaced without a word: each with the value that it has in its own system."""

import json
from typing import Any

import pytest
import yaml

from cli.conftest import Rljob
from importer.test_golden_files import CASES, GROUP, HERE, INFINITE, VERL, spec_of
from importer.test_values import text_of
from rljob_api.rules import validate
from rljob_import import Options
from rljob_import.readers.hydra import Unreadable
from rljob_import.report import Result, imported

VAL = "data.val_files=/data/v.parquet trainer.test_freq=5 "
KWARGS = "actor_rollout_ref.rollout.val_kwargs."


def verl(text: str, options: Options = Options()) -> Result:  # noqa: B008
    return imported("verl", VERL + GROUP + text, "run.sh", options)


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


FACTORY = {"stage": "sft", "model_name_or_path": "/m", "output_dir": "o", "max_steps": 5, "finetuning_type": "full"}


def factory(sets: dict[str, Any], **settings: Any) -> Result:
    given = FACTORY | {"dataset": ", ".join(sets), "template": "qwen"} | settings
    return imported("llamafactory", json.dumps(given), "file", Options(data_sets=sets))


def columns(**named: str) -> dict[str, Any]:
    return {"file_name": "a.jsonl", "columns": named}


def test_rows_with_columns_of_their_own_go_through_the_template() -> None:
    given = {"a": columns(prompt="question", response="answer")}
    data = yaml.safe_load(factory(given).manifest)["spec"]["data"]
    assert data["chatTemplate"] == {"texts": True}
    assert (data["format"], data["promptKey"], data["responseKey"]) == ("columns", "question", "answer")
    assert "chatTemplate" not in yaml.safe_load(factory(given, template="empty").manifest)["spec"]["data"]
    pairs = {"a": columns(prompt="question", chosen="good", rejected="bad") | {"ranking": True}}
    data = yaml.safe_load(factory(pairs, stage="dpo").manifest)["spec"]["data"]
    keys = ("format", "promptKey", "chosenKey", "rejectedKey", "chatTemplate")
    assert [data[key] for key in keys] == ["columns", "question", "good", "bad", {"texts": True}]


SHAREGPT = {"file_name": "a.json", "formatting": "sharegpt"}


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        (columns(prompt="question", response="answer", system="persona"), "columns.system"),
        (columns(prompt="question", response="answer", history="past"), "columns.history"),
        (columns(prompt="question", query="more", response="answer"), "columns.query"),
        (columns(prompt="instruction", query="input", response="output", system="persona"), "columns.system"),
        (columns(prompt="instruction", response="output", tools="functions"), "columns.tools"),
        (columns(prompt="instruction", response="output", videos="films"), "columns.videos"),
        (SHAREGPT | {"columns": {"messages": "dialog", "tools": "functions"}}, "columns.tools"),
        (SHAREGPT | {"columns": {"messages": "dialog", "kto_tag": "label"}}, "columns.kto_tag"),
        (SHAREGPT | {"tags": {"role_tag": "from", "content_tag": "value", "user_tag": "U"}}, "tags.user_tag"),
        ({"file_name": "a.json", "num_samples": 500}, "num_samples"),
        ({"hf_hub_url": "org/name", "subset": "en"}, "subset"),
        ({"hf_hub_url": "org/name", "folder": "x"}, "folder"),
        ({"file_name": "a.json", "split": "test"}, "split"),
        ({"file_name": "a.json", "novelty": 1}, "novelty"),
        ({"script_url": "make.py"}, "script_url"),
    ],
)
def test_what_no_field_says_of_a_data_set_is_reported_by_set_and_key(entry: dict[str, Any], key: str) -> None:
    found = factory({"some": entry})
    assert not found.problems
    assert f"  --dataset-info some: {key} = " in found.report.partition("Not expressible")[2]


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        (SHAREGPT | {"tags": {"role_tag": "speaker", "content_tag": "text"}}, "--dataset-info some: tags"),
        ({"file_name": "a.json", "formatting": "chatml"}, "--dataset-info some: formatting"),
        ("a.json", "dataset"),
    ],
)
def test_rows_that_nothing_reads_are_an_error(entry: Any, key: str) -> None:
    assert key in [problem.key for problem in factory({"some": entry}).problems]


def test_the_split_of_a_hub_is_the_file() -> None:
    manifest = factory({"a": {"hf_hub_url": "org/name", "split": "train_sft"}}).manifest
    assert yaml.safe_load(manifest)["spec"]["data"]["train"] == ["/data/org/name/train_sft.parquet"]


def test_a_mix_of_formats_is_read_file_by_file() -> None:
    found = factory({"chats": SHAREGPT, "tasks": {"file_name": "b.json"}})
    assert "format" not in yaml.safe_load(found.manifest)["spec"]["data"]
    assert "chats: sharegpt, tasks: alpaca; each file is read by its own columns" in found.report


def test_a_reward_model_is_not_trained_whole_at_the_rate_of_its_adapters() -> None:
    (problem,) = factory({"a": {"file_name": "a.json"}}, stage="rm", finetuning_type="lora").problems
    assert problem.key == "finetuning_type" and "a reward model is trained whole" in problem.text


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


TEACHER = "distillation.teacher_models.teacher_model."
TAUGHT = (
    f"distillation.enabled=True {TEACHER}model_path=/data/teacher distillation.nnodes=1 distillation.n_gpus_per_node=4 "
)
LOSS = "distillation.distillation_loss."
ALONE = f"{LOSS}use_task_rewards=False "


@pytest.mark.parametrize(
    ("given", "distillation", "changed"),
    [
        (f"{LOSS}loss_mode=k1 {LOSS}use_policy_gradient=True", {"where": "reward"}, False),
        (f"{LOSS}loss_mode=k3 {LOSS}use_policy_gradient=True", {"where": "reward"}, True),
        (f"{LOSS}loss_mode=k2", {"where": "loss"}, False),
        ("", {"where": "loss"}, True),
        (f"{LOSS}loss_mode=forward_kl_topk {LOSS}topk=64", {"where": "loss", "topK": 64}, True),
        (f"{LOSS}loss_mode=k2 {LOSS}distillation_loss_coef=0.5", {"where": "loss", "coefficient": 0.5}, False),
        (f"{ALONE}{LOSS}loss_mode=k2 {LOSS}distillation_loss_coef=0.5", {"where": "loss"}, False),
    ],
)
def test_a_teacher_of_verls_becomes_a_pool_and_its_divergence_what_the_spec_has(
    given: str, distillation: dict[str, Any], changed: bool
) -> None:
    found = verl(f"{TAUGHT}{TEACHER}inference.max_model_len=2048 {given}")
    spec = yaml.safe_load(found.manifest)["spec"]
    (pool,) = spec["pools"]
    assert {key: pool[key] for key in ("model", "replicas", "tensorParallel")} == {
        "model": "/data/teacher",
        "replicas": 2,
        "tensorParallel": 2,
    }
    most = {"max-logprobs": 64} if "topK" in distillation else {}
    assert pool["vllmArgs"] == {"max-model-len": 2048} | most
    written = {"where": "reward"} | spec["algorithm"]["distillation"]
    assert {key: value for key, value in written.items() if (key, value) != ("coefficient", 1.0)} == {
        "pool": "teacher"
    } | distillation
    assert ("rewards" in spec) is (ALONE not in given)
    filtered = verl(f"{TAUGHT}{given} algorithm.filter_groups.enable=True")
    assert filtered.valid and ("dynamicSampling:" in filtered.manifest) is (ALONE not in given)
    assert (f"{LOSS}loss_mode = " in found.report.partition("Changed or assumed")[2]) is changed
    assert validate(spec, "demo").valid


@pytest.mark.parametrize(("topk", "reported"), [(128, False), (129, True)])
def test_more_tokens_of_a_teacher_than_a_job_compares_are_cut_and_the_report_says_so(topk: int, reported: bool) -> None:
    found = verl(f"{TAUGHT}{LOSS}loss_mode=forward_kl_topk {LOSS}topk={topk}")
    spec = yaml.safe_load(found.manifest)["spec"]
    assert (spec["algorithm"]["distillation"]["topK"], spec["pools"][0]["vllmArgs"]["max-logprobs"]) == (128, 128)
    assert (f"{LOSS}topk = 129" in found.report.partition("Changed or assumed")[2]) is reported
    assert found.valid


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ("distillation.enabled=True", f"{TEACHER}model_path (unset)"),
        (
            f"{TAUGHT}+distillation.teacher_models.math.model_path=/data/m",
            "distillation.teacher_models.math.model_path",
        ),
        (f"{TAUGHT}{LOSS}loss_mode=jsd", f"{LOSS}loss_mode"),
    ],
)
def test_what_no_teacher_of_a_job_can_be_is_refused(given: str, key: str) -> None:
    assert [problem.key for problem in verl(given).problems] == [key]


def taught_by_roll(**changes: Any) -> Result:
    tree = yaml.safe_load((HERE / "roll/rlvr-moe.yaml").read_text())
    return imported("roll", json.dumps(tree | changes), "file", CASES["roll/rlvr-moe.yaml"])


def test_a_teacher_of_rolls_is_the_reference_of_a_job() -> None:
    teacher = {"model_args": {"model_name_or_path": "/data/teacher"}, "opd_kl_coef": 0.5}
    tree = yaml.safe_load((HERE / "roll/rlvr-moe.yaml").read_text())
    tree["student_train"], tree["student_infer"] = tree.pop("actor_train"), tree.pop("actor_infer")
    del tree["reference"]
    tree |= {"teacher": teacher, "adv_estimator": "gae", "use_kl_loss": False, "add_token_level_kl": False}
    alone = imported("roll", json.dumps(tree), "file", CASES["roll/rlvr-moe.yaml"])
    spec = yaml.safe_load(alone.manifest)["spec"]
    assert spec["reference"] == {"path": "/data/teacher", "offload": False}
    assert spec["algorithm"]["distillation"] == {"reference": True, "coefficient": 0.5}
    assert "rewards" not in spec and "critic" not in spec and "advantage" not in spec["algorithm"]
    assert validate(spec, "demo").valid, validate(spec, "demo")
    both = {"use_opd": True, "teacher": teacher, "use_kl_loss": False, "add_token_level_kl": False}
    mixed = yaml.safe_load(taught_by_roll(**both).manifest)["spec"]
    assert mixed["algorithm"]["distillation"] == spec["algorithm"]["distillation"]
    assert mixed["rewards"] and mixed["algorithm"]["advantage"]
    for other in ("reward", "train_env_manager"):
        with pytest.raises(Unreadable, match="RLVR, on-policy distillation, SFT and DPO are"):
            taught_by_roll(**{other: {}})
    with pytest.raises(Unreadable, match="has several teachers"):
        taught_by_roll(teacher={"math": teacher, "code": teacher})


@pytest.mark.parametrize(
    ("stage", "given"),
    [("dpo", {"pref_loss": "kto_pair"}), ("sft", {"use_dft_loss": True}), ("sft", {"use_eaft_loss": True})],
)
def test_a_loss_of_llama_factorys_that_is_not_there_is_refused(stage: str, given: dict[str, Any]) -> None:
    (problem,) = factory({"some": {"file_name": "a.json"}}, stage=stage, **given).problems
    assert problem.key in given


@pytest.mark.parametrize("name", ["system", "system_prompt"])
def test_a_column_that_rows_of_every_format_read_is_not_called_lost(name: str) -> None:
    found = factory({"some": columns(prompt="question", response="answer", system=name, tools="tools")})
    assert "columns.system" not in found.report and "columns.tools" not in found.report


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
