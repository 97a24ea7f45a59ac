"""What a configuration leaves out has the other system's default, and what a key says again is compared with the field that says it already."""

import json
from typing import Any

import pytest
import yaml

from importer.test_golden_files import CASES, GROUP, HERE, INFINITE, VERL
from rljob_api.spec import RLJobSpec
from rljob_import import Options
from rljob_import.engine import default_of
from rljob_import.report import Conversion, imported
from rljob_import.systems import SYSTEMS

R = "actor_rollout_ref.rollout."
FACTORY = "{stage: sft, model_name_or_path: /m, dataset: d, output_dir: o, max_steps: 5, finetuning_type: full, "
ROLL_SFT, ROLL_DPO, PPO, DAPO = ("roll/sft.yaml", "roll/dpo.yaml", "roll/async-ppo.yaml", "trinity/dapo.yaml")


def changed(case: str, options: Options | None = None, **values: Any) -> Conversion:
    """A case with other values by dotted key, with __ for the dots; None: without it."""
    tree = yaml.safe_load((HERE / case).read_text())
    for path, value in values.items():
        *parents, last = path.split("__")
        inner = tree
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner.pop(last, None)
        if value is not None:
            inner[last] = value
    return imported(case.split("/")[0], json.dumps(tree), "file", options or CASES[case])


def field(found: Conversion, path: str) -> Any:
    assert found.valid, (found.problems, found.report)
    value = yaml.safe_load(found.manifest)["spec"]
    for part in path.split("."):
        value = value.get(part) if value else None
    return value


EQUAL = [row for reader in SYSTEMS.values() for system in reader.tables for row in system.rows if row.equals]


@pytest.mark.parametrize("row", EQUAL, ids=lambda row: row.key)
def test_a_key_that_a_field_says_already_names_a_field(row: Any) -> None:
    section: Any = RLJobSpec
    for part in row.equals.split("."):
        (found,) = [f for f in section.model_fields.values() if f.alias == part]
        section = next(
            (k for k in (found.annotation, *getattr(found.annotation, "__args__", ())) if hasattr(k, "model_fields")),
            None,
        )


@pytest.mark.parametrize(
    ("given", "key", "ours"),
    [
        (f"{R}response_length=%s data.max_response_length=64", f"{R}response_length", 64),
        (f"{R}prompt_length=%s data.max_prompt_length=32", f"{R}prompt_length", 32),
        ("+reward_model.reward_kwargs.max_resp_len=%s data.max_response_length=64", "max_resp_len", 64),
        ("actor_rollout_ref.actor.rollout_n=%s", "actor.rollout_n", 4),
        ("actor_rollout_ref.actor.use_rollout_log_probs=%s", "use_rollout_log_probs", False),
    ],
)
def test_a_key_of_verls_is_reported_where_the_field_has_another_value(given: str, key: str, ours: int | bool) -> None:
    another = {64: 128, 32: 16, 4: 8, False: True}[ours]
    said = imported("verl", VERL + GROUP + given % another, "run.sh", Options()).report.partition(
        "Changed or assumed:"
    )[2]
    assert f"{key} = {str(another).lower()}: " in said and f" is {str(ours).lower()}\n" in said
    same = imported("verl", VERL + GROUP + given % ours, "run.sh", Options()).report.partition("Changed or assumed:")[2]
    assert key not in same


