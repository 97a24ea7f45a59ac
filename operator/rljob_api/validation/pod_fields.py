"""Labels, annotations, node selectors and tolerations of a template, by the API server's rules: it would refuse the StatefulSet only later."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rljob_api.spec import RLJobSpec
from rljob_api.type_errors import as_written
from rljob_api.validation.pods import templates
from rljob_api.validation.result import Violation

PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
LONGEST_NAME, LONGEST_PREFIX = 63, 253
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
TOLERATION = {"key": str, "operator": str, "value": str, "effect": str, "tolerationSeconds": int}
"""Fields and their types."""
TYPES = {str: "text", int: "whole number"}


def key_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Keys of all three, and values of labels and node selectors."""
    for section, given in templates(spec):
        for kind, entries in (("labels", given.labels), ("nodeSelector", given.node_selector)):
            yield from label_violations(f"{section}.template.{kind}", entries)
        yield from annotation_violations(f"{section}.template.annotations", given.annotations)


def label_violations(at: str, entries: Mapping[str, str]) -> Iterator[Violation]:
    """Of labels at a field."""
    for key, value in entries.items():
        yield from _key(f"{at}.{key}", key)
        if value and not (len(value) <= LONGEST_NAME and NAME.fullmatch(value)):
            yield Violation(f"{at}.{key}", value, "is no label value", "at most 63 letters, digits, `-`, `_` and `.`")


def annotation_violations(at: str, entries: Mapping[str, str]) -> Iterator[Violation]:
    """Their keys; a value may be any text."""
    for key in entries:
        yield from _key(f"{at}.{key}", key.lower())


def _key(field: str, key: str) -> Iterator[Violation]:
    prefix, slash, name = key.rpartition("/")
    right = len(name) <= LONGEST_NAME and NAME.fullmatch(name)
    if slash:
        right = right and len(prefix) <= LONGEST_PREFIX and PREFIX.fullmatch(prefix)
    if not right:
        yield Violation(
            field,
            key,
            "is no label key",
            "at most 63 letters, digits, `-`, `_` and `.`, after a DNS name and `/` if any",
        )


def toleration_violations(spec: RLJobSpec) -> Iterator[Violation]:
    for section, given in templates(spec):
        for i, toleration in enumerate(given.tolerations):
            for key, rule in _toleration(toleration):
                field = f"{section}.template.tolerations[{i}]" + (f".{key}" if key else "")
                value = toleration.get(key, "unset") if key else toleration
                shown = value if isinstance(value, str) else as_written(value)
                yield Violation(field, shown, rule, "see `kubectl explain pod.spec.tolerations`")


def _toleration(t: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Field and rule. As ValidateTolerations of Kubernetes."""
    wrong = [k for k, v in t.items() if k not in TOLERATION or not isinstance(v, TOLERATION[k]) or isinstance(v, bool)]
    for key in wrong:
        yield key, f"must be a {TYPES[TOLERATION[key]]}" if key in TOLERATION else "is no field of a toleration"
    if wrong:
        return
    operator = t.get("operator") or "Equal"
    if operator not in ("Exists", "Equal"):
        yield "operator", "must be Exists or Equal"
    if not t.get("key") and operator != "Exists":
        yield "operator", "must be Exists without a key"
    if t.get("key") and list(_key("", t["key"])):
        yield "key", "is no label key"
    if operator == "Exists" and t.get("value"):
        yield "value", "must be empty when the operator is Exists"
    if t.get("effect") and t["effect"] not in EFFECTS:
        yield "effect", f"must be one of {', '.join(EFFECTS)}"
    if "tolerationSeconds" in t and t.get("effect") != "NoExecute":
        yield "effect", "must be NoExecute with tolerationSeconds"


RULES = (key_violations, toleration_violations)
