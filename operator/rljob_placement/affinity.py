"""The required node affinity of a pod, compiled: what a user may write takes long to read, and a plan asks for it of every node, several times.

Whatever the expressions of a term list about one key, they come to one requirement, which takes the same short time for each node. What is known of a
node is kept while its labels stay.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rljob_placement.cluster import Node

NodeSelectorTerm = Mapping[str, Any]
"""A nodeSelectorTerm of a required node affinity."""
NodeSelectorRequirement = Mapping[str, Any]
INTEGER = re.compile(r"[+-]?[0-9]{1,63}")
LEAST, MOST = -(2**63), 2**63 - 1
"""Numbers that a label may be compared with."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """What all expressions about one key come to."""

    absent: bool
    """Whether they hold for a node that lacks the key."""
    allowed: frozenset[str] | None
    """The only values for which they may hold; None: any."""
    refused: frozenset[str]
    """Values for which they do not hold."""
    bounds: tuple[int, int] | None
    """The value has to be a number between these, and neither of them; None: any value will do."""

    @staticmethod
    def of(expressions: Sequence[NodeSelectorRequirement]) -> "Requirement":
        """An operator that nobody knows holds for no node."""
        listed = [(e["operator"], frozenset(e.get("values") or ())) for e in expressions]
        sets = [values if operator == "In" else frozenset() for operator, values in listed if operator not in NO_SET]
        numbers = [
            (e["operator"], _integer((e.get("values") or [""])[0])) for e in expressions if e["operator"] in ORDER
        ]
        low = max((LEAST - 1, *(MOST if n is None else n for operator, n in numbers if operator == "Gt")))
        high = min((MOST + 1, *(LEAST if n is None else n for operator, n in numbers if operator == "Lt")))
        return Requirement(
            absent=all(operator in ("NotIn", "DoesNotExist") for operator, _ in listed),
            allowed=frozenset.intersection(*sets) if sets else None,
            refused=frozenset().union(*(values for operator, values in listed if operator == "NotIn")),
            bounds=(low, high) if numbers else None,
        )

    def holds(self, value: str | None) -> bool:
        """None: the node lacks the key."""
        if value is None:
            return self.absent
        if (self.allowed is not None and value not in self.allowed) or value in self.refused:
            return False
        if self.bounds is None:
            return True
        number = _integer(value)
        return number is not None and self.bounds[0] < number < self.bounds[1]


ORDER = ("Gt", "Lt")
NO_SET = ("NotIn", "Exists", *ORDER)
"""Operators that allow other values than those that they list."""


def _integer(text: str) -> int | None:
    """A number as kube-scheduler reads it, by strconv.ParseInt with 64 bits; None: it is none, or too large, and compares with nothing."""
    number = int(text) if INTEGER.fullmatch(text) else None
    return number if number is not None and LEAST <= number <= MOST else None


Requirements = list[tuple[str, Requirement]]
"""By key, each key once."""


def _compiled(expressions: Sequence[NodeSelectorRequirement]) -> Requirements:
    by_key = dict[str, list[NodeSelectorRequirement]]()
    for e in expressions:
        by_key.setdefault(e["key"], []).append(e)
    return [(key, Requirement.of(about)) for key, about in by_key.items()]


class Affinity:
    """Terms of which one has to hold. An empty term holds for no node."""

    def __init__(self, terms: Sequence[NodeSelectorTerm]) -> None:
        """`terms`: nobody changes them."""
        self._given = terms
        self._known: dict[str, tuple[Mapping[str, str], bool]] = {}
        """By node: its labels, and whether it matches."""

    @cached_property
    def _terms(self) -> list[tuple[Requirements, Requirements]]:
        """What each asks of labels, and of fields. Compiled when a node is asked about: many plans never do."""
        parts = ((term.get("matchExpressions") or (), term.get("matchFields") or ()) for term in self._given)
        return [(_compiled(labels), _compiled(fields)) for labels, fields in parts if labels or fields]

    def matches(self, node: Node) -> bool:
        known = self._known.get(node.name)
        if known is None or known[0] is not node.labels:
            known = self._known[node.name] = (node.labels, self._holds(node))
        return known[1]

    def _holds(self, node: Node) -> bool:
        fields = {"metadata.name": node.name}
        return any(
            _all_hold(of_labels, node.labels) and _all_hold(of_fields, fields) for of_labels, of_fields in self._terms
        )


def _all_hold(requirements: Requirements, values: Mapping[str, str]) -> bool:
    return all(requirement.holds(values.get(key)) for key, requirement in requirements)
