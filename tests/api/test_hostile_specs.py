"""Whatever users write, validation takes little time, and says little."""

import difflib
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.hostile_specs import LARGEST, NEAR, PLACES, deep, hostile_specs, placed, texts
from api.specs import raw_spec
from rljob_api.quantity import parse
from rljob_api.rules import validate
from rljob_api.rules.engine import LONGEST
from rljob_api.rules.key_tables import TRANSFORMER_CONFIG
from rljob_api.rules.validator import DEEPEST, MOST, MOST_CHARACTERS, MOST_VALUES, extent
from rljob_api.text import limited, nearest, one_line

SMALL, LARGE = 60, 400
"""How many validations of an ordinary spec one of a small, and of a large spec may cost: about 40 and 250 ms."""


def cost(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


@pytest.fixture(scope="module")
def ordinary() -> float:
    """Processor time of one validation of an ordinary spec."""
    validate(raw_spec(), "demo")
    return min(cost(lambda: [validate(raw_spec(), "demo") for _ in range(20)]) for _ in range(5)) / 20


def costs_too_much(spec: dict[str, Any], ordinary: float) -> bool:
    """In each of three tries: what else the machine or the garbage collector does must not decide."""
    most = ordinary * (SMALL if extent(spec).small else LARGE)
    return all(cost(lambda: validate(spec, "demo")) > most for _ in range(3))


@pytest.mark.parametrize(("size", "every"), [(3_000, 3), (60_000, 11), (LARGEST, 31)])
def test_no_value_in_any_place_costs_much(size: int, every: int, ordinary: float) -> None:
    chosen = islice(hostile_specs(size), 0, None, every)
    assert [name for name, spec in chosen if costs_too_much(spec, ordinary)] == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(list(PLACES)), JSON, st.integers(1, 3000))
def test_no_value_ends_a_validation(place: str, value: Any, times: int) -> None:
    for spec in (placed(PLACES[place], value), placed(PLACES[place], [value] * times)):
        violations = validate(spec, "demo").violations
        assert len(violations) <= MOST + 1
        assert all(len(part) <= LONGEST for v in violations for part in (v.field, v.value, v.rule, v.fix))


def test_100_000_mistakes_are_one_message() -> None:
    spec = raw_spec(env=[{"name": 1}] * 100_000)
    (violation,) = validate(spec, "demo").violations
    assert violation.rule == f"has more than {MOST_VALUES} values, counting the entries of all lists and objects"


def test_texts_that_no_config_map_holds_are_refused() -> None:
    """The control message holds the spec."""
    env = [{"name": f"A{i}", "value": "x" * 100_000} for i in range(6)]
    assert validate(raw_spec(env=env[:5]), "demo").valid
    (violation,) = validate(raw_spec(env=env), "demo").violations
    assert violation.rule.endswith(f"characters in all its keys and texts; at most {MOST_CHARACTERS} are allowed")


def test_of_many_mistakes_the_first_are_reported_and_that_there_are_more() -> None:
    violations = validate(raw_spec(**{f"unknown{i}": 1 for i in range(2_000)}), "demo").violations
    assert [v.field for v in violations] == [*(f"spec.unknown{i}" for i in range(MOST)), "spec"]
    assert violations[-1].rule == f"breaks more rules than the first {MOST}"


@pytest.mark.parametrize("depth", [DEEPEST, 900, 5_000])
def test_a_spec_that_is_nested_too_deep_for_python_is_refused(depth: int) -> None:
    for inner in (lambda value: {"a": value}, lambda value: [value]):
        spec = raw_spec(trainer={"device": "cpu", "transformerConfig": {"a": deep(depth, inner)}})
        assert [v.rule for v in validate(spec, "demo").violations] == [
            f"is nested deeper than {DEEPEST} objects and lists"
        ]


def test_at_most_ten_wrong_names_of_a_spec_get_a_suggestion() -> None:
    keys = {f"{NEAR}{i}": 1 for i in range(30)}
    spec = raw_spec(trainer={"device": "cpu", "transformerConfig": keys}, rollout={"vllmArgs": {"max-num-seq": 1}})
    fixes = [v.fix for v in validate(spec, "demo").violations]
    assert sum(fix.startswith("did you mean") for fix in fixes) == 10
    assert len(fixes) == 31


def test_a_long_map_of_verbatim_keys_is_refused_as_a_whole() -> None:
    keys = {f"key{i}": 1 for i in range(513)}
    (violation,) = validate(raw_spec(trainer={"device": "cpu", "transformerConfig": keys}), "demo").violations
    assert str(violation).startswith("spec.trainer.transformerConfig = {")
    assert "has 513 entries; at most 512 are allowed" in violation.rule


@pytest.mark.parametrize("name", ["moe_ruoter_topk", "tensor_paralel", "x", "", "recompute", "a" * 101])
@pytest.mark.parametrize("cutoff", [0.6, 0.75, 0.85])
def test_the_nearest_name_is_difflibs(name: str, cutoff: float) -> None:
    theirs = difflib.get_close_matches(name, TRANSFORMER_CONFIG, n=1, cutoff=cutoff)
    assert nearest(name, TRANSFORMER_CONFIG, cutoff) == (theirs[0] if theirs else None)


def test_a_budget_of_comparisons_ends_with_its_block() -> None:
    with limited(1):
        assert nearest("tensr", ["tensor"]) == "tensor"
        assert nearest("tensr", ["tensor"]) is None
    assert nearest("tensr", ["tensor"]) == "tensor"


def test_texts_are_read_in_time_that_grows_with_their_length() -> None:
    """Ten times as long takes ten times the time, and not a hundred times."""
    for read in (one_line, _parsed):
        for short, long in zip(texts(20_000), texts(200_000), strict=True):
            few, many = (min(cost(partial(read, text)) for _ in range(3)) for text in (short, long))
            assert many <= 30 * max(few, 0.001), (read, short[:10])


def _parsed(text: str) -> None:
    try:
        parse(text)
    except ValueError:
        return