@pytest.mark.parametrize(
    ("case", "left_out", "path", "default"),
    [
        (PPO, {"pg_clip_high": None}, "algorithm.clip.high", 0.2),
        (PPO, {"train_infer_correction": {"is_weight": {"enabled": True}}}, "algorithm.rolloutCorrection.cap", 1.2),
        (PPO, {"actor_infer__generating_args__temperature": None}, "rollout.sampling.temperature", 0.95),
        (PPO, {"max_steps": None}, "train.steps", 500),
        (PPO, {"actor_train__training_args__per_device_train_batch_size": None}, "train.miniBatches", 1),
        (ROLL_SFT, {"eval_steps": None}, "evaluation.everySteps", 10),
        (ROLL_SFT, {"query_key": None, "response_key": None}, "data.responseKey", "output"),
        (ROLL_SFT, {"sft_train__training_args__num_train_epochs": None}, "train.epochs", 1),
    ],
)
def test_roll_has_its_own_defaults(case: str, left_out: dict[str, Any], path: str, default: Any) -> None:
    """ROLL 8eb27cc2: roll/configs, rlvr_config.py, sft_config.py."""
    found = field(changed(case, **left_out), path)
    assert (default_of(path) if found is None else found) == default


@pytest.mark.parametrize("name", ["top_p", "top_k"])
def test_roll_narrows_its_distribution_unless_it_is_told_not_to(name: str) -> None:
    whole = {"actor_infer__generating_args": {"top_p": 1, "top_k": -1}}
    assert name not in changed(PPO, **whole).report.partition("Not expressible")[2]
    del whole["actor_infer__generating_args"][name]
    assert f"{name} = " in changed(PPO, **whole).report.partition("Not expressible")[2]


def test_rolls_responses_are_as_long_as_its_sequences_leave() -> None:
    assert field(changed(PPO, sequence_length=1024), "rollout.sampling.maxTokens") == 512
    assert field(changed(PPO), "rollout.sampling.maxTokens") == 1536
    longer = changed(PPO, actor_infer__generating_args__max_new_tokens=99)
    assert field(longer, "rollout.sampling.maxTokens") == 1536


@pytest.mark.parametrize(("target", "rank", "ours"), [("all", None, 8), ("all", 16, 16), (None, 16, None)])
def test_targets_say_whether_roll_trains_adapters(target: str | None, rank: int | None, ours: int | None) -> None:
    m = "sft_train__model_args__"
    found = changed(ROLL_SFT, **{f"{m}lora_target": target, f"{m}lora_rank": rank})
    assert field(found, "model.lora.rank") == ours


def test_rolls_gae_discounts_and_its_groups_do_not_here() -> None:
    assert field(changed(PPO, gamma=0.9), "algorithm.gamma") == 0.9
    grouped = changed(PPO, gamma=0.9, adv_estimator="grpo", num_return_sequences_in_group=4)
    assert "gamma = 0.9" in grouped.report.partition("Not expressible")[2]


@pytest.mark.parametrize(("rows", "epochs", "steps"), [(None, 1, 500), (12800, 1, 100), (12800, 9, 500)])
def test_rolls_pairs_end_with_steps_or_epochs(rows: int | None, epochs: int, steps: int) -> None:
    options = Options(nodes=2, gpus_per_node=8, rows=rows)
    found = changed(ROLL_DPO, options, actor_train__training_args__num_train_epochs=epochs)
    assert field(found, "train.samplesPerStep") == 128 and field(found, "train.steps") == steps
    assert ("give --rows N" in found.report) is (rows is None)


def test_rolls_sft_counts_epochs_whatever_max_steps_says_and_keeps_the_order() -> None:
    found = changed(ROLL_SFT, max_steps=7)
    assert field(found, "train.epochs") == 1 and field(found, "train.steps") is None
    assert field(found, "data.shuffle") is False


def test_columns_that_alpacas_form_does_not_have_make_no_job() -> None:
    (problem,) = changed(ROLL_SFT, response_key="answer").problems
    assert "instruction, input, answer have to be called instruction, input, output" in problem.text


ALGORITHM = {"group_size": 4}


def infinite(backend: str, **algorithm: Any) -> Conversion:
    tree = INFINITE | {"algorithm": ALGORITHM | algorithm, "actor": {"training_backend": backend}}
    data = {"train_data_paths": ["/data/a.jsonl"]}
    return imported("rlinf", json.dumps(tree | {"data": data}), "file", Options())


