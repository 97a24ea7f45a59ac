"""Configurations in each system's own form become the RLJob and the report that lie beside them.

To write one anew: kubectl rljob import SYSTEM FILE [flags] > FILE.rljob.yaml 2> FILE.report.txt, and read both.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api.rules import validate
from rljob_import import Options
from rljob_import.report import Conversion, imported

HERE = Path(__file__).parent / "cases"
CASES = {
    "verl/grpo.sh": Options(),
    "verl/dapo-moe.sh": Options(),
    "verl/ppo.yaml": Options(rows=10_000),
    "verl/guide.sh": Options(),
    "verl/lora.sh": Options(),
    "verl/sft.sh": Options(environment={"1": "8", "2": "/data/sft"}),
    "verl/fsdp-sft.sh": Options(rows=7473),
    "verl/streamed.sh": Options(),
    "roll/rlvr-moe.yaml": Options(),
    "roll/async-ppo.yaml": Options(),
    "roll/sft.yaml": Options(),
    "roll/dpo.yaml": Options(nodes=2, gpus_per_node=8),
    "trinity/ppo-megatron.yaml": Options(),
    "trinity/dapo.yaml": Options(environment={"TASKS": "/data/dapo.jsonl"}, rows=3200),
    "trinity/sft.yaml": Options(),
    "trinity/dpo.yaml": Options(),
    "trinity/distill.yaml": Options(),
    "llamafactory/moe-sft.yaml": Options(nodes=2, gpus_per_node=8),
    "llamafactory/v1-sft.yaml": Options(nodes=1, gpus_per_node=8),
    "llamafactory/v1-dpo.yaml": Options(),
    "llamafactory/lora-dpo.yaml": Options(root="/mnt", claim="models", image="example/trainer:1"),
    "rlinf/grpo.yaml": Options(gpus_per_node=4, rows=5120),
}
DATA_SETS = {
    "llamafactory/moe-sft.yaml": "llamafactory/dataset_info.json",
    "llamafactory/lora-dpo.yaml": "llamafactory/dataset_info.json",
    "llamafactory/v1-sft.yaml": "llamafactory/v1-sets.json",
}


def result(case: str) -> Conversion:
    system, options = case.split("/")[0], CASES[case]
    if case in DATA_SETS:
        options = Options(**vars(options) | {"data_sets": yaml.safe_load((HERE / DATA_SETS[case]).read_text())})
    return imported(system, (HERE / case).read_text(), Path(case).name, options)


@pytest.mark.parametrize("case", CASES)
def test_a_configuration_becomes_the_rljob_and_the_report_beside_it(case: str) -> None:
    found = result(case)
    assert not found.problems
    assert found.manifest + "\n" == (HERE / f"{case}.rljob.yaml").read_text()
    assert found.report + "\n" == (HERE / f"{case}.report.txt").read_text()


@pytest.mark.parametrize("case", CASES)
def test_the_rljob_breaks_no_rule(case: str) -> None:
    document = yaml.safe_load(result(case).manifest)
    checked = validate(document["spec"], document["metadata"]["name"])
    assert checked.valid, str(checked)


def test_a_run_of_verls_that_only_validates_becomes_a_job_that_only_evaluates() -> None:
    text = (HERE / "verl/grpo.sh").read_text()
    changed = text.replace("trainer.test_freq=5", "trainer.test_freq=-1 trainer.val_only=True")
    assert changed != text
    spec = yaml.safe_load(imported("verl", changed, "grpo.sh", Options()).manifest)["spec"]
    assert spec["evaluation"]["only"] is True and not spec["evaluation"]["everySteps"]
    assert validate(spec, "demo").valid


def test_held_out_prompts_that_are_answered_greedily_keep_no_narrowed_distribution() -> None:
    text = (HERE / "trinity/dapo.yaml").read_text()
    changed = text.replace("temperature: 0.6", "temperature: 0").replace("name: AIME 2024", "name: .AIME")
    assert changed != text
    spec = yaml.safe_load(imported("trinity", changed, "dapo.yaml", CASES["trinity/dapo.yaml"]).manifest)["spec"]
    held_out, _ = spec["evaluation"]["sets"]
    assert held_out["name"] == "_AIME"
    assert held_out["sampling"].keys() == {"temperature", "maxTokens"} and not held_out["sampling"]["temperature"]
    assert validate(spec, "demo").valid


V1 = "{model: /m, train_dataset: /data/rows.jsonl, output_dir: o, max_steps: 5, "


@pytest.mark.parametrize(
    ("text", "command", "task"),
    [
        ("model_class: llm}", "", "sft"),
        ("model_class: llm}", "dpo", "dpo"),
        ("pref_beta: 0.3}", "", "dpo"),
        ("model_class: cls}", "", "rewardModel"),
    ],
)
def test_a_file_of_llama_factorys_v1_is_of_the_task_that_its_command_names(text: str, command: str, task: str) -> None:
    options = Options(environment={"COMMAND": command} if command else {})
    assert spec_of("llamafactory", V1 + text, options)["task"] == task


@pytest.mark.parametrize("command", ["DPO", "ppo", ""])
def test_a_command_that_v1_does_not_have_makes_no_job(command: str) -> None:
    found = imported("llamafactory", V1 + "model_class: llm}", "file", Options(environment={"COMMAND": command}))
    (problem,) = found.problems
    assert (problem.key, problem.text) == ("--env COMMAND", f"{command}: write one of train, sft, dpo, rm")


@pytest.mark.parametrize(
    ("context", "expert", "per_node", "pods"), [(2, 3, None, (1, 6)), (4, 12, None, (2, 6)), (4, 12, 8, (3, 8))]
)
def test_v1_gets_as_few_gpus_as_its_layout_divides(
    context: int, expert: int, per_node: int | None, pods: tuple[int, int]
) -> None:
    text = f"{V1}cp_size: {context}, dist_config: {{ep_size: {expert}}}}}"
    trainer = spec_of("llamafactory", text, Options(gpus_per_node=per_node))["trainer"]
    assert (trainer["nodes"], trainer["processesPerNode"]) == pods


def test_held_out_rows_of_v1_are_a_file() -> None:
    text = "{model: /m, train_dataset: /data/rows.jsonl, eval_dataset: sets.yaml, output_dir: o, max_steps: 5}"
    (problem,) = imported("llamafactory", text, "file", Options()).problems
    assert problem.text == "sets.yaml names data sets: name a file here"


@pytest.mark.parametrize(
    ("system", "text", "key"),
    [
        ("verl", "actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.target_modules = all-linear"),
        ("llamafactory", "peft_config: {name: lora}}", "peft_config.target_modules = all"),
    ],
)
def test_adapters_of_all_matrices_are_those_of_the_family_and_the_report_says_so(
    system: str, text: str, key: str
) -> None:
    found = imported(system, (VERL + GROUP if system == "verl" else V1) + text, "file", Options())
    assert "targets" not in yaml.safe_load(found.manifest)["spec"]["model"]["lora"]
    assert f"  {key}: targets stay unset, and mean all that the model's family has adapters for" in found.report


def test_every_configuration_has_its_case() -> None:
    sources = {
        str(p.relative_to(HERE))
        for p in HERE.glob("*/*")
        if p.suffix in (".sh", ".yaml") and not p.name.endswith(".rljob.yaml")
    }
    assert sources == {*CASES}


VERL = "python3 main_split.py actor_rollout_ref.model.path=/data/m trainer.total_training_steps=5 "
GROUP = "data.train_files=/data/a.parquet algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4 "
FACTORY = "{stage: sft, model_name_or_path: /m, dataset: pictures, output_dir: o, max_steps: 5, finetuning_type: full}"
INFINITE = {
    "runner": {"task_type": "reasoning", "max_steps": 5},
    "rollout": {"model": {"model_path": "/models/M"}},
    "algorithm": {"group_size": 4},
}


def spec_of(system: str, text: str, options: Options = Options()) -> dict[str, Any]:  # noqa: B008
    found = imported(system, text, "file", options)
    assert found.valid, found.report
    spec: dict[str, Any] = yaml.safe_load(found.manifest)["spec"]
    return spec


def test_a_column_of_images_is_read() -> None:
    data = {"train_data_paths": ["/data/a.parquet"]}
    named = [
        spec_of("verl", VERL + GROUP + "data.image_key=pictures"),
        spec_of("rlinf", json.dumps(INFINITE | {"data": data | {"image_keys": ["pictures"]}})),
        spec_of("llamafactory", FACTORY, Options(data_sets={"pictures": {"columns": {"images": "pictures"}}})),
    ]
    assert [spec["data"]["imageKey"] for spec in named] == ["pictures"] * 3
    assert "imageKey" not in spec_of("verl", VERL + GROUP)["data"]


def test_a_frozen_tower_stays_frozen() -> None:
    frozen = spec_of("verl", VERL + GROUP + "actor_rollout_ref.actor.freeze_vision_tower=True data.image_key=images")
    assert frozen["model"]["freeze"] == ["vision", "projector"]
    assert "freeze" not in spec_of("verl", VERL + GROUP + "actor_rollout_ref.actor.freeze_vision_tower=False")["model"]
    pictures = Options(data_sets={"pictures": {"columns": {"images": "images"}}})
    assert spec_of("llamafactory", FACTORY, pictures)["model"]["freeze"] == ["vision", "projector"]
    assert "freeze" not in spec_of("llamafactory", FACTORY)["model"]


def test_a_setting_that_vllm_has_no_more_is_left_out() -> None:
    engine = "+actor_rollout_ref.rollout.engine_kwargs.vllm."
    spec = spec_of("verl", VERL + GROUP + f"{engine}disable_mm_preprocessor_cache=True {engine}block_size=32")
    assert "block-size" in spec["rollout"]["vllmArgs"]
    assert "disable-mm-preprocessor-cache" not in spec["rollout"]["vllmArgs"]


def test_a_tokenizer_of_the_same_name_elsewhere_is_the_models() -> None:
    tree = INFINITE | {"data": {"train_data_paths": ["/data/a.parquet"]}}
    same = imported(
        "rlinf", json.dumps(tree | {"actor": {"tokenizer": {"tokenizer_model": "/other/M/"}}}), "f", Options()
    )
    assert same.valid and "holds the tokenizer too" in same.report
    other = imported(
        "rlinf", json.dumps(tree | {"actor": {"tokenizer": {"tokenizer_model": "/other/N"}}}), "f", Options()
    )
    assert [problem.key for problem in other.problems] == ["actor.tokenizer.tokenizer_model"]
