"""The files of a model before anything loads them: against each other (only headers are read), and against the job's spec: config.json, and
adapter_config.json of the adapters to begin from. Without torch.

Ranks check them too, each file when they read it, and end with the first mistake.
"""

import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rljob_api.families import has_delta_nets, has_latent_attention, language_of
from rljob_api.rules.engine import Violation
from rljob_api.rules.lora import CONFIG, FIELD, WEIGHTS, given_violations, named_modules
from rljob_api.rules.model import model_violations
from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import LoraSpec

POINTER = b"version https://git-lfs.github.com/spec/"
INDEX = "model.safetensors.index.json"
COPY = "copy the whole model directory again"
QUANTIZED = "hf_quant_config.json"
"""Of NVIDIA's ModelOpt up to 0.29. vLLM 0.32 quantizes by it where config.json has no `quantization_config` (transformers_utils/config.py)."""
LONGEST_HEADER = 100 * 2**20
"""Bytes, as the library safetensors has it."""
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64"}
"""torch's and config.json's names of those in headers of safetensors."""
LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
COUNTS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"),
    *("vocab_size", "head_dim"),
)
"""Keys of config.json that are whole numbers from 1."""
Shapes = Mapping[str, tuple[str, Sequence[int]]]
"""File and shape of each tensor."""


class Damaged(Exception):
    """Completes "its FILE": what is wrong."""

    def __init__(self, file: Path, problem: str, fix: str = COPY):
        super().__init__(f"its {file.name} {problem}")
        self.problem, self.fix = str(self), fix


def is_pointer(file: Path) -> bool:
    """Whether Git LFS has left its note of three lines in place of the file. Raises OSError."""
    with file.open("rb") as stream:
        return stream.read(len(POINTER)) == POINTER


def damage(field: str, directory: str, config: dict[str, Any], weights: bool = True) -> Iterator[Violation]:
    """What is wrong with a model's directory, which `field` names and whose config.json is `config`; nothing where there is none. `weights`: they
    are read too. Raises OSError: a volume may be away."""
    path = Path(directory)
    if not path.is_dir():
        return
    try:
        _require_files(path)
        shapes = _shapes(path) if weights else {}
    except Damaged as damaged:
        yield Violation(field, directory, damaged.problem, damaged.fix)
        return
    for problem in _contradictions(language_of(config), shapes):
        yield Violation(field, directory, problem, "use the config.json that belongs to the weights")


def _require_files(path: Path) -> None:
    for file in sorted(path.iterdir()):
        if file.is_file() and is_pointer(file):
            raise Damaged(file, "is a Git LFS pointer, not the file itself", "fetch it with git lfs pull")
    if (path / QUANTIZED).is_file():
        fix = "use a directory in bfloat16, which has no such file"
        raise Damaged(path / QUANTIZED, "says that weights are quantized, and those are not trained", fix)


def weight_files(path: Path) -> list[Path]:
    """Files of a model's directory that hold its weights: those that its index names, or else all in safetensors. Raises Damaged, OSError."""
    return [path / name for name in _file_names(path, _tensors(path))]


def _file_names(path: Path, where: Mapping[str, str]) -> list[str]:
    return sorted({*where.values()}) or sorted(file.name for file in path.glob("*.safetensors"))


def _tensors(path: Path) -> dict[str, str]:
    """The file of each tensor, by the index; empty: there is none. Raises Damaged."""
    index = path / INDEX
    return _index(index) if index.is_file() else {}


def _shapes(path: Path) -> Shapes:
    """Of all tensors. Empty without safetensors. Raises Damaged."""
    where = _tensors(path)
    files = _file_names(path, where)
    missing = [name for name in files if not (path / name).is_file()]
    if missing:
        raise Damaged(path / missing[0], f"is missing, and {INDEX} names it")
    shapes = {tensor: (name, shape) for name in files for tensor, shape in header(path / name).items()}
    lost = sorted(tensor for tensor, name in where.items() if shapes.get(tensor, ("",))[0] != name)
    if lost:
        raise Damaged(path / where[lost[0]], f"does not hold {lost[0]}, which {INDEX} looks for in it")
    return shapes


