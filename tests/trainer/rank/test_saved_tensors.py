"""What servers get of a model's files."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from rljob_trainer.rank.saved_tensors import tensors_of
from rljob_trainer.server.weights.expected import ExpectedTensors
from rljob_trainer.wire.weights.bucket import Entry


def test_servers_accept_what_is_sent_of_files_with_copies_for_multi_token_prediction(tmp_path: Path) -> None:
    names = [f"model.layers.{layer}.a.weight" for layer in range(2)]
    names += ["model.embed_tokens.weight", "lm_head.weight"]
    copies = ["model.layers.1.embed_tokens.weight", "model.layers.1.shared_head.head.weight"]
    tensors = {name: torch.zeros(2, 3, dtype=torch.bfloat16) for name in names + copies}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 1, "num_nextn_predict_layers": 1}))
    beats = list[None]()
    sent = dict(tensors_of(tmp_path, lambda: beats.append(None)))
    for guesses in (False, True):
        expected = ExpectedTensors.of(tmp_path, "bfloat16", guesses)
        expected.check([Entry(name, "bfloat16", tuple(tensor.shape), "") for name, tensor in sent.items()])
        expected.check_complete(sent)
    assert sorted(sent) == sorted(names) and len(beats) == len(tensors)
