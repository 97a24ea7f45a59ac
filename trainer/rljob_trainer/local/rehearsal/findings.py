"""What a rehearsal shows: texts as the model reads them, in colour what it learns from; and in the end mistakes, each once, and what looks
wrong."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from rljob_api.spec import RLJobSpec
from rljob_trainer.agents import recording
from rljob_trainer.agents.recording import AgentFailed
from rljob_trainer.data.files import Record
from rljob_trainer.data.tokenizer import Tokenizer, unwritten
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.local.rehearsal.notes import (
    TRAINED,
    held_out_again,
    is_plain,
    notes_of_row,
    notes_of_samples,
    pairs,
)
from rljob_trainer.local.rehearsal.policy import OTHER, Script
from rljob_trainer.local.rehearsal.rows import TriedFile, TriedRow, out_of_reach
from rljob_trainer.rewards import request
from rljob_trainer.rewards.request import SampleFailed
from rljob_trainer.wire.trajectory import LEARNT, Segment, Trajectory

LEARNT_COLOUR, GIVEN_COLOUR, RESET = "\x1b[32m", "\x1b[2m", "\x1b[0m"
LEARNT_MARKS = ("«", "»")
"""Around what is learnt, where there is no colour."""
LONGEST = 2000
"""Characters of one text."""
Cause = tuple[str, str, str]
"""Field, kind and line of a failure: what it says besides may differ from row to row."""
LINE = re.compile(r"\(line \d+")
ELSEWHERE = ("service", "none")
"""Kinds of failures that need be no mistake: a service that this machine does not reach, a sample that the agent leaves out."""


class Screen:
    """Lines for a terminal (`colour`) or a file."""

    def __init__(self, colour: bool):
        self._colour = colour

    @property
    def legend(self) -> str:
        """What the marks of `segments` mean."""
        return self._learnt("learnt") + " and " + self._given("given")

    def segments(self, segments: Iterable[Segment], tokenizer: Tokenizer) -> str:
        """A sequence, whose learnt parts stand out."""
        return "".join(self._segment(segment, tokenizer) for segment in segments)

    def _segment(self, segment: Segment, tokenizer: Tokenizer) -> str:
        text = shortened(tokenizer.decode(segment.tokens.tolist(), skip_special_tokens=False))
        return self._learnt(text) if segment.source in LEARNT else self._given(text)

    def _learnt(self, text: str) -> str:
        return f"{LEARNT_COLOUR}{text}{RESET}" if self._colour else text.join(LEARNT_MARKS)

    def _given(self, text: str) -> str:
        return f"{GIVEN_COLOUR}{text}{RESET}" if self._colour else text


def shortened(text: str) -> str:
    """Without what a terminal would obey, and at most LONGEST characters."""
    shown = "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
    if len(shown) <= LONGEST:
        return shown
    half = LONGEST // 2
    return f"{shown[:half]} [... {len(shown) - LONGEST} characters ...] {shown[-half:]}"


def indented(text: str, by: str = "    ") -> str:
    return "\n".join(by + line for line in text.splitlines() or [""])


def extent(numbers: Sequence[int]) -> str:
    """For example `5 to 9`."""
    return f"{min(numbers)}" if min(numbers) == max(numbers) else f"{min(numbers)} to {max(numbers)}"


class Findings:
    """Of all files."""

    def __init__(self, spec: RLJobSpec, tokenizer: Tokenizer) -> None:
        self._spec, self._tokenizer = spec, tokenizer
        self._errors: list[str] = []
        self._failures: Counter[Cause] = Counter()
        self._first: dict[Cause, str] = {}
        self._trained: set[tuple[str, str]] = set()
        self.notes: list[str] = []

    @property
    def mistakes(self) -> list[str]:
        """Each with how often it happened, and where first."""
        return self._errors + [self._first[cause] + _more(count) for cause, count in self._failures.items()]

    def refuse(self, error: ConfigurationError) -> None:
        """It cannot be loaded."""
        self._errors.append(str(error))

    def refuse_rows(self, first: Sequence[ConfigurationError], count: int) -> None:
        """Rows of a file that cannot be used: the first of them, and how many there are."""
        texts = [str(error) for error in first]
        if count > len(texts):
            texts[-1] += f"; {count - len(texts)} more rows of the file cannot be used"
        self._errors += texts

    def add(self, file: TriedFile) -> None:
        """What the responses to a file's prompts show."""
        for row in file.rows:
            for script, outcome in row.samples:
                if isinstance(outcome.result, SampleFailed):
                    where = f"{file.place.path} row {row.prompt.index + 1}, with {script.name} as the response"
                    self._failed(outcome.result, where)
        self.require_read(
            file.place.path, [(row.prompt.index + 1, row.prompt.text, row.prompt.tokens) for row in file.rows]
        )
        for note in _unscored(file, self._spec) or (*notes_of_samples(file, self._spec), *_undecided(file)):
            self._note(note)
        record = file.rows[0].prompt.row()
        self.note_row(record, file.place.path, is_plain(record, self._spec))
        self._compare(file)

    def note_row(self, record: Record, path: str, plain: bool) -> None:
        """Notes what may be meant otherwise, by the first row of a file. `plain`: its texts go through no chat template."""
        for note in notes_of_row(record, path, plain, self._spec, self._tokenizer):
            self._note(note)

    def note(self, texts: Iterable[str]) -> None:
        """What looks wrong, each once."""
        for text in texts:
            self._note(text)

    def _compare(self, file: TriedFile) -> None:
        """Held-out rows with those that are trained on, which come first."""
        if file.place.field.startswith(TRAINED):
            self._trained.update(pairs(file.prompts))
            return
        for note in held_out_again(f"{file.place.field} = {file.place.path}", file.prompts, self._trained):
            self._note(note)

    def require_read(self, path: str, texts: Sequence[tuple[int, str, Sequence[int]]]) -> None:
        """Notes characters that the tokenizer leaves out. `texts`: row, text and its tokens."""
        left_out = [(row, unwritten(self._tokenizer, text, tokens)) for row, text, tokens in texts]
        rows = [(row, characters) for row, characters in left_out if characters]
        if rows:
            row, characters = rows[0]
            rule = f"the tokenizer has no token for {shortened(characters)!r}, so the model reads the text without{_more(len(rows))}"
            fix = "write the rows with what it has tokens for, or take a model with another tokenizer"
            self._note(f"{path} row {row}: {rule}; {fix}")

    def _failed(self, failure: SampleFailed, where: str) -> None:
        fixes = recording.FIXES if isinstance(failure, AgentFailed) else request.FIXES
        text = f"{failure.field} = {failure.target}: {failure.reason}; {fixes[failure.kind]}"  # type: ignore[index]
        if failure.kind in ELSEWHERE:
            self._note(text)
            return
        line = LINE.search(failure.reason)
        cause = failure.field, failure.kind, line[0] if line else ""
        self._failures[cause] += 1
        self._first.setdefault(cause, f"{text} ({where})")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _more(count: int) -> str:
    return f", and {count - 1} more like it" if count > 1 else ""


