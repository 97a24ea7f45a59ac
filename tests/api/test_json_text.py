"""Objects of the API server that are nested deeper than Python can read."""

import json

import pytest

from rljob_api.text import DEEPEST, load_json


@pytest.mark.parametrize("depth", [1, 100, 5_000, 9_900])
@pytest.mark.parametrize("brackets", ['{"a": %s}', "[%s]"])
def test_what_is_nested_too_deep_becomes_null_and_nothing_else(depth: int, brackets: str) -> None:
    begin, end = brackets.split("%s")
    text = '{"before": ["]}", "\\"{["], "deep": ' + begin * depth + "1" + end * depth + ', "after": {"b": [{}]}}'
    for given in (text, text.encode()):
        found = load_json(given)
        assert (found["before"], found["after"]) == (["]}", '"{['], {"b": [{}]})
        value, seen = found["deep"], 0
        while isinstance(value, dict | list):
            value, seen = (value["a"] if isinstance(value, dict) else value[0]), seen + 1
        assert (value, seen) == ((1, depth) if depth <= 100 else (None, DEEPEST - 1))


def test_a_list_of_objects_keeps_all_but_the_deep_value() -> None:
    deep = '{"spec": ' + '{"a":' * 4_000 + "1" + "}" * 4_000 + "}"
    found = load_json(f'{{"items": [{{"n": 1}}, {deep}, {{"n": 2}}]}}')["items"]
    assert (found[0], found[2]) == ({"n": 1}, {"n": 2})


@pytest.mark.parametrize("text", ["", "{", '{"a": }', "[" * 5_000, '{"a": "' + "[" * 5_000])
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        load_json(text)
    with pytest.raises(json.JSONDecodeError):
        load_json(text.encode())
