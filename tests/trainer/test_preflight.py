"""Model and adapters of a job, before anything loads them."""

import json
from pathlib import Path
from typing import Any

from api.specs import make_spec
from rljob_trainer.model_files import violations

MODEL = {"model_type": "qwen2", "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 64}
GIVEN = {"peft_type": "LORA", "r": 4, "lora_alpha": 32, "use_dora": True, "target_modules": ["v_proj"]}


def found(directory: Path, model: Any = None, adapters: Any = None, weights: bool = True) -> list[str]:
    """What is said of a job over four tensor-parallel ranks that begins from adapters; the text or JSON of the files."""
    for name, content in (("model/config.json", model), ("adapter/adapter_config.json", adapters)):
        (directory / name).parent.mkdir(exist_ok=True)
        if content is not None:
            (directory / name).write_text(content if isinstance(content, str) else json.dumps(content))
    if weights:
        (directory / "adapter/adapter_model.safetensors").touch()
    lora = {"path": str(directory / "adapter"), "rank": 8, "targets": ["linear_q"]}
    trainer = {"nodes": 4, "parallelism": {"tensor": 4}}
    return [
        str(v) for v in violations(make_spec(model={"path": str(directory / "model"), "lora": lora}, trainer=trainer))
    ]


def test_all_mistakes_of_model_and_adapters_come_at_once(tmp_path: Path) -> None:
    said = found(tmp_path, MODEL, GIVEN)
    assert [line.split(" = ")[0] for line in said] == [
        "spec.trainer.parallelism.tensor",
        "spec.trainer.parallelism.tensor",
        "spec.model.lora.path",
        "spec.model.lora.rank",
        "spec.model.lora.targets",
    ]
    assert "num_attention_heads = 14 of the model is not divisible by it" in said[0]
    assert "use_dora = True is not supported" in said[2] and "set [linear_v]" in said[4]


def test_a_job_that_fits_its_files_has_none(tmp_path: Path) -> None:
    fitting = {"peft_type": "LORA", "r": 8, "lora_alpha": 32, "target_modules": ["q_proj"]}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 160}
    assert found(tmp_path, MODEL | heads, fitting) == []


def test_files_that_are_missing_or_broken_are_named_and_nothing_is_said_of_a_model_that_is_not_there(
    tmp_path: Path,
) -> None:
    said = found(tmp_path, weights=False)
    assert ["holds no adapter_config.json" in said[0], "holds no adapter_model.safetensors" in said[1]] == [True] * 2
    assert len(said) == 2
    said = found(tmp_path, "{", "[]")
    assert ["its config.json cannot be read" in said[0], "its adapter_config.json is no JSON object" in said[1]] == [
        True
    ] * 2
    assert len(said) == 2
