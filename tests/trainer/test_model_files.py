"""Model directories that are not whole, or contradict themselves: said by file before anything loads them."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from api.specs import make_spec
from rljob_trainer.model_files import INDEX, QUANTIZED, damage, violations
from trainer.megatron.kinds import KINDS
from trainer.megatron.models import make_model

CONFIG = {
    "model_type": "qwen2",
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 12,
    "vocab_size": 16,
}
SHAPES = {
    "model.embed_tokens.weight": (16, 8),
    **{f"model.layers.{i}.self_attn.q_proj.weight": (8, 8) for i in range(2)},
    **{f"model.layers.{i}.self_attn.k_proj.weight": (4, 8) for i in range(2)},
    **{f"model.layers.{i}.mlp.gate_proj.weight": (12, 8) for i in range(2)},
    "model.norm.weight": (8,),
}
NOTE = "version https://git-lfs.github.com/spec/v1\noid sha256:35dc\nsize 446564\n"


def written(path: Path, config: dict[str, Any] | None = None, shards: int = 2) -> Path:
    """A whole model directory."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG | (config or {})))
    (path / "tokenizer.json").write_text("{}")
    names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    where = {tensor: names[i % shards] for i, tensor in enumerate(SHAPES)}
    for name in names:
        held = {t: np.zeros(SHAPES[t], np.float32) for t, at in where.items() if at == name}
        save_file(held, path / name)
    (path / INDEX).write_text(json.dumps({"weight_map": where}))
    return path


def said(path: Path, **sections: Any) -> list[str]:
    return [str(v) for v in violations(make_spec(model={"path": str(path)}, **sections))]


def test_a_whole_directory_has_none(tmp_path):
    assert said(written(tmp_path / "model")) == []
    assert said(written(tmp_path / "mtp", {"num_hidden_layers": 1, "num_nextn_predict_layers": 1})) == []


SECOND = "model-00002-of-00002.safetensors"


def _shrink(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _without(file: Path) -> None:
    held = json.loads(file.read_text())
    held["weight_map"]["lm_head.weight"] = SECOND
    file.write_text(json.dumps(held))


@pytest.mark.parametrize(
    ("name", "harm", "complaint"),
    [
        *(
            (name, lambda f: f.write_text(NOTE), f"its {name} is a Git LFS pointer")
            for name in (SECOND, "tokenizer.json")
        ),
        ("config.json", lambda f: f.write_text(NOTE), "its config.json is a Git LFS pointer"),
        (SECOND, _shrink, f"its {SECOND} has .* bytes, and .* by its header: it was cut"),
        (SECOND, lambda f: f.write_bytes(f.read_bytes()[:100]), f"its {SECOND} is no whole safetensors file"),
        (SECOND, lambda f: f.write_bytes(b""), f"its {SECOND} is no whole safetensors file: it has 0 bytes"),
        (SECOND, lambda f: f.write_bytes(b"<html>not found</html>" * 9), f"its {SECOND} is no whole safetensors file"),
        (SECOND, lambda f: f.write_bytes(f.read_bytes() + b"\0"), "it was cut, or is still being copied"),
        (SECOND, Path.unlink, f"its {SECOND} is missing, and {INDEX} names it"),
        (INDEX, _without, f"its {SECOND} does not hold lm_head.weight, which {INDEX} looks for in it"),
        (INDEX, _shrink, f"its {INDEX} cannot be read"),
        (INDEX, lambda f: f.write_text("[]"), f"its {INDEX} cannot be read"),
        (QUANTIZED, lambda f: f.write_text("{}"), f"its {QUANTIZED} says that weights are quantized"),
    ],
)
def test_a_file_that_is_not_whole_is_named_with_what_helps(tmp_path, name, harm: Callable[[Path], None], complaint):
    path = written(tmp_path / "model")
    harm(path / name)
    (found,) = violations(make_spec(model={"path": str(path)}))
    assert re.search(complaint, str(found)), str(found)
    assert found.field == "spec.model.path"
    assert ("git lfs pull" in found.fix) == ("LFS" in complaint)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"vocab_size": 20}, "vocab_size = 20, and model.embed_tokens.weight in model-.* has the shape .16, 8."),
        ({"hidden_size": 16, "head_dim": 2}, "hidden_size = 16, and model.norm.weight"),
        ({"num_attention_heads": 8, "head_dim": 2}, "num_attention_heads = 8, and .*q_proj.weight"),
        ({"num_key_value_heads": 4}, "num_key_value_heads = 4, and .*k_proj.weight"),
        ({"intermediate_size": 10}, "intermediate_size = 10, and .*gate_proj.weight"),
        ({"num_hidden_layers": 1}, "num_hidden_layers = 1, and its weights have 2 layers"),
        ({"num_hidden_layers": 3}, "num_hidden_layers = 3, and its weights have 2 layers"),
        ({"num_key_value_heads": 3}, "num_attention_heads = 4, not divisible by num_key_value_heads = 3"),
        ({"hidden_size": 10}, "hidden_size = 10, not divisible by num_attention_heads = 4"),
        ({"hidden_size": "8"}, "hidden_size = '8', which is not a whole number from 1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0, which is not"),
        ({"vocab_size": -1}, "vocab_size = -1, which is not"),
    ],
)
def test_a_config_that_its_weights_or_its_own_numbers_contradict_is_refused(tmp_path, config, complaint):
    found = said(written(tmp_path / "model", config))
    assert found and re.search(complaint, "\n".join(found)), found


def test_the_models_of_all_roles_are_looked_at(tmp_path):
    model, other = written(tmp_path / "model"), written(tmp_path / "other")
    (other / SECOND).write_text(NOTE)
    rewards = [{"model": {"path": str(other)}}]
    (found,) = violations(make_spec(model={"path": str(model)}, rewards=rewards))
    assert found.field == "spec.rewards[0].model.path" and "is a Git LFS pointer" in str(found)


def test_a_megatron_checkpoint_takes_the_place_of_the_weights(tmp_path):
    path = written(tmp_path / "model")
    (path / SECOND).unlink()
    given = {"path": str(path), "megatronCheckpoint": "/m/global_step_1"}
    assert violations(make_spec(model=given)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_directories_of_every_family_are_whole(tmp_path, kind):
    model = make_model(tmp_path, kind, max_shard_size="40KB")
    assert [*damage("spec.model.path", str(model), json.loads((model / "config.json").read_text()))] == []