@pytest.mark.parametrize(
    ("estimator", "on", "said"),
    [("grpo", True, True), ("grpo", False, False), ("reinpp", True, False), ("reinpp", False, True)],
)
def test_rlinf_whitens_in_addition_to_its_estimator(estimator: str, on: bool, said: bool) -> None:
    """RLinf a3816b596, algorithms/advantages.py: grpo always divides by the group's deviation."""
    found = infinite("megatron", adv_type=estimator, normalize_advantages=on)
    assert field(found, "algorithm.group.divideByStd") is None
    assert ("algorithm.normalize_advantages = " in found.report.partition("Changed or assumed:")[2]) is said


@pytest.mark.parametrize(
    ("backend", "given", "dual"),
    [("fsdp", {}, 3), ("fsdp", {"clip_ratio_c": None}, None), ("fsdp", {"clip_ratio_c": 2}, 2), ("megatron", {}, None)],
)
def test_rlinfs_second_bound_is_on_with_fsdp(backend: str, given: dict[str, Any], dual: int | None) -> None:
    assert field(infinite(backend, **given), "algorithm.clip.dual") == dual


@pytest.mark.parametrize(("estimator", "said"), [("gae", True), ("grpo", False)])
def test_a_key_of_a_section_that_the_job_does_not_have_is_not_compared(estimator: str, said: bool) -> None:
    tree = INFINITE | {"algorithm": ALGORITHM | {"adv_type": estimator}, "critic": {"lr_sched": {"max_lr": 7e-5}}}
    tree |= {"data": {"train_data_paths": ["/data/a.jsonl"]}}
    report = imported("rlinf", json.dumps(tree), "file", Options()).report
    assert ("critic.lr_sched.max_lr = 7e-05: critic.optimizer.learningRate is 1e-05" in report) is said


def test_rlinf_decays_weights_unless_it_is_told_not_to() -> None:
    assert field(infinite("megatron"), "train.optimizer.weightDecay") == 0.01


def test_trinity_trains_a_batch_as_often_as_verls_key_says() -> None:
    actor = "trainer__trainer_config__actor_rollout_ref__actor__ppo_epochs"
    found = changed(DAPO, **{actor: 3})
    once, thrice = (field(f, "train.optimizer.warmupSteps") for f in (changed(DAPO), found))
    assert field(found, "train.epochsPerStep") == 3 and thrice == 3 * once
    sft = changed("trinity/sft.yaml", **{actor: 3})
    assert "ppo_epochs = 3" in sft.report.partition("Not expressible")[2]


@pytest.mark.parametrize(
    ("kind", "given", "dual"), [("grpo", None, 3), ("grpo", 5, 5), ("rloo", None, 3), ("cispo", None, None)]
)
def test_trinitys_ppo_has_a_second_bound(kind: str, given: int | None, dual: int | None) -> None:
    """Trinity-RFT, algorithm/policy_loss_fn/ppo_policy_loss.py: clip_ratio_c is 3 by default."""
    key = "algorithm__policy_loss_fn_args__clip_ratio_c"
    found = changed(DAPO, **{"algorithm__algorithm_type": kind, key: given})
    assert field(found, "algorithm.clip.dual") == dual


S, T = "seq-mean-token-mean", "token-mean"


