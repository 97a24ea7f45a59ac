"""Files that a configuration builds on set what runs, and are not in what is read: those that are not the system's own are named, never taken for
its defaults."""

import pytest

from rljob_import import Options
from rljob_import.report import imported
from rljob_import.systems.verl.engine import OWN_BASES

LAUNCH = "python3 -m verl.trainer.main_ppo data.train_files=/data/a.parquet actor_rollout_ref.model.path=/data/m "
ENOUGH = "trainer.total_training_steps=5 actor_rollout_ref.rollout.n=4 algorithm.adv_estimator=grpo"
SFT = "torchrun -m verl.trainer.sft_trainer data.train_files=/data/a.parquet model.path=/data/m trainer.total_training_steps=5"
VERL = "actor_rollout_ref: {model: {path: /data/m}, rollout: {n: 4}}\ntrainer: {total_training_steps: 5}"


@pytest.mark.parametrize(
    ("system", "text", "named"),
    [
        ("verl", f"{LAUNCH}{ENOUGH} --config-path=/home/me --config-name=my_grpo", ["--config-name: my_grpo"]),
        ("verl", f"{LAUNCH}{ENOUGH} --config-name=gsm8k_multiturn_grpo", ["--config-name: gsm8k_multiturn_grpo"]),
        ("verl", f"{SFT} --config-name my_sft.yaml", ["--config-name: my_sft.yaml"]),
        ("verl", f"defaults: [ppo_trainer, team, _self_]\n{VERL}", ["defaults: team"]),
        ("verl", f"defaults: [team/base, optional mine]\n{VERL}", ["defaults: team/base", "defaults: mine"]),
        ("verl", f"defaults: [ppo_trainer, actor@actor_rollout_ref.actor: my_actor]\n{VERL}", ["defaults: my_actor"]),
        ("verl", f"defaults: grpo_math_1B.yaml\n{VERL}", ["defaults: grpo_math_1B.yaml"]),
        ("roll", "defaults: [../config/envs@_here_, base]\npretrain: /data/m\nmax_steps: 5", ["defaults: base"]),
        ("rlinf", "defaults: [mine]\nrunner: {task_type: reasoning, max_steps: 5}", ["defaults: mine"]),
    ],
)
def test_bases_of_others_are_problems(system: str, text: str, named: list[str]) -> None:
    found = imported(system, text, "given", Options())
    assert [problem.key for problem in found.problems if problem.text.startswith("settings of this file")] == named
    assert not found.manifest


@pytest.mark.parametrize(
    "text",
    [
        f"{LAUNCH}{ENOUGH} --config-name='ppo_megatron_trainer.yaml'",
        f"{LAUNCH}{ENOUGH} --config-name=fully_async_ppo_trainer",
        f"{SFT} --config-name=sft_trainer_engine",
        "defaults: [ppo_trainer, _self_, {override hydra/job_logging: stdout}, {optional critic@critic: null},"
        f" {{actor@actor_rollout_ref.actor: megatron_actor, data@data: legacy_data}}]\n{VERL}",
    ],
)
def test_the_systems_own_bases_are_its_defaults(text: str) -> None:
    found = imported("verl", text, "given", Options())
    assert "settings of this file" not in found.report
    assert found.manifest


def test_a_base_may_be_allowed_and_is_reported() -> None:
    found = imported("verl", f"{LAUNCH}{ENOUGH} --config-name=mine", "run.sh", Options(allowed=("mine",)))
    assert found.manifest
    assert "--config-name: mine: passed over, as --allow says" in found.report


@pytest.mark.parametrize(
    "name", ["ppo_trainer", "dapo_trainer", "_generated_ppo_megatron_trainer", "dp_ref", "rollout"]
)
def test_verls_names_of_its_own_defaults(name: str) -> None:
    assert OWN_BASES.fullmatch(name)
    assert not OWN_BASES.fullmatch(f"{name}_mine")
