"""The directory of an EAGLE-3 draft: read, and checked against what is computed."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig

from rljob_trainer.failure import ConfigurationError
from rljob_trainer.megatron.draft.model import Draft
from rljob_trainer.model_files import weight_files
from rljob_trainer.wire.weights.drafts import CONTAINED

FIELD = "spec.rollout.speculation.draft"
TOKENS = "d2t"
"""[draft's vocabulary] int64, of each of its tokens the policy's number less its own."""
PLAIN: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "norm_before_residual": False,
    "norm_before_fc": False,
    "fc_norm": False,
    "norm_output": False,
    "logit_scale": 1.0,
}
"""Keys of config.json, with the value that the trained network has."""
REQUIRED = ("architectures", "num_hidden_layers")
"""Those that a file may not leave out."""
LAYERS = "eagle_aux_hidden_state_layer_ids"


class DraftFiles(NamedTuple):
    """What a directory holds."""

    directory: Path
    config: LlamaConfig
    seen: tuple[int, ...]
    """The policy's layers whose input is read, ascending; the number of all layers: what the last one gives."""
    tensors: dict[str, Tensor]
    """In host memory. Those that are trained, and TOKENS and CONTAINED where there are."""

    @property
    def tokens(self) -> Tensor:
        """[draft's vocabulary], the number of each of its tokens in the policy's."""
        own = torch.arange(self.config.draft_vocab_size)
        return own + self.tensors[TOKENS] if TOKENS in self.tensors else own


def read(path: str, width: int, vocabulary: int, layers: int) -> DraftFiles:
    """The draft in a directory. `width`, `vocabulary`, `layers`: of the policy. Raises ConfigurationError, of FIELD."""
    directory = Path(path)
    given = _config(directory)
    for key in REQUIRED:
        if key not in given:
            raise _refused(path, f"its config.json has no {key}")
    for key, value in PLAIN.items():
        if given.get(key, value) != value:
            raise _refused(
                path, f"its config.json has {key} = {given[key]!r}, and {value!r} only is proven to be trained"
            )
    config = LlamaConfig(**given)
    config.draft_vocab_size = given.get("draft_vocab_size") or config.vocab_size
    _require_plain_positions(path, config)
    for key, own, wanted in (("hidden_size", config.hidden_size, width), ("vocab_size", config.vocab_size, vocabulary)):
        if own != wanted:
            raise _refused(path, f"its config.json has {key} = {own}, the policy's is {wanted}")
    files = DraftFiles(directory, config, _seen(path, given, layers), _tensors(directory))
    _require_shapes(path, files, vocabulary)
    return files


def _config(directory: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((directory / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise _refused(str(directory), f"its config.json cannot be read: {error}") from error
    return found


def _require_plain_positions(path: str, config: LlamaConfig) -> None:
    kind = config.rope_parameters.get("rope_type", "default")
    if kind != "default":
        raise _refused(
            path, f"its positions are rotated by {kind}, and by no other than the default is it proven to be trained"
        )


def _seen(path: str, config: dict[str, Any], layers: int) -> tuple[int, ...]:
    """As vLLM 0.32 chooses them (v1/worker/gpu_model_runner.py, `_get_eagle3_aux_layers_from_config`)."""
    chosen = config.get(LAYERS) or (config.get("eagle_config") or {}).get(LAYERS) or (2, layers // 2, layers - 3)
    seen = tuple(sorted(set(chosen)))
    if not 0 <= seen[0] <= seen[-1] <= layers:
        raise _refused(path, f"it reads the inputs of layers {list(seen)}, and the policy has {layers}")
    return seen


def _tensors(directory: Path) -> dict[str, Tensor]:
    return {name: tensor for file in weight_files(directory) for name, tensor in load_file(file).items()}


def _require_shapes(path: str, files: DraftFiles, vocabulary: int) -> None:
    with torch.device("meta"):
        wanted = {name: p.shape for name, p in Draft(files.config, len(files.seen)).named_parameters()}
    own = files.config.draft_vocab_size
    if own != vocabulary:
        wanted[TOKENS] = torch.Size([own])
    held = {name: tensor.shape for name, tensor in files.tensors.items() if name != CONTAINED}
    if missing := sorted(wanted.keys() - held.keys()):
        raise _refused(path, f"its files lack {missing[0]}")
    if further := sorted(held.keys() - wanted.keys()):
        raise _refused(path, f"its files have {further[0]}, which is not part of what is trained")
    if TOKENS in wanted and files.tensors[TOKENS].dtype != torch.int64:
        raise _refused(path, f"{TOKENS} holds {files.tensors[TOKENS].dtype}, and servers take torch.int64 only")
    for name, shape in wanted.items():
        if held[name] != shape:
            raise _refused(path, f"{name} has the shape {list(held[name])}, by its config.json {list(shape)}")


def _refused(path: str, rule: str) -> ConfigurationError:
    return ConfigurationError(FIELD, path, rule, "take another draft, or remove spec.rollout.speculation.learningRate")
