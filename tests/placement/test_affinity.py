"""A compiled node affinity holds for the nodes for which its expressions hold one by one."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_placement.affinity import INTEGER, Affinity, NodeSelectorTerm
from rljob_placement.cluster import Node

VALUES = ["", "a", "b", "-3", "7", "+7", "08", str(2**63 - 1), str(2**63), str(-(2**63)), "9" * 70]
KEYS = ["pool", "gen", "none"]
OPERATORS = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Like"]


@st.composite
def expressions(draw: st.DrawFn, keys: list[str], values: list[str]) -> dict[str, Any]:
    operator = draw(st.sampled_from(OPERATORS))
    most = {"Exists": 0, "DoesNotExist": 0, "Gt": 1, "Lt": 1}.get(operator, 3)
    chosen = st.lists(st.sampled_from(values), min_size=min(1, most), max_size=most)
    return {"key": draw(st.sampled_from(keys)), "operator": operator, "values": draw(chosen)}


terms = st.lists(
    st.fixed_dictionaries(
        {
            "matchExpressions": st.none() | st.lists(expressions(KEYS, VALUES), max_size=4),
            "matchFields": st.none() | st.lists(expressions(["metadata.name"], ["n1", "n2"]), max_size=2),
        }
    ),
    max_size=3,
)
labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))


def has_one(wanted: Sequence[NodeSelectorTerm], node: Node) -> bool:
    return any(holds_alone(term, node) for term in wanted)


def holds_alone(term: NodeSelectorTerm, node: Node) -> bool:
    of_labels, of_fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not (of_labels or of_fields):
        return False
    about = {"metadata.name": node.name}
    return all(holds(e, node.labels) for e in of_labels) and all(holds(e, about) for e in of_fields)


def integer(text: str) -> int | None:
    number = int(text) if INTEGER.fullmatch(text) else None
    return number if number is not None and -(2**63) <= number < 2**63 else None


def holds(e: Mapping[str, Any], values: Mapping[str, str]) -> bool:
    value, listed = values.get(e["key"]), e.get("values") or ()
    match e["operator"]:
        case "In":
            return value in listed
        case "NotIn":
            return value not in listed
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            there, bound = integer(value or ""), integer(listed[0])
            if there is None or bound is None:
                return False
            return there > bound if operator == "Gt" else there < bound
    return False


@settings(max_examples=500)
@given(terms, st.lists(st.builds(Node, st.sampled_from(["n1", "n2"]), labels), min_size=1, max_size=4))
def test_it_matches_as_its_expressions_do_also_a_node_whose_labels_have_changed(
    wanted: list[dict[str, Any]], nodes: list[Node]
) -> None:
    affinity = Affinity(wanted)
    for node in [*nodes, *nodes]:
        assert affinity.matches(node) == has_one(wanted, node)


@pytest.mark.parametrize("about", ["matchExpressions", "matchFields"])
def test_a_node_that_was_asked_about_is_not_looked_at_again(about: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "pool" if about == "matchExpressions" else "metadata.name"
    wanted, node = [{about: [{"key": key, "operator": "In", "values": ["n1"]}]}], Node("n1", {"pool": "n1"})
    affinity = Affinity(wanted)
    assert affinity.matches(node)
    monkeypatch.setattr("rljob_placement.affinity._all_hold", lambda *arguments: False)
    assert affinity.matches(node)
    assert not affinity.matches(Node("n1", {"pool": "n1"})), "these labels may be others"
