"""Rows as each set publishes them, written for these tests."""

import pytest

from rljob_trainer.conversion.sets import BOXED, FINAL, Problem, aime, boxed, dapo_math, gsm8k, math
from rljob_trainer.data.files import Place
from rljob_trainer.failure import ConfigurationError

PLACE = Place("--from", "copy/train.jsonl", 7)
VERL = {
    "data_source": "math_dapo",
    "prompt": [{"role": "user", "content": "Write Answer: $Answer.\n\nWhat is 6 times 7?"}],
    "ability": "MATH",
    "reward_model": {"ground_truth": "42", "style": "rule"},
    "extra_info": {"index": "a"},
}


def user(question: str, instruction: str) -> tuple[dict[str, str]]:
    return ({"role": "user", "content": f"{question}\n\n{instruction}"},)


def test_the_answer_of_gsm8k_is_the_number_behind_the_last_mark_without_separators() -> None:
    row = {"question": "How much? ", "answer": "It costs 6*7=<<6*7=42>>42.\nFor all: 1,042.\n#### 1,042"}
    assert gsm8k(row, PLACE) == Problem(user("How much?", FINAL), "1042", "openai/gsm8k")


@pytest.mark.parametrize("answer", ["It is 42.", "#### many", "7 #### "])
def test_an_answer_of_gsm8k_without_a_number_behind_the_mark_is_refused_by_file_and_row(answer: str) -> None:
    with pytest.raises(ConfigurationError, match="^--from = copy/train.jsonl row 7: column 'answer' is .* behind ####"):
        gsm8k({"question": "How much?", "answer": answer}, PLACE)


def test_the_answer_of_math_is_what_the_last_box_holds() -> None:
    solution = "First $\\boxed{3}$, then $x = \\boxed{\\frac{1}{\\sqrt{2}}}$."
    row = {"problem": "Find $x$.", "level": "Level 5", "type": "Algebra", "solution": solution}
    assert math(row, PLACE) == Problem(user("Find $x$.", BOXED), "\\frac{1}{\\sqrt{2}}", "lighteval/MATH")


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{\left\{ 1, 2 \right.}", r"\left\{ 1, 2 \right."),
        (r"\boxed{\text{a}\\}", r"\text{a}\\"),
        (r"so \fbox{7}", "7"),
        (r"so $\boxed 7$ indeed", "7"),
        (r"\boxed{\boxed{7}}", "7"),
        (r"\boxed{1", None),
        (r"\boxed{ }", None),
        ("seven", None),
    ],
)
def test_a_box_ends_at_its_own_brace(text: str, content: str | None) -> None:
    assert boxed(text) == content


def test_a_solution_of_math_without_a_box_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"row 7: column 'solution' is 'It is 7.', without a complete"):
        math({"problem": "Find $x$.", "solution": "It is 7."}, PLACE)


def test_a_row_of_dapo_keeps_its_messages_and_its_data_source() -> None:
    assert dapo_math(VERL, PLACE) == Problem(tuple(VERL["prompt"]), "42", "math_dapo")


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"reward_model": {"ground_truth": None, "style": "rule"}}, "has no 'reward_model.ground_truth'"),
        ({"reward_model": {"ground_truth": ["42"]}}, "'reward_model.ground_truth' holds .* no text and no number"),
        ({"prompt": []}, "column 'prompt' holds"),
        ({"prompt": [{"role": "user"}]}, "not a message"),
        ({"data_source": None}, "has no 'data_source'"),
    ],
)
def test_a_row_of_dapo_without_prompt_answer_or_source_is_refused(changed: dict, rule: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^--from = copy/train.jsonl row 7: .*{rule}"):
        dapo_math(VERL | changed, PLACE)


@pytest.mark.parametrize(
    "row",
    [
        {"id": 60, "problem": "What is 6 times 7?", "solution": "...", "answer": "042", "year": "2024"},
        {"ID": "2024-I-1", "Problem": "What is 6 times 7?", "Solution": "...", "Answer": 42},
        {"question": "What is 6 times 7?", "answer": "42^\\circ"},
    ],
    ids=["lower case", "upper case", "question"],
)
def test_aime_is_read_in_the_columns_of_each_of_its_repositories(row: dict) -> None:
    assert aime(row, PLACE) == Problem(user("What is 6 times 7?", BOXED), "42", "aime")


def test_aime_in_the_columns_of_verl_keeps_its_prompt() -> None:
    assert aime(VERL, PLACE) == Problem(tuple(VERL["prompt"]), "42", "aime")


@pytest.mark.parametrize("answer", ["1000", "-3", "1/2", ""])
def test_an_answer_that_aime_cannot_have_is_refused(answer: str) -> None:
    with pytest.raises(ConfigurationError, match="row 7"):
        aime({"problem": "What?", "answer": answer}, PLACE)


def test_a_row_of_another_set_is_refused_with_the_columns_that_it_has() -> None:
    with pytest.raises(ConfigurationError, match="row 7: has no 'answer'; its columns are problem, solution"):
        gsm8k({"problem": "Find $x$.", "solution": "\\boxed{7}"}, PLACE)
