"""What the driver hands to the ranks: immutable, complete, in (group, sample) order. No torch here."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

from rljob_trainer.packed import Kind, pack, unpack

ROWS: dict[str, Kind] = {"prompt_tokens": "i", "response_tokens": "i", "log_probs": "d"}
"""Fields of a sample that hold a number per token."""


class Span(NamedTuple):
    """Response tokens behind each other that one policy drew."""

    policy_step: int
    """Step of that policy."""
    tokens: int
    """How many."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One response and its reward."""

    prompt_index: int
    """Row of the prompt in the data set."""
    group: int
    """Position of the prompt in the step, 0 .. promptsPerStep - 1; its samples share it."""
    sample: int
    """Position in the group, 0 .. samplesPerPrompt - 1."""
    prompt_tokens: tuple[int, ...]
    response_tokens: tuple[int, ...]
    """Includes the end-of-sequence token when the response ended by itself."""
    log_probs: tuple[float, ...]
    """Of each response token under the policy and temperature that drew it, as the rollout server computed it."""
    spans: tuple[Span, ...]
    """Which policy drew which response tokens, in their order. More than one only with `partialRollouts`."""
    finish_reason: Literal["stop", "length"]
    """`length`: cut off at maxTokens."""
    reward: float
    """Weighted sum of the driver's entries of spec.rewards, less the overlong penalty. Entries with `model` are added by the ranks."""
    data_source: str
    """Of the prompt: it says which entries judge the sample (reward/entries.py)."""
    baseline_reward: float | None = None
    """Of the prompt's greedy response (`remax`), like `reward`; the same in all samples of the group."""


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The samples of one step and what generating and scoring them measured."""

    step: int
    """The step they train, from 1."""
    samples: tuple[Sample, ...]
    metrics: dict[str, float]

    def to_json(self) -> str:
        """Rows of tokens and log-probabilities are packed (packed.py)."""
        found = {"step": self.step, "samples": [_packed(s) for s in self.samples], "metrics": self.metrics}
        return json.dumps(found, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> "StepBatch":
        data = json.loads(text)
        return StepBatch(data["step"], tuple(_sample(s) for s in data["samples"]), data["metrics"])


def token_ages(step: int, samples: Iterable[Sample]) -> tuple[float, int]:
    """Mean and largest age of the response tokens: trained steps between the policy that drew a token and the one that `step` trains."""
    spans = [span for s in samples for span in s.spans]
    ages = [step - 1 - span.policy_step for span in spans]
    count = sum(span.tokens for span in spans)
    return sum(age * span.tokens for age, span in zip(ages, spans, strict=True)) / count, max(ages)


def _packed(sample: Sample) -> dict[str, Any]:
    rows = {name: pack(kind, getattr(sample, name)) for name, kind in ROWS.items()}
    return {field.name: getattr(sample, field.name) for field in fields(sample)} | rows


def _sample(data: dict[str, Any]) -> Sample:
    rows = {name: unpack(kind, data[name]) for name, kind in ROWS.items()}
    return Sample(**data | rows | {"spans": tuple(Span(*span) for span in data["spans"])})
