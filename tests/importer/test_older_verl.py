"""Scripts of verl's releases of 2025, whose trainers had other keys and defaults."""

from typing import Any

import pytest
import yaml

from importer.converted import verl
from rljob_import import Options
from rljob_import.readers.hydra import UnreadableFile
from rljob_import.report import Conversion, imported, problems

SFT = "torchrun --nproc_per_node=4 -m verl.trainer.{} data.train_files=/data/a.parquet trainer.total_training_steps=40 "
OLDER = SFT.format("fsdp_sft_trainer") + "model.partial_pretrain=/data/m "
ACTOR = "actor_rollout_ref.actor."


def sft(text: str) -> Conversion:
    return imported("verl", text, "run.sh", Options())


def spec(found: Conversion) -> dict[str, Any]:
    given: dict[str, Any] = yaml.safe_load(found.manifest)["spec"]
    return given


def test_prompts_in_columns_go_through_the_chat_template() -> None:
    """verl 0.6, SFTDataset: the prompt is one message of the user."""
    keys = "data.prompt_key=extra_info data.response_key=extra_info data.prompt_dict_keys=['question'] "
    data = spec(sft(f"{OLDER}{keys}+data.response_dict_keys=[answer]"))["data"]
    assert data["chatTemplate"] == {"texts": True} and data["format"] == "columns"
    assert (data["promptKey"], data["responseKey"]) == ("extra_info.question", "extra_info.answer")
    data = spec(sft(OLDER))["data"]
    assert (data["format"], data["promptKey"], data["responseKey"]) == ("columns", "question", "answer")


def test_conversations_are_read_from_the_column_that_the_older_key_names() -> None:
    data = spec(sft(f"{OLDER}data.multiturn.enable=true data.multiturn.messages_key=turns"))["data"]
    assert (data["format"], data["messagesKey"]) == ("messages", "turns") and "chatTemplate" not in data


def test_the_older_trainer_of_conversations_has_its_own_defaults() -> None:
    older = spec(sft(OLDER))["train"]["optimizer"]
    assert older["learningRate"] == 1e-5 and older["decay"] == "cosine" and older["warmupSteps"] == 4
    assert older.get("beta2", 0.95) == 0.95, "the default of an RLJob"
    newer = spec(sft(SFT.format("sft_trainer") + "model.path=/data/m"))["train"]["optimizer"]
    assert newer["learningRate"] == 1e-3 and newer["beta2"] == 0.999 and "warmupSteps" not in newer
    named = spec(sft(f"{OLDER}optim.warmup_steps_ratio=0.5 optim.lr_scheduler=cosine"))["train"]["optimizer"]
    assert named["warmupSteps"] == 20


@pytest.mark.parametrize(("truncation", "overlong"), [("right", "cut"), ("left", None), ("error", None)])
def test_conversations_that_are_cut_on_the_right_keep_their_beginning(truncation: str, overlong: str | None) -> None:
    assert spec(sft(f"{OLDER}data.truncation={truncation}"))["data"].get("overlong") == overlong


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        ("{a}grad_clip=0.3", 0.3),
        ("{a}grad_clip=0.3 {a}optim.clip_grad=0.7", 0.7),
        ("{a}grad_clip=0.3 {a}strategy=megatron", None),
    ],
)
def test_the_bound_of_a_gradient_is_that_which_the_engine_reads(given: str, bound: float | None) -> None:
    assert spec(verl(given.format(a=ACTOR)))["train"]["optimizer"].get("clipGrad") == bound


def test_another_number_of_cosine_cycles_is_not_expressible() -> None:
    o = f"{ACTOR}optim."
    report = verl(f"{o}lr_scheduler_type=cosine {o}num_cycles=0.25 {o}min_lr_ratio=0.1 {o}lr=3e-6")
    assert f"{o}num_cycles = 0.25" in report.report.partition("Not expressible")[2]
    assert spec(report)["train"]["optimizer"]["minLearningRate"] == 3e-7


def test_an_override_that_a_variable_leaves_empty_is_reported() -> None:
    found = verl(f"{ACTOR}optim.lr=${{RATES[$SIZE]}}")
    assert f"{ACTOR}optim.lr =: nothing stands behind the `=`" in found.report
    assert "$RATES[]: is set outside of the script" in found.report


def test_a_mini_batch_of_none_is_refused() -> None:
    (problem,) = verl(f"{ACTOR}ppo_mini_batch_size=0").problems
    assert "0 is not above 0" in problem.text and problem.key == f"{ACTOR}ppo_mini_batch_size"


@pytest.mark.parametrize("value", ["float16", "fp16"])
def test_half_precision_of_fsdp_is_refused_as_that_of_megatron_is(value: str) -> None:
    for key in ("fsdp_config", "megatron"):
        (problem,) = verl(f"{ACTOR}{key}.dtype={value}").problems
        assert "none of bfloat16" in problem.text and problem.key == f"{ACTOR}{key}.dtype"
    assert spec(verl(f"{ACTOR}fsdp_config.dtype=fp32"))["model"]["dtype"] == "float32"


@pytest.mark.parametrize(
    ("given", "heading"),
    [
        ("critic.model.lora_rank=8", "Not expressible"),
        ("critic.model.override_config.dropout=0.1", "Not expressible"),
        ("critic.fsdp.dtype=fp16", "Not expressible"),
        ("critic.loss_agg_mode=seq-mean-token-mean", "Changed"),
        ("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean", "Changed"),
    ],
)
def test_what_a_critic_learns_in_another_way_is_reported(given: str, heading: str) -> None:
    found = verl(f"algorithm.adv_estimator=gae {given}")
    assert f"{given.replace('=', ' = ')}: the " in found.report.partition(heading)[2]
    assert "the critic" not in verl(f"algorithm.adv_estimator=gae {given.partition('=')[0]}=null").report


SLIME = "python3 train.py --hf-checkpoint /m --rollout-batch-size 32 --num-rollout 300"
RAY = """ray job submit --runtime-env-json='{"working_dir": "/openrlhf"}' -- python3 -m openrlhf.cli.train_ppo_ray --lr 1"""


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("torchrun -m openrlhf.cli.train_ppo_ray --learning_rate 1e-6", "openrlhf.cli.train_ppo_ray"),
        (RAY, "openrlhf.cli.train_ppo_ray"),
        ("python3 -m areal.launcher.ray train.py", "areal.launcher.ray"),
        ("FORCE=1 /opt/bin/llamafactory-cli train a.yaml", "/opt/bin/llamafactory-cli"),
        (SLIME, "slime's trainer"),
    ],
)
def test_a_script_of_another_system_is_named(command: str, named: str) -> None:
    with pytest.raises(UnreadableFile, match=f"runs {named}, which is no trainer of verl's: import reads verl, roll"):
        sft(command)


def test_a_yaml_of_another_system_is_named() -> None:
    """And one of verl's with a section of the same name is read."""
    with pytest.raises(
        UnreadableFile, match="is a configuration of NeMo-RL: import reads .*; write the job by docs/alg"
    ):
        sft("policy: {model_name: m}\ngrpo: {max_num_steps: 5}\ncluster: {num_nodes: 4}")
    assert "policy.a: unknown key" in problems(
        imported("verl", "actor_rollout_ref: {}\npolicy: {a: 1}\ncluster: {}", "a.yaml", Options()).problems
    )
