"""Teachers of other systems: pools, references, and what no job can have."""

import json
from typing import Any

import pytest
import yaml

from importer.converted import verl
from importer.test_golden_files import CASES, HERE
from rljob_api.rules import validate
from rljob_import.readers.hydra import UnreadableFile
from rljob_import.report import Conversion, imported

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


def taught_by_roll(**changes: Any) -> Conversion:
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
        with pytest.raises(UnreadableFile, match="RLVR, on-policy distillation, SFT and DPO are"):
            taught_by_roll(**{other: {}})
    with pytest.raises(UnreadableFile, match="has several teachers"):
        taught_by_roll(teacher={"math": teacher, "code": teacher})
