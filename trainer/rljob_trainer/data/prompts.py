"""Rows to prompts: token ids within the length limit, each with the index that names it for the whole run."""

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_api.spec.model import DataSpec
from rljob_trainer.data.rows import Row, read_rows
from rljob_trainer.data.tokenizer import Tokenizer
from rljob_trainer.failure import ConfigurationError


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, ready to be generated from and judged."""

    index: int
    """Row in the data set, counted over all its files and before the length filter."""
    tokens: tuple[int, ...]
    text: str
    answer: str
    data_source: str


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The prompts of one split that are short enough."""

    prompts: tuple[Prompt, ...]
    too_long: int
    """Rows left out because of spec.data.maxPromptTokens."""


def load_prompts(spec: DataSpec, split: str, tokenizer: Tokenizer) -> PromptSet:
    """The prompts of spec.data.`split`. Raises ConfigurationError when files were named and none of their prompts is left."""
    rows = read_rows(spec, split)
    prompts = [
        p for i, row in enumerate(rows) if len((p := _prompt(i, row, tokenizer)).tokens) <= spec.max_prompt_tokens
    ]
    if rows and not prompts:
        rule = f"all {len(rows)} prompts of spec.data.{split} are longer"
        raise ConfigurationError(
            "spec.data.maxPromptTokens", str(spec.max_prompt_tokens), rule, "raise the limit or shorten the prompts"
        )
    return PromptSet(tuple(prompts), len(rows) - len(prompts))


def _prompt(index: int, row: Row, tokenizer: Tokenizer) -> Prompt:
    return Prompt(index, tuple(tokenizer.encode(row.prompt)), row.prompt, row.answer, row.data_source)


def data_sources(sets: Sequence[PromptSet]) -> set[str]:
    """Every data source that some prompt names."""
    return {p.data_source for s in sets for p in s.prompts}