@pytest.mark.parametrize(
    ("argument", "key", "ours", "said"),
    [
        (None, None, None, ""),
        (T, None, "tokenMean", ""),
        (T, T, "tokenMean", ""),
        (S, S, "sequenceMeanTokenMean", ""),
        (S, None, "sequenceMeanTokenMean", "loss_agg_mode = token-mean, its default; here the argument counts"),
        (S, T, "tokenMean", "loss_agg_mode = token-mean, which counts"),
        (T, S, "sequenceMeanTokenMean", "loss_agg_mode = seq-mean-token-mean, which counts"),
        (None, S, "sequenceMeanTokenMean", "reads it for penalties alone"),
    ],
)
@pytest.mark.parametrize("key_first", [False, True])
def test_trinitys_key_of_the_algorithm_is_put_over_the_losss_argument(
    argument: str | None, key: str | None, ours: str | None, said: str, key_first: bool
) -> None:
    """Trinity-RFT, common/config_validator.py, in whatever order the file has them."""
    given = [("algorithm__policy_loss_fn_args__loss_agg_mode", argument), ("algorithm__loss_agg_mode", key)]
    found = changed(DAPO, **dict(reversed(given) if key_first else given))
    changes = found.report.partition("Changed")[2].partition("\n\n")[0]
    assert field(found, "algorithm.aggregation") == ours
    assert said in changes and ("loss_agg_mode" in changes) == bool(said)


def test_trinitys_key_is_the_losss_where_it_is_given_no_arguments() -> None:
    found = changed(DAPO, algorithm__policy_loss_fn_args=None, algorithm__loss_agg_mode=S)
    assert field(found, "algorithm.aggregation") == "sequenceMeanTokenMean" and "penalties alone" not in found.report


def test_trinitys_servers_may_have_lengths_of_their_own() -> None:
    found = changed(
        DAPO, explorer__rollout_model__max_response_tokens=5000, explorer__rollout_model__max_prompt_tokens=50
    )
    assert field(found, "rollout.sampling.maxTokens") == 5000 and field(found, "data.maxPromptTokens") == 50
    assert "max_response_length = 20480: rollout.sampling.maxTokens is 5000" in found.report


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("packing: true}", True),
        ("neat_packing: true}", True),
        ("packing: false}", False),
        ("stage: pt, packing: true}", False),
        ("stage: pt, packing: false}", True),
    ],
)
def test_llama_factorys_packs_are_reported_where_they_are_its_samples(given: str, said: bool) -> None:
    text = FACTORY.replace("stage: sft, ", "") if "stage" in given else FACTORY
    report = imported("llamafactory", text + given, "file", Options()).report
    assert ("packing = " in report.partition("Changed or assumed:")[2]) is said


@pytest.mark.parametrize(
    ("strategy", "said"), [("normal", False), ("padding_free", False), ("dynamic_padding_free", True)]
)
def test_batches_of_llama_factorys_v1_that_tokens_fill_are_reported(strategy: str, said: bool) -> None:
    text = f"{{model: /m, train_dataset: /data/r.jsonl, output_dir: o, max_steps: 5, batching_strategy: {strategy}}}"
    report = imported("llamafactory", text, "file", Options()).report
    assert ("batching_strategy = " in report.partition("Changed or assumed:")[2]) is said


def test_what_verls_sft_gives_the_chat_template_of_every_row() -> None:
    text = "torchrun -m verl.trainer.sft_trainer data.train_files=/data/a.parquet model.path=/data/m trainer.total_training_steps=5 "
    found = imported(
        "verl", text + "data.enable_thinking_default=true data.enable_thinking_key=think", "run.sh", Options()
    )
    assert field(found, "data.chatTemplate.arguments.enable_thinking") is True
    assert "data.enable_thinking_key = think" in found.report.partition("Not expressible")[2]


@pytest.mark.parametrize(
    ("given", "said"), [("=0.1", True), ("=0.1 {0}_low=0.2 {0}_high=0.2", False), ("_low=0.1", False)]
)
def test_verls_clip_ratio_is_reported_where_its_two_sides_would_hide_it(given: str, said: bool) -> None:
    """verl, workers/config/actor.py: clip_ratio_low and clip_ratio_high are 0.2 by default, and come before clip_ratio."""
    key = "actor_rollout_ref.actor.clip_ratio"
    report = imported("verl", VERL + GROUP + key + given.format(key), "run.sh", Options()).report
    assert (f"{key} = 0.1: holds for both sides" in report) is said
