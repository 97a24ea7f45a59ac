"""Data without answers for rewards that judge by them: most often the column of the answers has another name."""

from collections.abc import Iterator, Mapping

from rljob_api.spec import RLJobSpec
from rljob_trainer.data.files import Place
from rljob_trainer.data.prompts import PromptSet
from rljob_trainer.data.rows import answers_elsewhere
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards.rules import entries_of


def missing_answers(
    spec: RLJobSpec, place: Place, prompts: PromptSet, needed: Mapping[int, str]
) -> Iterator[ConfigurationError]:
    """Once for each data source of which no row has an answer. A job starts all the same, with a warning: a function may take answers that it does
    not need.

    Args:
        needed: what the functions of entries call the answer that they have no default for, by the index of the entry
    """
    for source in sorted(prompts.unanswered):
        for i, entry in entries_of(spec.rewards, source):
            if i in needed and entry.python:
                whose = f" with the data source {source!r}" if source else ""
                takes = f"{entry.python.function_name}() of spec.rewards[{i}] takes `{needed[i]}`"
                rule = f"none of the rows of {place.path} that were read{whose} has an answer, and {takes}"
                fix = (
                    f"{answers_elsewhere(place, 'set it')}; a function that does without answers has a default for them"
                )
                yield ConfigurationError("spec.data.answerKey", spec.data.answer_key, rule, fix)
