"""Each rule of the CRD stands where the API server has the least to do for it."""

from collections.abc import Iterator
from typing import Any

from rljob_api.schema import crd
from rljob_api.schema.sections import FIELD, complete, keep_read_defaults, place, section

Schema = dict[str, Any]

SPEC: Schema = crd.crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
MOST_COPIES = 9_400
"""With all rules at the spec 13,900."""


def placed(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema, str]]:
    """Sections with their paths, and their rules."""
    for rule in schema.get("x-kubernetes-validations", ()):
        yield path, schema, rule["rule"]
    for name, inner in schema.get("properties", {}).items():
        yield from placed(inner, f"{path}.{name}")
    if "items" in schema:
        yield from placed(schema["items"], f"{path}[]")


def copies(schema: Schema, path: str) -> int:
    """Schemas of fields that the API server copies on the way to one."""
    count = 0
    for name in path.split("."):
        fields = schema.get("properties", {})
        count, schema = count + len(fields), fields.get(name, {})
    return count


def test_no_rule_reads_fields_of_one_section_alone_from_above_it() -> None:
    assert [(path, rule) for path, schema, rule in placed(SPEC) if section(schema, rule)] == []


def test_placing_changes_where_a_rule_begins_and_nothing_else() -> None:
    def whole(path: str, rule: str) -> str:
        within = path.rpartition("[]")[2].removeprefix(".")
        return FIELD.sub(lambda read: read[0].replace(".", f".{within}.", 1), rule) if within else rule

    found = sorted(whole(path, rule) for path, _, rule in placed(SPEC))
    assert found == sorted(rule["rule"] for rules in crd.validations().values() for rule in rules)


def test_all_rules_together_go_through_few_fields() -> None:
    count = sum(copies(schema, path) for _, schema, rule in placed(SPEC) for path in FIELD.findall(rule))
    assert 5_000 < count <= MOST_COPIES


def test_a_rule_stays_above_a_section_that_not_every_object_has() -> None:
    there: Schema = {"properties": {"inner": {"properties": {}}, "deep": {"default": {}, "properties": {}}}}
    schema: Schema = {"required": ["outer"], "properties": {"outer": there}}
    assert section(schema, "self.outer.inner.a == self.outer.inner.b") == ["outer"]
    assert section(schema, "self.outer.deep.a.matches('x')") == ["outer", "deep"]
    assert section(schema, "self.outer.deep.a == self.outer.b") == ["outer"]
    assert section(schema, "self.outer.deep.a == self.b") == []
    place(schema, {"rule": "self.outer.deep.a == oldSelf.outer.deep.a", "message": "m"})
    assert there["properties"]["deep"]["x-kubernetes-validations"] == [{"rule": "self.a == oldSelf.a", "message": "m"}]


def with_default(schema: Schema, path: str = "") -> Iterator[str]:
    """Paths of fields with a default of their own: not of sections."""
    for name, field in schema.get("properties", {}).items():
        if "default" in field and "properties" not in field:
            yield f"{path}{name}"
        yield from with_default(field, f"{path}{name}.")
    if "items" in schema:
        yield from with_default(schema["items"], f"{path}[].")


def test_objects_are_given_the_defaults_that_rules_read_and_no_others() -> None:
    """Whatever else an object holds makes each write of it dearer, also of its status."""
    rules = [(at, rule["rule"]) for at, rules in crd.validations().items() for rule in rules]
    read = {".".join((*at, path)).replace(".[]", "[]") for at, rule in rules for path in FIELD.findall(rule)}
    every, kept = ({path.replace(".[]", "[]") for path in with_default(spec)} for spec in (crd.spec_schema(), SPEC))
    assert kept == every & read
    assert len(kept) < len(every) / 3


def test_a_section_stays_if_a_rule_above_it_reads_its_fields_and_goes_if_only_its_own_do() -> None:
    """Defaults keep every rule, so an absent section has nothing to check."""
    read: Schema = {"default": {}, "properties": {"a": {"default": 1}, "unread": {"default": 0}}}
    own: Schema = {
        "default": {},
        "properties": {"b": {"default": 2}},
        "x-kubernetes-validations": [{"rule": "self.b > 1"}],
    }
    entry: Schema = {
        "properties": {"c": {"default": 3}, "a": {"default": 4}},
        "x-kubernetes-validations": [{"rule": "self.c > 2"}],
    }
    schema: Schema = {"properties": {"read": read, "own": own, "list": {"default": [], "items": entry}}}
    schema["x-kubernetes-validations"] = [{"rule": "self.read.a > 0"}]
    keep_read_defaults(schema)
    assert read == {"default": {}, "properties": {"a": {"default": 1}, "unread": {}}}
    assert ("default" in own, own["properties"]) == (False, {"b": {"default": 2}})
    assert ("default" in schema["properties"]["list"], entry["properties"]) == (False, {"c": {"default": 3}, "a": {}})


def test_a_default_section_has_what_its_rules_read_and_nothing_else() -> None:
    """The API server refuses a CRD whose default, as it stands there, breaks a rule of its section."""
    inner: Schema = {"default": {}, "properties": {"b": {"default": 2}, "c": {"default": 3}}}
    outer: Schema = {
        "default": {},
        "properties": {"a": {"default": 1}, "unread": {"default": 0}, "absent": {}, "inner": inner},
    }
    schema: Schema = {"properties": {"outer": outer, "without": {"default": {}, "properties": {"x": {"default": 0}}}}}
    place(schema, {"rule": "self.outer.a > 0 || has(self.outer.absent) || self.outer.inner.b > 0", "message": "m"})
    place(schema, {"rule": "self.outer.inner.c > 0", "message": "m"})
    complete(schema)
    assert inner["default"] == {"c": 3}
    assert outer["default"] == {"a": 1, "inner": {"b": 2, "c": 3}}
    assert schema["properties"]["without"]["default"] == {}
