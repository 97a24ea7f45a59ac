"""A row of a well-known set to a problem. Each set has its own columns; a row that lacks them, or an answer, is refused by file and number."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from rljob_trainer.conversion.problems import Problem
from rljob_trainer.data.files import ABSENT, Place, Record, find, short
from rljob_trainer.data.rows import prompt_in
from rljob_trainer.rewards.boxes import boxed
from rljob_trainer.rewards.final_number import number

FINAL = "Reason step by step and write the final answer after ####."
BOXED = "Reason step by step and put the final answer within \\boxed{}."
"""What is asked of the model in addition to the question, where the set itself does not say where the answer has to stand."""
AIME_ANSWER = re.compile(r"0*(\d{1,3})(?:\^\\circ)?")


@dataclass(frozen=True, slots=True)
class WellKnownSet:
    """How one set is read."""

    convert: Callable[[Record, Place], Problem]
    """Raises ConfigurationError for a row that is not one of the set."""
    keys: tuple[str, ...]
    """The columns that `convert` may read, so that nothing else is read of a columnar file."""
    splits: Literal["by name", "train", "heldout"]
    """The files' names say train or test; or all rows are for training, some of which are then held out; or none is."""


def gsm8k(record: Record, place: Place) -> Problem:
    """Question, and the number behind the last `####` of the answer (arXiv 2110.14168), without thousands separators."""
    answer = _text(record, place, "answer")
    final = answer.rpartition("####")[2].strip().replace(",", "")
    if "####" not in answer or number(final) is None:
        raise place.error(f"column 'answer' is {short(answer)}, without a number behind ####", _AS_PUBLISHED)
    return Problem(_asked(_text(record, place, "question"), FINAL), final, "openai/gsm8k")


def math(record: Record, place: Place) -> Problem:
    """Problem, and what is in the last box of the solution (arXiv 2103.03874)."""
    answer = boxed(solution := _text(record, place, "solution"))
    if not answer:
        raise place.error(f"column 'solution' is {short(solution)}, without a complete \\boxed{{...}}", _AS_PUBLISHED)
    return Problem(_asked(_text(record, place, "problem"), BOXED), answer, "lighteval/MATH")


def dapo_math(record: Record, place: Place) -> Problem:
    """verl's columns. The prompt says itself where the answer has to stand, so it stays as it is."""
    answer = _text(record, place, "reward_model.ground_truth")
    return Problem(prompt_in("prompt", record, place), answer, _text(record, place, "data_source"))


def aime(record: Record, place: Place) -> Problem:
    """Problem or question, and an integer from 0 to 999; or verl's columns, as BytedTsinghua-SIA/AIME-2024 has them."""
    if "reward_model" in record:
        prompt, answer, _ = dapo_math(record, place)
    else:
        prompt = _asked(_text(record, place, "problem", "Problem", "question", "Question"), BOXED)
        answer = _text(record, place, "answer", "Answer")
    if not (found := AIME_ANSWER.fullmatch(answer)):
        raise place.error(f"the answer is {short(answer)}, not an integer from 0 to 999", _AS_PUBLISHED)
    return Problem(prompt, found[1], "aime")


VERL = ("prompt", "reward_model", "data_source")
SETS: Mapping[str, WellKnownSet] = {
    "gsm8k": WellKnownSet(gsm8k, ("question", "answer"), "by name"),
    "math": WellKnownSet(math, ("problem", "solution"), "by name"),
    "dapo-math-17k": WellKnownSet(dapo_math, VERL, "train"),
    "aime": WellKnownSet(aime, ("problem", "Problem", "question", "Question", "answer", "Answer", *VERL), "heldout"),
}
_AS_PUBLISHED = "take the file as the set's repository holds it, or leave the row out"


def _asked(question: str, instruction: str) -> tuple[Mapping[str, str], ...]:
    return ({"role": "user", "content": f"{question.strip()}\n\n{instruction}"},)


def _text(record: Record, place: Place, *names: str) -> str:
    """Of the first of these columns that the row has. Raises ConfigurationError when it has none, or no text or number in it."""
    name = next((n for n in names if find(n, record) not in (ABSENT, None)), None)
    if name is None:
        rule = f"has no {' or '.join(map(repr, names))}; its columns are {', '.join(record) or 'none'}"
        raise place.error(rule, _AS_PUBLISHED)
    value = find(name, record)
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
        raise place.error(f"column {name!r} holds {short(value)}, which is no text and no number", _AS_PUBLISHED)
    return str(value).strip()
