"""Rules of single objects: one declaration, which Python evaluates here and the API server in tests/apiserver/test_admission.py."""

import re
from typing import Any

import pytest

from api.broken import AGENT, BROKEN
from api.specs import make_spec, raw_spec
from rljob_api.rules import validate
from rljob_api.rules.engine import count, either, field, literal, present, size
from rljob_api.rules.validator import OBJECT_RULES
from rljob_api.schema import crd


@pytest.mark.parametrize(("changes", "path"), BROKEN)
def test_a_spec_that_breaks_one_rule_gets_one_violation(changes: dict[str, Any], path: str) -> None:
    assert [v.field for v in validate(raw_spec(**changes), "demo").violations] == [path]


def test_every_rule_is_broken_by_one_of_the_examples() -> None:
    specs = [make_spec(**changes) for changes, _ in BROKEN]
    assert [rule for rule in OBJECT_RULES if not any(list(rule(spec)) for spec in specs)] == []
    assert len(BROKEN) == len(OBJECT_RULES)


def test_the_crd_has_every_rule_and_its_messages_are_whole_sentences() -> None:
    found = [rule for rules in crd.validations().values() for rule in rules]
    assert len(found) == len(OBJECT_RULES) + len(crd.IMMUTABLE)
    for rule in found:
        assert not re.search(r"[{}]\d|\n", rule["message"])
        assert re.fullmatch(r"spec\.[\w.\[\]]+.+[;:] .+", rule["message"])


def test_the_fields_that_messages_name_exist() -> None:
    """Also of rules about the items of a list, whose fields are below it."""
    for rule in (rule for rules in crd.validations().values() for rule in rules):
        for path in re.findall(r"\bspec\.[\w.\[\]]*\w", rule["message"]):
            assert exists(path), f"{path} in: {rule['message']}"


def exists(path: str) -> bool:
    """Whether the schema has the field, or passes it through verbatim."""
    at = crd.spec_schema()
    for name in path.split(".")[1:]:
        if "properties" not in at:
            return bool(at.get("x-kubernetes-preserve-unknown-fields"))
        at = at["properties"].get(name.removesuffix("[]"))
        if at is None:
            return False
        at = at.get("items", at)
    return True


@pytest.mark.parametrize(
    ("rollout", "most"),
    [
        ({"sampling": {"maxTokens": 8}}, "spec.rollout.sampling.maxTokens"),
        ({"sampling": {"maxTokens": 8}, "agent": AGENT | {"maxTokens": 16}}, "spec.rollout.agent.maxTokens"),
    ],
)
def test_a_micro_batch_that_is_too_small_names_what_bounds_the_samples_of_this_job(
    rollout: dict[str, Any], most: str
) -> None:
    (found,) = validate(raw_spec(rollout=rollout, train={"tokensPerMicroBatch": 20}), "demo").violations
    assert found.fix == f"raise it, or lower spec.data.maxPromptTokens or {most}"


def test_a_message_without_values_says_something_of_each_fact() -> None:
    """A clause that is a fact alone (`..., and pipelineParallel`) says something only next to its value, which Kubernetes leaves out."""
    bare = [rule.problem for rule in OBJECT_RULES if re.search(r", (and|with) (\{\d\}(, )?)+$", rule.problem)]
    assert bare == []


def test_an_expression_is_computed_from_the_spec_as_its_cel_says() -> None:
    spec = make_spec(trainer={"nodes": 4, "parallelism": {"context": 2}}, data={"validation": ["/a", "/b"]})
    nodes, context = field("trainer.nodes"), field("trainer.parallelism.context")
    doubled = either(context > 1, context * 2, 1)
    assert doubled.cel == "((self.trainer.parallelism.context > 1) ? (self.trainer.parallelism.context * 2) : 1)"
    assert doubled.of(spec) == 4
    assert context.divides(nodes).cel == "((self.trainer.nodes % self.trainer.parallelism.context) == 0)"
    assert context.divides(nodes).of(spec) is True
    assert size("data.validation").of(spec) == 2
    assert present("critic").implies(nodes > 9).cel == "(!has(self.critic) || (self.trainer.nodes > 9))"
    assert count((present("critic"), nodes > 1)).of(spec) == 1
    assert literal("it's") == r"'it\'s'"
    assert field("task").matches("r|rl").cel == "self.task.matches('^(r|rl)$')"
    assert field("task").matches("r|rl").of(spec) and not field("task").matches("r").of(spec)
