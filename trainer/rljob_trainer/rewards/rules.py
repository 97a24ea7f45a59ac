"""Rules: which entries of spec.rewards score a row, and those that are cheap enough for the driver's own process. No torch here: ranks ask too.

The final answer of a text is in a box, as mathematical texts mark it, or is its final number, read exactly.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction

from rljob_api.spec.model import RewardSpec
from rljob_trainer.failure import ConfigurationError, RowProblem

BOX = re.compile(r"\\(?:boxed|fbox)\s*")
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
"""Braces; an escaped one is taken with its backslash and counts for nothing."""
DIGITS = r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])\.\d+)(?:[eE][-+]?\d{1,6}(?!\d))?"
NUMBER = re.compile(
    rf"(?P<sign>(?<![\w.)}}])-)?(?P<first>{DIGITS})"
    rf"(?: +(?P<top>\d+)/(?P<below>\d+)(?![\d/])|[/:](?P<over>{DIGITS})(?![\d/:])|\^\{{?(?P<power>-?\d{{1,4}})\}}?)?"
)
"""With or without thousands separators; a ratio, a mixed number or a power. A minus behind a digit, letter or bracket is a subtraction."""
FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{\s*(-?[\d,.]+)\s*\}|(\d))\s*(?:\{\s*([\d,.]+)\s*\}|(\d))")
TIMES_TEN = re.compile(r"(?<=\d)\s*(?:\\times|\\cdot|×|\*|x)\s*10\s*\^\s*\{?\s*(-?\d{1,6})\s*\}?")
GROUPED = re.compile(r"(?<=\d)(?:\{,\}|,\\!\s*|\\[,! ]|[_\u00a0\u202f])(?=\d{3}(?!\d))")
UNITS = re.compile(r"(?<=[A-Za-z)}])\s*\^\s*\{?-?\d+\}?|(?<=\d)\s*(?:[ckdm]?m|ft|in|yd)[23]\b|(?<=\d)_\{?\d+\}?")
"""What stands behind a number and holds another: cm^2, m3, the base of 52_8."""
SIGNED = re.compile(
    r"(?<![\w.)}])-(?:(?=\\?\$\d)\\?\$|\((?=[\d\\])|\s*(?=\\[dt]?frac))|(?<=[=({[,$:]) *- +(?=[\d\\.])|^- +(?=\S+$)"
)
"""A minus with a currency, a bracket or white space in front of its number: -$5, -(1/3), x = - 5. One before an item of a list is none."""
EXACT = Context(prec=1000, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""Of any number in a response of ordinary length."""
LARGEST_POWER = 10_000
"""Digits. A larger one is read as its base."""
ExactNumber = Decimal | Fraction
COMPOSITE = re.compile(
    r"\\(?:sqrt|pi|log|ln|sin|cos|tan|infty|cup|begin|pm)(?![a-z])|[\[(]\s*-?[\d.]+,\s+-?[\d.]+\s*[\])]"
)
"""More than a number: of it, the rule `number` would compare the last one."""
BETWEEN = frozenset((",", ";", "-", "+", ".", ":", "or", "and", "to"))
"""What stands between the numbers of an answer that is nothing but several of them: a list, a date, a sum, 1.234,5 as Europeans write it."""


def boxed(text: str) -> str | None:
    """The content of the last `\\boxed{...}` (or `\\fbox{...}`, or `\\boxed 7`); None without one, or when it is empty or does not end."""
    starts = [box.end() for box in BOX.finditer(text)]
    if not starts:
        return None
    rest = text[starts[-1] :]
    if not rest.startswith("{"):
        return rest.split("$")[0].strip() or None
    depth = 0
    for brace in BRACE.finditer(rest):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return rest[1 : brace.start()].strip() or None
    return None


def number(text: str) -> ExactNumber | None:
    """The last number after the last `####`, if there is one (the convention of GSM8K, arXiv 2110.14168), else in the last box, else of the text."""
    _, mark, final = text.rpartition("####")
    match = None
    for match in NUMBER.finditer(_written_plainly(final if mark else boxed(text) or text)):  # noqa: B007
        pass
    return _value(match) if match else None


def is_several(answer: str) -> bool:
    """Whether an answer is nothing but several numbers, of which `number` would take the last one."""
    text = _written_plainly(boxed(answer) or answer)
    return len(NUMBER.findall(text)) > 1 and all(word in BETWEEN for word in NUMBER.sub(" ", text).split())


def number_text(text: str) -> str | None:
    """The final number in one form, so that 72 and 72.0, or 1/2 and 0.5, are one text; None when there is none."""
    final = number(text)
    if isinstance(final, Fraction):
        exact = EXACT.divide(Decimal(final.numerator), Decimal(final.denominator))
        if exact != final:
            return str(final)
        final = exact
    return None if final is None else str(final.normalize(EXACT))