def _index(file: Path) -> dict[str, str]:
    try:
        where = json.loads(file.read_text())["weight_map"]
        return {str(tensor): str(name) for tensor, name in where.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(file, f"cannot be read: {type(error).__name__}: {error}") from error


def header(file: Path) -> dict[str, list[int]]:
    """Shapes of the tensors in a safetensors file, whose length has to fit. Raises Damaged."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8).ljust(8, b"\0"))
        if not 2 <= length <= min(LONGEST_HEADER, size - 8):
            raise Damaged(file, f"is no whole safetensors file: it has {size} bytes")
        text = stream.read(length)
    try:
        tensors = {name: held for name, held in json.loads(text).items() if name != "__metadata__"}
        end = 8 + length + max((held["data_offsets"][1] for held in tensors.values()), default=0)
        shapes = {name: [int(n) for n in held["shape"]] for name, held in tensors.items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise Damaged(file, f"has a header that cannot be read: {type(error).__name__}: {error}") from error
    if size != end:
        raise Damaged(file, f"has {size} bytes, and {end} by its header: it was cut, or is still being copied")
    return shapes


def _contradictions(config: dict[str, Any], shapes: Shapes) -> Iterator[str]:
    """Numbers of config.json that contradict each other, or the weights."""
    wrong = [key for key in COUNTS if config.get(key) is not None and not _is_count(config[key])]
    if wrong:
        yield f"its config.json has {wrong[0]} = {config[wrong[0]]!r}, which is not a whole number from 1"
        return
    heads, groups = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if heads and groups and heads % groups:
        yield f"its config.json has num_attention_heads = {heads}, not divisible by num_key_value_heads = {groups}"
    if (
        heads
        and config.get("hidden_size", 0) % heads
        and not config.get("head_dim")
        and not has_latent_attention(config)
    ):
        yield f"its config.json has hidden_size = {config['hidden_size']}, not divisible by num_attention_heads = {heads}"
    for key, expected in _expected(config):
        for name, (file, shape) in shapes.items():
            if expected(name) not in (None, *shape[:1]):
                yield f"its config.json has {key} = {config[key]}, and {name} in {file} has the shape {list(shape)}"
                break
    yield from _wrong_depth(config, shapes)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _expected(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys of config.json, each with a function from a tensor's name to its number of rows by that key; None: of another tensor."""
    heads, groups, width = (config.get(key) for key in ("num_attention_heads", "num_key_value_heads", "hidden_size"))
    head = config.get("head_dim") or (width // heads if width and heads else None)
    latent = has_latent_attention(config)
    queries = 2 if has_delta_nets(config) else 1  # with a gate for each number of the output
    rows = {
        "vocab_size": (("embed_tokens.weight",), config.get("vocab_size")),
        "hidden_size": (("layers.0.input_layernorm.weight", "language_model.norm.weight", "model.norm.weight"), width),
        "num_attention_heads": (
            (".self_attn.q_proj.weight",),
            heads and head and not latent and queries * heads * head,
        ),
        "num_key_value_heads": ((".self_attn.k_proj.weight",), groups and head and not latent and groups * head),
        "intermediate_size": ((".mlp.gate_proj.weight",), config.get("intermediate_size")),
    }
    for key, (suffixes, count) in rows.items():
        if count:
            yield key, partial(_rows_of, suffixes, count)


def _rows_of(suffixes: tuple[str, ...], count: int, name: str) -> int | None:
    return count if name.endswith(suffixes) and not _of_vision(name) else None


def _wrong_depth(config: dict[str, Any], shapes: Shapes) -> Iterator[str]:
    layers, further = config.get("num_hidden_layers"), config.get("num_nextn_predict_layers") or 0
    matches = (LAYER.search(name) for name in shapes if not _of_vision(name))
    held = {int(match[1]) for match in matches if match}
    if layers and held and not layers <= len(held) <= layers + further:
        yield f"its config.json has num_hidden_layers = {layers}, and its weights have {len(held)} layers"


def _of_vision(name: str) -> bool:
    return "visual" in name or "vision" in name or name.startswith("mtp.")


def violations(spec: RLJobSpec) -> list[Violation]:
    """All mistakes at once. Of a model that is not there nothing. Raises OSError."""
    config, broken = model_config(spec.model.path)
    lora, damaged = spec.model.lora, [*broken, *_damage(spec, config, bool(broken))]
    config = {} if damaged else config  # what is broken says nothing of the job
    return [
        *damaged,
        *model_violations(spec, config),
        *(adapter_violations(lora, config, str(lora.path)) if lora and lora.path else ()),
    ]


def _damage(spec: RLJobSpec, config: dict[str, Any], broken: bool) -> Iterator[Violation]:
    """Of the directories of all models that the ranks load. `broken`: the policy's config.json is already reported as broken."""
    if not broken:
        yield from damage("spec.model.path", spec.model.path, config, weights=not spec.model.megatron_checkpoint)
    for field, path in _others(spec):
        model, unread = model_config(path)
        yield from unread or damage(field, path, model)


def _others(spec: RLJobSpec) -> Iterator[tuple[str, str]]:
    """Models with a directory of their own, by field. One that a Megatron checkpoint replaces has none."""
    named = [(f"spec.{name}", getattr(spec, name)) for name in ("critic", "reference")]
    named += [(f"spec.rewards[{i}].model", reward.model) for i, reward in enumerate(spec.rewards)]
    for field, section in named:
        path = getattr(section, "path", None)
        if path and not getattr(section, "megatron_checkpoint", None):
            yield f"{field}.path", path


def model_config(directory: str) -> tuple[dict[str, Any], list[Violation]]:
    """The model's own numbers, none when it is not there, and what is wrong with their file. Raises OSError."""
    file = Path(directory) / "config.json"
    return read(file, "spec.model.path") if file.is_file() else ({}, [])


def adapter_violations(lora: LoraSpec, model: dict[str, Any], directory: str) -> Iterator[Violation]:
    """`model`: its config.json, empty when it is not there. `directory`: where the adapters to begin from lie here."""
    yield from absent(lora, directory)
    file = Path(directory) / CONFIG
    if file.is_file():
        config, broken = read(file, f"{FIELD}.path")
        yield from broken or given_violations(lora, model, config, named_modules(config))


def absent(lora: LoraSpec, directory: str) -> Iterator[Violation]:
    """The files of adapters that are not there."""
    for name in (CONFIG, WEIGHTS):
        if not (Path(directory) / name).is_file():
            fix = "name a directory of the peft library, with safetensors"
            yield Violation(f"{FIELD}.path", str(lora.path), f"holds no {name}", fix)


def read(file: Path, field: str) -> tuple[dict[str, Any], list[Violation]]:
    """What it holds, and what is wrong with it. Raises OSError: a volume may be away."""
    if is_pointer(file):
        problem = f"its {file.name} is a Git LFS pointer, not the file itself"
        return {}, [Violation(field, str(file.parent), problem, "fetch it with git lfs pull")]
    try:
        content = json.loads(file.read_text())
    except ValueError as error:
        return {}, [Violation(field, str(file.parent), f"its {file.name} cannot be read: {error}", "copy it again")]
    if not isinstance(content, dict):
        return {}, [Violation(field, str(file.parent), f"its {file.name} is no JSON object", "copy it again")]
    return content, []
