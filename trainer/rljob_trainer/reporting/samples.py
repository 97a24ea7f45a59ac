"""What the model reads and says: a few samples of each step as text, with their images, for people."""

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rljob_api import names
from rljob_trainer.reporting.kept_steps import delete_old
from rljob_trainer.textfile import read_text, replace
from rljob_trainer.wire.arrays import split
from rljob_trainer.wire.batch import Batch, Columns
from rljob_trainer.wire.images import Image
from rljob_trainer.wire.trajectory import Floats, Ints, Segment

PROMPTS = 4
SAMPLES = 4
"""Of each of the first PROMPTS prompts."""
LONGEST_TEXT = 20_000
"""Characters; of longer texts the end is left out."""
MOST_TOKENS = 1024
"""Of a sample: so many that the policy wrote are also there one by one, with their log-probabilities."""
MOST_IMAGES, MOST_PIXELS = 16, 640
"""Images of a step, and pixels of a side of one."""

log = logging.getLogger(__name__)

Scored = Mapping[tuple[int, int], Mapping[str, Any]]
"""By group and sample, what its reward functions said besides the reward, and the row's answer."""


class Decoder(Protocol):
    """The part of a tokenizer that is needed."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...


class ImageWriter(Protocol):
    """The part of an image reader that is needed."""

    def png(self, image: Image, most: int) -> bytes:
        """See ImageReader.png."""
        ...


def kept_rows(columns: Columns) -> list[int]:
    """The rows of a step that are kept as text, ascending."""
    return np.flatnonzero((columns.group < PROMPTS) & (columns.sample < SAMPLES)).tolist()


def write_samples(
    root: Path, batch: Batch, tokenizer: Decoder, scored: Scored, images: ImageWriter | None = None
) -> None:
    """`samples/step_N.jsonl` below the checkpoint path, whole or not at all, and its images, if `images` can write them; files of old steps are
    deleted. A volume that takes none costs a warning: training continues without them."""
    file = names.samples_file(root, batch.step)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(file, _lines(batch, tokenizer, scored, _pictured(root, batch, images)))
        delete_old(file.parent, batch.step)
    except OSError as error:
        log.warning("the samples of step %d are not in the run directory: %s", batch.step, error)


def add_log_probs(root: Path, step: int, columns: Columns, values: Floats) -> None:
    """Add the trainer's log-probabilities to the tokens in the file of a step: a third value behind the rollout server's.

    A file that does not hold this step's samples stays as it is: a job that replays batches writes none. One that cannot be read or written costs a
    warning.

    Args:
        values: of the first MOST_TOKENS tokens that the policy wrote in each of kept_rows, one row after another; NaN: not computed
    """
    of_rows = split(values, np.minimum(columns.learnt_length[kept_rows(columns)], MOST_TOKENS).tolist())
    try:
        _add(names.samples_file(root, step), of_rows)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("the samples of step %d lack the trainer's log-probabilities: %r", step, error)


def _add(file: Path, of_rows: Sequence[Floats]) -> None:
    """Raises OSError, and ValueError, KeyError, TypeError and AttributeError where the file holds something else."""
    lines = [json.loads(line) for line in read_text(file).split("\n") if line]
    tokens = [[token for s in line["segments"] for token in s.get("tokens", ())] for line in lines]
    if [len(t) for t in tokens] != [len(v) for v in of_rows]:
        return
    for token, value in zip(chain(*tokens), chain(*of_rows), strict=True):
        token[2:] = [_short(float(value))]
    _write(file, lines)


def _write(file: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    replace(file, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def _pictured(root: Path, batch: Batch, images: ImageWriter | None) -> dict[int, int]:
    """Writes the images of the samples. [id of an image] -> its number in the step; samples of one prompt share theirs. Those from the first on
    that cannot be written are left out."""
    placed = (image for row in kept_rows(batch.columns) for _, image in batch.trajectories[row].images)
    distinct = {id(image): image for image in placed} if images else {}
    chosen = dict(islice(distinct.items(), MOST_IMAGES))
    written: dict[int, int] = {}
    try:
        for number, (identity, image) in enumerate(chosen.items()):
            assert images
            names.sample_image(root, batch.step, number).write_bytes(images.png(image, MOST_PIXELS))
            written[identity] = number
    except Exception as error:  # also what a model's own processor has in place of numbers
        log.warning("the samples of step %d lack images: %r", batch.step, error)
    return written


def _lines(batch: Batch, tokenizer: Decoder, scored: Scored, pictured: Mapping[int, int]) -> Iterator[dict[str, Any]]:
    def word(token: int) -> str:
        """As it stands in a text: some decoders drop the space in front of the first token."""
        alone, twice = (tokenizer.decode([token] * n, skip_special_tokens=False) for n in (1, 2))
        return twice[len(alone) :] if twice.startswith(alone) else alone

    words = cache(word)
    for row in kept_rows(batch.columns):
        s = batch.trajectories[row]
        yield {
            "prompt_index": s.prompt_index,
            "sample": s.sample,
            **({"branch": s.branch} if s.branch else {}),
            "data_source": s.data_source,
            "reward": s.reward,
            **scored.get((s.group, s.sample), {}),
            "truncated": s.finish_reason == "length",
            "prompt": _text(s.prompt_tokens, tokenizer),
            "response": _text(s.response_tokens, tokenizer),
            "segments": list(_segments(s.segments, tokenizer, words, pictured)),
        }


def _segments(
    segments: Sequence[Segment], tokenizer: Decoder, words: Callable[[int], str], pictured: Mapping[int, int]
) -> Iterator[dict[str, Any]]:
    """Who wrote each, and of the policy which one, with its tokens until MOST_TOKENS are named. Images by their numbers, or None."""
    left = MOST_TOKENS
    for segment in segments:
        said: dict[str, Any] = {"source": segment.source, "text": _text(segment.tokens, tokenizer)}
        if segment.images:
            said["images"] = [pictured.get(id(image)) for _, image in segment.images]
        if segment.reward:
            said["reward"] = round(segment.reward, 6)
        if segment.log_probs is not None:
            chosen = zip(segment.tokens[:left].tolist(), segment.log_probs[:left].tolist(), strict=True)
            tokens = [[words(token), _short(log_prob)] for token, log_prob in chosen]
            said |= {"policy_step": segment.policy_step, "tokens": tokens}
            left -= len(tokens)
            rest = segment.tokens[len(tokens) :].tolist()
            if rest:
                said["rest"] = tokenizer.decode(rest, skip_special_tokens=False)[:LONGEST_TEXT]
        yield said


def _text(tokens: Ints, tokenizer: Decoder) -> str:
    return tokenizer.decode(tokens.tolist(), skip_special_tokens=False)[:LONGEST_TEXT]


def _short(log_prob: float) -> float | None:
    """None for one that is no number in JSON."""
    return round(log_prob, 4) if math.isfinite(log_prob) else None