def _written_plainly(text: str) -> str:
    text = TIMES_TEN.sub(r"e\1", GROUPED.sub("", text.strip().replace("\u2212", "-")))
    text = SIGNED.sub(" -", UNITS.sub("", text))
    return FRACTION.sub(_ratio, text)


def _ratio(match: re.Match[str]) -> str:
    """Behind a digit it is a part of a mixed number."""
    mixed = " " if match.string[: match.start()][-1:].isdigit() else ""
    return f"{mixed}{match[1] or match[2]}/{match[3] or match[4]}"


def _value(match: re.Match[str]) -> ExactNumber:
    first, sign = _decimal(match["first"]), -1 if match["sign"] else 1
    if match["power"] and first.copy_abs().log10() * abs(int(match["power"])) < LARGEST_POWER:
        return sign * Fraction(first) ** int(match["power"])
    over = _decimal(match["over"]) if match["over"] else None
    if over:
        return sign * Fraction(first) / Fraction(over)
    if match["below"] and int(match["below"]):
        ratio = Fraction(int(match["top"]), int(match["below"]))
        return sign * (Fraction(first) + ratio) if ratio < 1 else ratio
    return -first if sign < 0 else first


def _decimal(text: str) -> Decimal:
    return Decimal(text.replace(",", ""))


def exact_match(response: str, answer: str) -> float:
    """1 when response and answer, both stripped, are equal, else 0."""
    return float(response.strip() == answer.strip())


def number_match(response: str, answer: str) -> float:
    """1 when the final numbers of response and answer are equal, else 0; also 0 for a response without any."""
    said = number(response)
    return float(said is not None and said == number(answer))


def stripped(response: str) -> str | None:
    """What `exactMatch` compares; None when nothing is left."""
    return response.strip() or None


RULES: Mapping[str, Callable[[str, str], float]] = {"exactMatch": exact_match, "number": number_match}
PREDICTIONS: Mapping[str, Callable[[str], str | None]] = {"exactMatch": stripped, "number": number_text}
"""By the same names: the answer that a response gives."""


EVERY_OTHER = "*"


def entries_of(rewards: Sequence[RewardSpec], data_source: str) -> list[tuple[int, RewardSpec]]:
    """The entries that name `data_source`, else those of `*`, each with its index in spec.rewards.

    Those with `model` are scored by the ranks, all others by the driver. Empty: no entry scores it.
    """
    named = [(i, r) for i, r in enumerate(rewards) if r.data_source == data_source]
    return named or [(i, r) for i, r in enumerate(rewards) if r.data_source == EVERY_OTHER]


def require_texts(rewards: Sequence[RewardSpec], data_source: str) -> None:
    """Of a sample with images, which an agent may show without spec.data.imageKey. Raises ConfigurationError when an entry that scores it is a model
    that gets token ids alone: images' tokens stand for nothing without them."""
    for i, reward in entries_of(rewards, data_source):
        if reward.scores_tokens:
            rule = "gets token ids, and a sample has images"
            raise ConfigurationError(
                f"spec.rewards[{i}].{reward.scores_tokens}", "set", rule, "use another kind of reward"
            )


def validate_row(rewards: Sequence[RewardSpec], data_source: str, answer: str, by_driver: bool) -> RowProblem | None:
    """Why no entry scores a row of the data. With `by_driver` the entries with `model` do not count."""
    if not rewards:  # an agent may give all there are
        return None
    entries = [(i, r) for i, r in entries_of(rewards, data_source) if not (by_driver and r.model)]
    if not entries:
        missing = "no entry of spec.rewards that scores during generation" if by_driver else "no entry of spec.rewards"
        return RowProblem(
            f"{missing} is for its data source {data_source!r}",
            f"add an entry with dataSource {data_source!r} or '*'",
        )
    fix = "name the column of the answers in spec.data.answerKey, or correct the row"
    for i, entry in entries:
        if entry.rule and not (answer if entry.rule == "exactMatch" else answer.rsplit("####", 1)[-1]).strip():
            return RowProblem(
                f"has no answer, which the rule {entry.rule} of spec.rewards[{i}] compares with", fix, True
            )
        if entry.rule == "number" and number(answer) is None:
            rule = f"the answer {answer[:80]!r} holds no number, and spec.rewards[{i}] compares numbers"
            return RowProblem(rule, fix, True)
        composite = COMPOSITE.search(boxed(answer) or answer) or is_several(answer)
        if entry.rule == "number" and "####" not in answer and composite:
            rule = f"the answer {answer[:80]!r} is more than a number, and spec.rewards[{i}] compares numbers"
            return RowProblem(rule, f"set spec.rewards[{i}].rule: math or exactMatch, or correct the row", True)
    return None
