"""What an update must look like."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rljob_trainer.server.weights.expected import ExpectedTensors, RefusedUpdateError
from rljob_trainer.wire.weights.bucket import Entry


def manifest(path: Path, tied: bool = False) -> ExpectedTensors:
    """Of a bfloat16 checkpoint with one float32 tensor, served as float16."""
    save_file({"w": torch.zeros(2, 3, dtype=torch.bfloat16)}, path / "model-1.safetensors")
    save_file(
        {"router": torch.zeros(4)} | ({"lm_head.weight": torch.zeros(2)} if tied else {}), path / "model-2.safetensors"
    )
    (path / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
    return ExpectedTensors.of(path, "float16")


def entry(name: str, dtype: str, *shape: int) -> Entry:
    return Entry(name, dtype, shape, "")


def test_the_served_type_and_the_checkpoints_own_type_are_taken(tmp_path: Path) -> None:
    m = manifest(tmp_path)
    m.check([entry("w", "float16", 2, 3), entry("w", "bfloat16", 2, 3), entry("router", "float32", 4)])
    m.check_complete(["router", "w"])


def test_the_bias_of_a_router_comes_as_the_trainer_has_it(tmp_path: Path) -> None:
    bias = "model.layers.1.mlp.gate.e_score_correction_bias"
    save_file({bias: torch.zeros(4, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    ExpectedTensors.of(tmp_path, "bfloat16").check([entry(bias, "float32", 4)])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (entry("w", "float32", 2, 3), "w is float32, this model takes bfloat16 or float16"),
        (entry("w", "float16", 3, 2), r"w has shape \[3, 2\], this model has \[2, 3\]"),
        (entry("v", "float16", 2, 3), "v is not a tensor of this model"),
        (entry("lm_head.weight", "float16", 2), "lm_head.weight is not a tensor"),
    ],
)
def test_another_tensor_is_refused(tmp_path: Path, wrong: Entry, message: str) -> None:
    with pytest.raises(RefusedUpdateError, match=message):
        manifest(tmp_path).check([wrong])


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    with pytest.raises(RefusedUpdateError, match=r"1 tensors are missing, among them \['router'\]"):
        manifest(tmp_path).check_complete(["w"])


def test_files_that_the_index_does_not_name_are_not_part_of_the_model(tmp_path: Path) -> None:
    """As Mistral's repositories have them: the same weights once more, under the names of another format."""
    expected = manifest(tmp_path)
    index = {"w": "model-1.safetensors", "router": "model-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    save_file({"layers.0.attention.wq.weight": torch.zeros(2, 3)}, tmp_path / "consolidated.safetensors")
    assert ExpectedTensors.of(tmp_path, "float16") == expected


def test_a_layer_that_guesses_further_tokens_is_required_where_the_server_does_so(tmp_path: Path) -> None:
    tensors = {f"model.layers.{i}.w": torch.zeros(2, dtype=torch.bfloat16) for i in range(12)}
    copies = {f"model.layers.11.{name}.weight": torch.ones(2) for name in ("embed_tokens", "shared_head.head")}
    save_file(tensors | copies, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 11, "num_nextn_predict_layers": 1}))
    without = tensors.keys() - {"model.layers.11.w"}
    for guesses in (False, True):
        expected = ExpectedTensors.of(tmp_path, "bfloat16", guesses)
        assert expected.tensors.keys() == tensors.keys(), "copies are in no update"
        expected.check([entry("model.layers.11.w", "bfloat16", 2)])
        expected.check_complete(tensors)
    ExpectedTensors.of(tmp_path, "bfloat16").check_complete(without)
    with pytest.raises(RefusedUpdateError, match="model.layers.11.w"):
        ExpectedTensors.of(tmp_path, "bfloat16", guesses=True).check_complete(without)


@pytest.mark.parametrize("tied_in_file", [True, False])
def test_a_tied_output_layer_may_be_sent_or_left_out(tmp_path: Path, tied_in_file: bool) -> None:
    m = manifest(tmp_path, tied=True)
    m.check_complete(["w", "router"])
    m.check([entry("lm_head.weight", "float32", 2)])


def test_a_directory_without_safetensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedUpdateError, match="holds no .safetensors file"):
        ExpectedTensors.of(tmp_path, "float32")
