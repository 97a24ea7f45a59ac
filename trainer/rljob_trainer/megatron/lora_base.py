"""The identity of the base model of adapters, which their checkpoints record."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from rljob_api.spec.model import LoraSpec
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.wire.weights.bucket import digest, pack

BUCKET_BYTES = 2**28
"""Size of the copies from which the digest is computed."""
ELSEWHERE = "or use another spec.checkpoint.path"


@dataclass(frozen=True, slots=True)
class Base:
    """A base model and the settings of its adapters."""

    path: str
    """Its Hugging Face directory, for messages; only the digest is compared."""
    digest: str
    """Digest of its tensors (weights.bucket.digest)."""
    lora: dict[str, Any]

    @staticmethod
    def of(path: str, lora: LoraSpec, tensors: Iterable[tuple[str, torch.Tensor]]) -> "Base":
        """`tensors`: all tensors of the base model, by their Hugging Face names."""
        device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
        entries = [entry for bucket in pack(tensors, BUCKET_BYTES, device) for entry in bucket.entries]
        return Base(path, digest(entries), lora.model_copy(update={"path": None}).dump())

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def require_same(held: dict[str, Any] | None, here: Base | None) -> None:
    """Raise ConfigurationError unless a checkpoint's adapters belong to this base model.

    `held`: the base recorded in the checkpoint; None: it has a whole model. `here`: the base of this job; None: it trains all parameters.
    """
    if held is None and here is not None:
        rule = "the checkpoint holds a whole model, of a job that trained without adapters"
        raise ConfigurationError("spec.model.lora", "set", rule, f"remove it, {ELSEWHERE}")
    if held is not None and here is None:
        rule = f"the checkpoint holds adapters of {held['path']} only, {_settings(held['lora'])}"
        raise ConfigurationError("spec.model.lora", "unset", rule, f"set them again, {ELSEWHERE}")
    if held is None or here is None:
        return
    if held["lora"] != here.lora:
        rule = f"the adapters of the checkpoint have {_settings(held['lora'])}"
        raise ConfigurationError("spec.model.lora", _settings(here.lora), rule, f"set that again, {ELSEWHERE}")
    if held["digest"] != here.digest:
        theirs = f"{held['path']} ({held['digest'][:12]}), with which the adapters of the checkpoint were trained"
        rule = f"its tensors ({here.digest[:12]}) are not those of {theirs}"
        fix = f"name that model, with the spec.model.dtype of then, {ELSEWHERE}"
        raise ConfigurationError("spec.model.path", here.path, rule, fix)


def _settings(lora: dict[str, Any]) -> str:
    return f"rank {lora['rank']}, alpha {lora['alpha']}, targets {' '.join(lora['targets'])}, sync {lora['sync']}"
