"""The held-out prompts of `task: rl`, in sets with names."""

from dataclasses import dataclass
from pathlib import Path

from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Sampling
from rljob_api.spec.train import VALIDATION
from rljob_trainer.data.files import Place, places
from rljob_trainer.data.image_reader import ImageReader
from rljob_trainer.data.prompts import PromptSet, RowValidator, load_prompts
from rljob_trainer.data.tokenizer import Tokenizer, Vocabulary


@dataclass(frozen=True, slots=True)
class HeldOutSet:
    """Prompts, and how they are answered."""

    name: str
    prompts: PromptSet
    count: int
    """Responses per prompt."""
    sampling: Sampling


def load_held_out(
    spec: RLJobSpec,
    tokenizer: Tokenizer,
    validate_row: RowValidator,
    scratch: Path,
    images: ImageReader | None = None,
) -> list[HeldOutSet]:
    """Of spec.data.validation and spec.evaluation.sets. The arguments, and what is raised, are those of load_prompts."""
    found, vocabulary = [], Vocabulary.of(spec)
    for i, (s, files) in enumerate(zip(spec.evaluation_sets, _files(spec), strict=True)):
        prompts = load_prompts(spec.data, files, tokenizer, validate_row, scratch / str(i), images, vocabulary)
        found.append(HeldOutSet(s.name, prompts, s.samples_per_prompt or 1, s.sampling or spec.evaluation.sampling))
    return found


def _files(spec: RLJobSpec) -> list[list[Place]]:
    """Of every set, in their order."""
    validation = spec.data.validation
    own = [places(f"spec.evaluation.sets[{i}].files", s.files) for i, s in enumerate(spec.evaluation.sets)]
    return [*([places(f"spec.data.{VALIDATION}", validation)] if validation else []), *own]
