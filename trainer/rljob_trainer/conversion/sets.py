"""Rows of well-known sets as problems, and the files that hold them; and the one set that is made here, additions of two two-digit numbers.

Each set has its own columns; a row that lacks them, or an answer, is refused by file and number.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from rljob_trainer.data.conversations import Message
from rljob_trainer.data.files import ABSENT, Place, Record, find, short
from rljob_trainer.data.pictures import MARK
from rljob_trainer.data.rows import prompt_in
from rljob_trainer.rewards.rules import boxed, number

FINAL = "Reason step by step and write the final answer after ####."
BOXED = "Reason step by step and put the final answer within \\boxed{}."
"""What is asked of the model in addition to the question, where the set itself does not say where the answer has to stand."""
AIME_ANSWER = re.compile(r"0*(\d{1,3})(?:\^\\circ)?")


class Problem(NamedTuple):
    """One row: what the model reads, the answer that its response is compared with, and which rewards score it."""

    prompt: str | tuple[Message, ...]
    """A text that is encoded as it stands, or messages, which go through the chat template."""
    answer: str
    data_source: str
    images: tuple[bytes, ...] = ()
    """Pictures at the `<image>` of the prompt, in order: the contents of their files."""


def write_problems(problems: Sequence[Problem], path: Path) -> None:
    """Write one Parquet row per problem, in columns of the names that spec.data has by default, and `images` if there are any. Replaces the file at
    once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    names = [name for name in Problem._fields if name != "images" or any(problem.images for problem in problems)]
    columns = {name: [getattr(problem, name) for problem in problems] for name in names}
    pq.write_table(pa.table(columns), partial)
    partial.replace(path)


TERMS = range(10, 100)
HELD_OUT_PAIRS = 256


def split_problems(seed: int) -> tuple[list[Problem], list[Problem]]:
    """All 8100 problems as (train, held out), each in random order. a+b and b+a are on the same side: one gives the other away."""
    order = random.Random(seed)
    pairs = list(combinations_with_replacement(TERMS, 2))
    order.shuffle(pairs)
    held_out, train = pairs[:HELD_OUT_PAIRS], pairs[HELD_OUT_PAIRS:]
    return _both_orders(train, order), _both_orders(held_out, order)


def _both_orders(pairs: list[tuple[int, int]], order: random.Random) -> list[Problem]:
    """The problems a+b and b+a of every pair, shuffled."""
    sums = sorted({(a, b) for pair in pairs for a, b in (pair, pair[::-1])})
    order.shuffle(sums)
    return [Problem(f"{a}+{b}=", str(a + b), "arithmetic") for a, b in sums]


@dataclass(frozen=True, slots=True)
class WellKnownSet:
    """How one set is read."""

    convert: Callable[[Record, Place], Problem]
    """Raises ConfigurationError for a row that is not one of the set."""
    keys: tuple[str, ...]
    """The columns that `convert` may read, so that nothing else is read of a columnar file."""
    splits: Literal["by name", "train", "heldout"]
    """The files' names say train, validation or test; or all rows are for training, some of which are then held out; or none is."""


def gsm8k(record: Record, place: Place) -> Problem:
    """Question, and the number behind the last `####` of the answer (arXiv 2110.14168), without thousands separators."""
    answer = _text(record, place, "answer")
    final = answer.rpartition("####")[2].strip().replace(",", "")
    if "####" not in answer or number(final) is None:
        raise place.error(f"column 'answer' is {short(answer)}, without a number behind ####", _AS_PUBLISHED)
    return Problem(_asked(_text(record, place, "question"), FINAL), final, "openai/gsm8k")


def math(record: Record, place: Place) -> Problem:
    """Problem, and what is in the last box of the solution (arXiv 2103.03874)."""
    solution = _text(record, place, "solution")
    answer = boxed(solution)
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
        prompt, answer, *_ = dapo_math(record, place)
    else:
        prompt = _asked(_text(record, place, "problem", "Problem", "question", "Question"), BOXED)
        answer = _text(record, place, "answer", "Answer")
    boxed_answer = AIME_ANSWER.fullmatch(answer)
    if not boxed_answer:
        raise place.error(f"the answer is {short(answer)}, not an integer from 0 to 999", _AS_PUBLISHED)
    return Problem(prompt, boxed_answer[1], "aime")


def geometry(record: Record, place: Place) -> Problem:
    """Problem, which begins with `<image>`, its answer and its picture, as hiyouga/geometry3k has them (Geometry3K: arXiv 2105.04165)."""
    problem, found = _text(record, place, "problem"), find("images", record)
    given = [] if found in (ABSENT, None) else found if isinstance(found, list) else [found]
    images = tuple(_content(image, place) for image in given)
    if problem.count(MARK) != len(images):
        rule = f"the problem has {problem.count(MARK)} {MARK}, and the row {len(images)} pictures"
        raise place.error(rule, _AS_PUBLISHED)
    return Problem(_asked(problem, BOXED), _text(record, place, "answer"), "hiyouga/geometry3k", images)


VERL = ("prompt", "reward_model", "data_source")
SETS: Mapping[str, WellKnownSet] = {
    "gsm8k": WellKnownSet(gsm8k, ("question", "answer"), "by name"),
    "math": WellKnownSet(math, ("problem", "solution"), "by name"),
    "dapo-math-17k": WellKnownSet(dapo_math, VERL, "train"),
    "geometry3k": WellKnownSet(geometry, ("problem", "answer", "images"), "by name"),
    "aime": WellKnownSet(aime, ("problem", "Problem", "question", "Question", "answer", "Answer", *VERL), "heldout"),
}
_AS_PUBLISHED = "take the file as the set's repository holds it, or leave the row out"


def _asked(question: str, instruction: str) -> tuple[Mapping[str, str], ...]:
    return ({"role": "user", "content": f"{question.strip()}\n\n{instruction}"},)


def _content(image: object, place: Place) -> bytes:
    """Of a picture's file, which the library `datasets` stores as {bytes, path}. Raises ConfigurationError where it stores only the path."""
    content = image.get("bytes") if isinstance(image, Mapping) else image
    if not isinstance(content, bytes) or not content:
        raise place.error(f"column 'images' holds {short(image)}, without a picture's bytes", _AS_PUBLISHED)
    return content


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
