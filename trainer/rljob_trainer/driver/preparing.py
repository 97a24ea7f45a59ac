"""What the driver reads before it serves rank 0: prompts for training, held-out sets, and rows that a user's own code makes."""

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from rljob_api.spec import RLJobSpec
from rljob_trainer.custom_rows.making import RowMaker
from rljob_trainer.data.files import places
from rljob_trainer.data.pictures import image_reader
from rljob_trainer.data.prompts import HeldOutSet, PromptSet, load_held_out, load_prompts, require_prompts_of_every_file
from rljob_trainer.data.tokenizer import Tokenizer, Vocabulary
from rljob_trainer.driver.unanswered import missing_answers
from rljob_trainer.rewards.rules import validate_row
from rljob_trainer.wire.launcher_files import ProgressFile

log = logging.getLogger(__name__)


def row_maker(directory: Path, spec: RLJobSpec, progress: ProgressFile) -> RowMaker:
    return RowMaker(spec.data, directory / "custom", moved=partial(moved, progress))


def moved(progress: ProgressFile, text: str) -> None:
    """A step of preparing data is progress, which nothing else reports so early."""
    progress.heartbeat()
    progress.update(awaiting=text)
    progress.flush()


def read_prompts(
    directory: Path, spec: RLJobSpec, tokenizer: Tokenizer, made: RowMaker
) -> tuple[PromptSet, list[HeldOutSet]]:
    """The prompts for training, and the held-out sets."""
    images = image_reader(spec)
    train = load_prompts(
        spec.data,
        made(places("spec.data.train", spec.data.train)),
        tokenizer,
        partial(validate_row, spec.rewards, by_driver=False),
        directory / "rows" / "train",
        images,
        Vocabulary.of(spec),
    )
    require_prompts_of_every_file(spec.data, train)
    validate = partial(validate_row, spec.rewards, by_driver=spec.evaluation.takes_place)
    held_out = load_held_out(spec, tokenizer, validate, directory / "rows" / "held-out", images, made)
    for name, prompts in [("train", train), *((f"held-out set {s.name}", s.prompts) for s in held_out)]:
        log.info("%s: %s", name, _described(prompts))
    return train, held_out


def without_answers(spec: RLJobSpec, train: PromptSet, needed: Mapping[int, str]) -> list[str]:
    """What to say where functions take answers (`needed`, by the index of their entry) and no row has one. Rows that spec.data.custom makes are its
    own matter."""
    files = places("spec.data.train", spec.data.train)
    if spec.data.custom or not files:
        return []
    return [str(mistake) for mistake in missing_answers(spec, files[0], train, needed)]


def _described(prompts: PromptSet) -> str:
    c = prompts.counts
    return (
        f"{c.rows} rows, {c.too_long} of them longer than maxPromptTokens and left out, {len(prompts)} prompts, "
        f"{c.duplicates} of them duplicates"
    )
