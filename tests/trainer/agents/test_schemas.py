"""What a chat template shows of functions."""

from typing import Annotated, Any, Literal

import pytest

from rljob_trainer.agents.worker import schema_of


def search(
    query: Annotated[str, "words to look for"], count: int = 3, kind: Literal["a", "b"] = "a", row: Any = None
) -> list[str]:
    """Look for documents.

    At most `count`.
    """
    return [query] * count


def test_a_signature_becomes_a_json_schema_without_the_row() -> None:
    assert schema_of(search) == {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Look for documents.\n\nAt most `count`.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "words to look for"},
                    "count": {"type": "integer"},
                    "kind": {"enum": ["a", "b"]},
                },
                "required": ["query"],
            },
        },
    }


def test_optional_and_nested_types_are_those_of_json() -> None:
    def function(a: float | None, b: list[int], c: dict[str, int], d: bool) -> None: ...

    assert schema_of(function)["function"]["parameters"]["properties"] == {
        "a": {"type": "number"},
        "b": {"type": "array", "items": {"type": "integer"}},
        "c": {"type": "object"},
        "d": {"type": "boolean"},
    }


def untyped(a): ...
def several(*numbers: int): ...
def bytes_of(a: bytes): ...


@pytest.mark.parametrize("function", [untyped, several, bytes_of])
def test_what_json_cannot_say_is_refused(function: Any) -> None:
    with pytest.raises(TypeError, match="parameter '(a|numbers)'"):
        schema_of(function)
