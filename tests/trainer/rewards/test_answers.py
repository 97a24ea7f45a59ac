"""Final answers as public data sets write them (MATH, GSM8K, OlympiadBench, Gaokao, CARP, Minerva, AIME, AMC): each is itself, and none of those next
to it."""

import re
from pathlib import Path

import pytest

from rljob_api.spec.model import RewardSpec
from rljob_trainer.rewards.builtin.mathematics import reward
from rljob_trainer.rewards.rules import RULES, validate_row

ANSWERS = Path(__file__).with_name("answers.txt").read_text().splitlines()
FORMS = ("so \\[\\boxed{%s}\\]\nas asked.", "%s", "**Answer:** %s.", "Thus:\n\n%s")
UNIT = re.compile(r"(?:m|inches)\}?\s*\^?\{?$")
"""What stands in front of the exponent of a unit. Units are not compared."""
SAME = {("0", "-0"), ("0", "00"), ("00", "-00")}


def scored(response: str, answer: str) -> float:
    return reward("", response, answer)["score"]


def neighbours(answer: str) -> list[str]:
    """Each number in it by one larger, and some signs by others."""
    digits = [m for m in re.finditer(r"\d+", answer, re.ASCII) if not UNIT.search(answer[: m.start()])]
    found = [answer[: m.start()] + str(int(m[0]) + 1).zfill(len(m[0])) + answer[m.end() :] for m in digits]
    swaps = [
        ("\\leq", "<"),
        ("\\geq", ">"),
        ("\\cup", "\\cap"),
        ("\\sqrt", "3\\sqrt"),
        ("\\pi", "2\\pi"),
        ("\\sin", "\\cos"),
    ]
    found += [answer.replace(a, b, 1) for a, b in swaps if a in answer and "mathbf{i}" not in answer]
    if re.fullmatch(r"\d+(\.\d+)?", answer, re.ASCII):
        found += [f"-{answer}", f"{answer}1"]
    found += [answer.replace(word, "Other") for word in re.findall(r"^\\text\{(\w+)\}$", answer)]
    return found


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_is_itself_boxed_or_not_and_none_of_its_neighbours(answer):
    assert [scored(form % answer, answer) for form in FORMS] == [1.0] * len(FORMS)
    others = [other for other in neighbours(answer) if (answer, other) not in SAME]
    assert {other: scored(f"\\boxed{{{other}}}", answer) for other in others} == dict.fromkeys(others, 0.0)


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("\\boxed{18.90}", "\\$18.90"),
        ("it costs \\$18.90", "18.9"),
        ("\\boxed{32348}", "\\$32,\\!348"),
        ("\\boxed{20}", "20 $cm^{2}$"),
        ("\\boxed{50}", "50\\%"),
        ("\\boxed{0.5}", "50\\%"),
        ("\\boxed{[-2,1)}", "\\{x|-2\\leq x < 1\\}"),
        ("\\boxed{-2 \\leq x < 1}", "[-2,1)"),
        ("\\boxed{4-i}", "4-\\mathrm{i}"),
        ("\\boxed{\\frac{2}{3}}", "0.\\overline{6}"),
        ("\\boxed{3\\times10^8}", "3.0 \\times 10^8"),
        ("\\boxed{10;5}", "$10$;$5$"),
        ("\\boxed{x \\ne 2}", "x \\neq 2"),
        ("\\boxed{evelyn}", "\\text{Evelyn}"),
        ("Hence $\\frac{\\sqrt{3}}{3}$ is right.", "\\frac{1}{\\sqrt{3}}"),
        ("The answer is (B).", "\\text{B}"),
    ],
)
def test_the_same_answer_may_be_written_otherwise(response, answer):
    assert scored(response, answer) == 1.0


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("\\boxed{19}", "\\$18.90"),
        ("\\boxed{52_9}", "52_8"),
        ("\\boxed{5;10}", "$10$;$5$"),
        ("\\boxed{x = 2}", "x \\neq 2"),
        ("\\boxed{0.00000001}", "0.00000002"),
        ("\\boxed{\\frac{1}{100000000}}", "\\frac{2}{100000000}"),
        ("\\boxed{0.5\\%}", "50\\%"),
        ("\\boxed{3\\text{ hours }21\\text{ minutes}}", "3\\text{ hours }20\\text{ minutes}"),
        ("\\boxed{}", "5"),
        ("The answer is Bob.", "\\text{Evelyn}"),
    ],
)
def test_an_answer_that_is_nearly_the_same_is_wrong(response, answer):
    assert scored(response, answer) == 0.0


NUMBERS = [
    *("18", "1,234", "1234.50", "-5", "\u22125", "- 5", ".5", "0.002", "023", "1e3", "72%", "\\$18.90", "-$5", "$-5"),
    *("1/2", "-\\frac{3}{2}", "- \\frac { 3 } { 2 }", "3 1/2", "3\\frac{1}{2}", "-(1/3)", "10^3", "10^{-2}", "2^{10}"),
    *(
        "3.0 \\times 10^8",
        "20 cm^2",
        "20 \\text{ cm}^{2}",
        "20 m2",
        "11,\\! 111,\\! 100",
        "1{,}234",
        "12:30",
        "9 (apples)",
    ),
]


@pytest.mark.parametrize("answer", [*NUMBERS, "He has 3 and 4 apples, so 7", "1 + 2 = 3", "x = 3"])
def test_an_answer_that_ends_in_one_number_is_taken_by_the_rule_number(answer):
    assert validate_row([RewardSpec(rule="number")], "s", answer, by_driver=True) is None


@pytest.mark.parametrize("answer", NUMBERS)
def test_a_number_is_itself_and_no_other_one(answer):
    for form in ("%s", "\\boxed{%s}", "so it is = %s", "the steps are 1, 2\n#### %s", "\\boxed{%s}, in 3 steps"):
        assert RULES["number"](form % answer, answer) == 1.0, form
    digits = [m for m in re.finditer(r"\d+", answer) if not UNIT.search(answer[: m.start()])]
    others = [answer[: m.start()] + str(int(m[0]) + 1) + answer[m.end() :] for m in digits]
    assert all(RULES["number"](other, answer) == 0.0 for other in others), others


SEVERAL = ("2 or 3", "2, 3 and 4", "3;5", "2024-05-01", "1.234,5", "3,5", "10 000", "3 + 4", "\\boxed{2, 3}")


@pytest.mark.parametrize("answer", ["2\\sqrt{3}", "(3, 4)", "[0, 1]", "\\frac{\\pi}{2}", *SEVERAL])
def test_an_answer_that_is_more_than_a_number_is_refused_for_the_rule_number(answer):
    rewards = [RewardSpec(rule="number")]
    found = validate_row(rewards, "s", answer, by_driver=True)
    assert found and "is more than a number" in found[0] and "rule: math" in found[1]
    assert validate_row(rewards, "s", f"{answer}\n#### 5", by_driver=True) is None


def test_an_answer_of_nothing_behind_its_mark_is_refused_before_anything_runs():
    found = validate_row([RewardSpec(rule="math")], "s", "so it is\n#### ", by_driver=True)
    assert found and "has no answer" in found[0]
