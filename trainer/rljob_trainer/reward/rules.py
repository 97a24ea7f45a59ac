"""Built-in rules: response and expected answer in, reward out."""

from collections.abc import Callable, Mapping


def exact_match(response: str, answer: str) -> float:
    """1 when the response, stripped, equals the answer, else 0."""
    return float(response.strip() == answer)


RULES: Mapping[str, Callable[[str, str], float]] = {"exactMatch": exact_match}
