"""What LLaMA-Factory's keys and data sets mean."""

import json
from typing import Any

import pytest
import yaml

from rljob_import import Options
from rljob_import.report import Conversion, imported

FACTORY = {"stage": "sft", "model_name_or_path": "/m", "output_dir": "o", "max_steps": 5, "finetuning_type": "full"}


def factory(sets: dict[str, Any], **settings: Any) -> Conversion:
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


def test_a_cosine_with_a_least_rate_keeps_it() -> None:
    sets, kind = {"a": columns()}, {"lr_scheduler_type": "cosine_with_min_lr", "learning_rate": 3e-4}
    for given, low in (({"min_lr": 1e-5}, 1e-5), ({"min_lr_rate": 0.1}, 3e-5)):
        optimizer = yaml.safe_load(factory(sets, **kind, lr_scheduler_kwargs=given).manifest)["spec"]["train"][
            "optimizer"
        ]
        assert optimizer["minLearningRate"] == low and optimizer["decay"] == "cosine"
    (problem,) = factory(sets, **kind).problems
    assert problem.key == "lr_scheduler_type" and "min_lr_rate" in problem.text
    report = factory(sets, lr_scheduler_type="cosine", lr_scheduler_kwargs={"min_lr_rate": 0.1, "num_cycles": 2}).report
    assert "cosine has no least rate" in report and "schedules have no num_cycles" in report


@pytest.mark.parametrize(("rank", "alpha", "ours"), [(16, 8, 32), (16, None, 128), (8, 16, 45)])
def test_adapters_that_divide_by_the_root_of_their_rank_keep_their_scale(
    rank: int, alpha: int | None, ours: int
) -> None:
    given = factory({"a": columns()}, finetuning_type="lora", use_rslora=True, lora_rank=rank, lora_alpha=alpha)
    assert yaml.safe_load(given.manifest)["spec"]["model"]["lora"]["alpha"] == ours


@pytest.mark.parametrize(
    "key", ["add_tokens", "additional_target", "early_stopping_steps", "pref_bco_weight", "shift_attn"]
)
def test_what_other_methods_of_llama_factory_change_is_not_expressible(key: str) -> None:
    left = factory({"a": columns()}, **{key: 1 if key.endswith(("steps", "weight")) else True}).report
    assert f"  {key} = " in left.partition("Not expressible")[2]
