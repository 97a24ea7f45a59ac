"""What the model says: a few samples of each step as text, for people."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from rljob_api import names
from rljob_trainer.textfile import replace
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.trajectory import Ints, Segment

PROMPTS = 4
SAMPLES = 4
"""Of each of the first PROMPTS prompts."""
KEPT_STEPS = 50
LONGEST_TEXT = 20_000
"""Characters; of longer texts the end is left out."""
MOST_TOKENS = 1024
"""Of a sample: so many that the policy wrote are also there one by one, with their log-probabilities."""


Scored = Mapping[tuple[int, int], Mapping[str, Any]]
"""By group and sample, what its reward functions said besides the reward, and the row's answer."""


class Decoder(Protocol):
    """The part of a tokenizer that is needed."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...


def write_samples(root: Path, batch: Batch, tokenizer: Decoder, scored: Scored) -> None:
    """`samples/step_N.jsonl` below the checkpoint path, whole or not at all; files of steps more than KEPT_STEPS back are deleted."""
    file = names.samples_file(root, batch.step)
    file.parent.mkdir(parents=True, exist_ok=True)
    replace(file, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in _lines(batch, tokenizer, scored)))
    for old in file.parent.glob("step_*.jsonl"):
        number = old.stem.removeprefix("step_")
        if number.isdigit() and int(number) <= batch.step - KEPT_STEPS:
            old.unlink(missing_ok=True)


def _lines(batch: Batch, tokenizer: Decoder, scored: Scored) -> Iterator[dict[str, Any]]:
    def word(token: int) -> str:
        """As it stands in a text: some decoders drop the space in front of the first token."""
        alone, twice = (tokenizer.decode([token] * n, skip_special_tokens=False) for n in (1, 2))
        return twice[len(alone) :] if twice.startswith(alone) else alone

    words = cache(word)
    for s in batch.samples:
        if s.group >= PROMPTS or s.sample >= SAMPLES:
            continue
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
            "segments": list(_segments(s.segments, tokenizer, words)),
        }


def _segments(segments: Sequence[Segment], tokenizer: Decoder, words: Callable[[int], str]) -> Iterator[dict[str, Any]]:
    """Who wrote each, and of the policy which one, with its tokens until MOST_TOKENS are named."""
    left = MOST_TOKENS
    for segment in segments:
        said: dict[str, Any] = {"source": segment.source, "text": _text(segment.tokens, tokenizer)}
        if segment.images:
            said["images"] = len(segment.images)
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
