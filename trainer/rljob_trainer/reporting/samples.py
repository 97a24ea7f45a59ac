"""What the model says: a few samples of each step as text, for people."""

import json
from collections.abc import Iterator, Mapping, Sequence
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


Scored = Mapping[tuple[int, int], Mapping[str, Any]]
"""By group and sample, what its reward functions said besides the reward."""


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
    def text(tokens: Ints) -> str:
        return tokenizer.decode(tokens.tolist(), skip_special_tokens=False)[:LONGEST_TEXT]

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
            "prompt": text(s.prompt_tokens),
            "response": text(s.response_tokens),
            "segments": [_said(segment, text(segment.tokens)) for segment in s.segments],
        }


def _said(segment: Segment, text: str) -> dict[str, Any]:
    """Who wrote it, and of the policy which one."""
    step = {"policy_step": segment.policy_step} if segment.source == "policy" else {}
    return {"source": segment.source, **step, "text": text}