def _unscored(file: TriedFile, spec: RLJobSpec) -> list[str]:
    """What only the job's own servers and ranks score."""
    fields = {field for row in file.rows for field in out_of_reach(spec, row.prompt)}
    return [f"{field} is scored by a model of the job and was not tried" for field in sorted(fields)]


def _undecided(file: TriedFile) -> Iterable[str]:
    """Rewards that tell no right response from a wrong one."""
    verdicts = [verdict for verdict in map(distinguishes, file.rows) if verdict is not None]
    if not verdicts or any(verdicts):
        return
    where = f"{file.place.field} = {file.place.path}"
    if all(map(prefers_wrong, file.rows)):
        yield f"{where}: right answers get less than wrong ones: correct the reward, or the sign of its weight"
    else:
        yield (
            f"{where}: no row's answer is worth more than a wrong text: if the reward wants answers in a form of "
            "its own (a box, tags), write one with --response, for example --response '<answer>{answer}</answer>'; else correct the reward"
        )


def distinguishes(row: TriedRow) -> bool | None:
    """Whether the row's own answer is worth more than every other text. None: nobody can say."""
    rewards = _rewards(row)
    right = [reward for script, reward in rewards if script.is_right]
    wrong = [reward for script, reward in rewards if not script.is_right]
    return min(right) > max(wrong) if right and wrong else None


def prefers_wrong(row: TriedRow) -> bool:
    """Whether the row's own answer is worth less than one of the same form that is wrong."""
    rewards = {script.name: reward for script, reward in _rewards(row) if script.is_right or script.name == OTHER}
    return len(rewards) == 2 and rewards.pop(OTHER) > min(rewards.values())


def _rewards(row: TriedRow) -> list[tuple[Script, float]]:
    return [(script, o.result.reward) for script, o in row.samples if isinstance(o.result, Trajectory)]
