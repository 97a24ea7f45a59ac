"""What the report says of rewards and of paths, and of keys that need no line."""

import json
from pathlib import Path

import pytest
import yaml

from cli.conftest import Rljob
from importer.converted import verl
from importer.test_golden_files import CASES, GROUP, HERE, INFINITE, VERL
from rljob_import import Options
from rljob_import.report import imported


def changed(report: str) -> str:
    return report.partition("Changed or assumed:")[2].partition("\n\n")[0]


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ("openai/gsm8k", "looser here: verl gives 0 to a response without `#### N`"),
        ("MATH", "looser here: verl gives 0 to an answer outside of \\boxed{}"),
        ("math_dapo", "`math` gives 0 and 1, verl -1 and 1"),
    ],
)
def test_verls_default_rewards_are_said_to_be_looser_or_stricter(sources: str, said: str) -> None:
    """verl 1dda039b9, utils/reward_score: gsm8k.py (method strict), math_reward.py, math_dapo.py."""
    (line,) = (line for line in changed(verl("").report).splitlines() if f"rewards of {sources}" in line)
    assert said in line


def test_rewards_of_ones_own_are_not_compared_with_verls() -> None:
    assert "rewards of" not in verl("reward.custom_reward_function.path=/data/mine.py").report


def test_rolls_rule_reads_a_part_of_the_response() -> None:
    report = imported("roll", (HERE / "roll/rlvr-moe.yaml").read_text(), "f", CASES["roll/rlvr-moe.yaml"]).report
    assert "looser here: ROLL reads only what follows `</think>`" in changed(report)


@pytest.mark.parametrize(("kind", "said"), [("math_reward", "<think>"), ("math_dapo_reward", "-1 and 1")])
def test_trinitys_rewards_count_more_than_the_answer(kind: str, said: str) -> None:
    tree = yaml.safe_load((HERE / "trinity/dapo.yaml").read_text())
    tree["buffer"]["explorer_input"]["default_reward_fn_type"] = kind
    report = imported("trinity", json.dumps(tree), "f", CASES["trinity/dapo.yaml"]).report
    assert f"default_reward_fn_type = {kind}: " in changed(report) and said in changed(report)


def test_rlinfs_wrong_answers_cost_something_with_every_scale() -> None:
    tree = INFINITE | {"data": {"train_data_paths": ["/data/a.parquet"]}}
    assert "right is 1 and wrong is 0 here" in changed(imported("rlinf", json.dumps(tree), "f", Options()).report)


def test_a_directory_that_is_written_elsewhere_is_reported() -> None:
    report = verl("trainer.default_local_dir=/mnt/lustre/ckpt/x").report
    text = (
        "trainer.default_local_dir = /mnt/lustre/ckpt/x: written to /data/mnt/lustre/ckpt/x, on the volume of --claim"
    )
    assert text in changed(report)
    assert "written to" not in verl("trainer.default_local_dir=/data/ckpt/x").report


LUSTRE = (
    "data.train_files=/mnt/lustre/a.parquet trainer.default_local_dir=/mnt/lustre/ckpt/x actor_rollout_ref.model.path="
)


@pytest.mark.parametrize(
    ("model", "root", "said"),
    [("/mnt/lustre/m", "/data", True), ("/m", "/data", True), ("/mnt/lustre/m", "/mnt/lustre", False)],
)
def test_a_prefix_that_most_paths_have_is_suggested_as_root(model: str, root: str, said: bool) -> None:
    report = verl(LUSTRE + model, Options(root=root)).report
    assert ("with --root /mnt/lustre they stay where they are" in changed(report)) is said


def test_paths_below_the_root_ask_for_no_other_one() -> None:
    assert "--root" not in verl("").report


def test_a_checkpoint_of_megatron_on_no_volume_is_a_broken_rule(rljob: Rljob, tmp_path: Path) -> None:
    m = "actor_rollout_ref.actor.megatron."
    script = tmp_path / "run.sh"
    script.write_text(f"{VERL}{GROUP}{m}use_dist_checkpointing=True {m}dist_checkpointing_path=/mnt/lustre/mc")
    found = rljob("import", "verl", str(script))
    assert found.code == 1 and "path: /data/m" in found.out
    assert "spec.model.megatronCheckpoint = /mnt/lustre/mc: is on none of spec.volumes" in found.err
    script.write_text(script.read_text().replace("/mnt/lustre/mc", "/data/mc"))
    assert rljob("import", "verl", str(script)).code == 0


def test_keys_with_the_other_systems_default_are_counted() -> None:
    without = verl("").report
    plain = "data.truncation=error algorithm.gamma=1.0 actor_rollout_ref.rollout.top_p=1.0"
    assert "need no line" not in without
    found = verl(plain)
    assert found.report.removeprefix(without).strip() == (
        "3 keys have verl's default, or a value that changes nothing, and need no line."
    )
    assert verl("data.truncation=error").report.endswith(
        "1 key has verl's default, or a value that changes nothing, and needs no line."
    )


def test_a_mapping_that_no_field_takes_over_is_reported_with_what_is_in_it() -> None:
    tree = yaml.safe_load((HERE / "trinity/dapo.yaml").read_text())
    tree["model"]["rope_scaling"] = {"rope_type": "yarn", "factor": 2.0}
    found = imported("trinity", yaml.safe_dump(tree), "file", CASES["trinity/dapo.yaml"])
    assert not found.problems
    lacking = found.report.partition("Not expressible")[2]
    assert "model.rope_scaling.rope_type = yarn: " in lacking and "model.rope_scaling.factor = 2.0: " in lacking
