"""A value of the wrong type is told in our words: what has to hold and what to write."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from api.specs import raw_spec
from rljob_api.protocol import Control, Report, Request
from rljob_api.rules import scheduling, validate
from rljob_api.rules.fields import described, paths
from rljob_api.schema import docs
from rljob_api.spec import RLJobSpec
from rljob_api.status import JobStatus
from rljob_api.type_errors import PATTERNS, SENTENCES

TARGETS = (
    "linear_qkv, linear_proj, linear_fc1, linear_fc2, linear_q, linear_k, linear_v, linear_fc1_gate, linear_fc1_up"
)
WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    (
        {"model": {"path": "/m", "lora": {"targets": ["gate_proj"]}}},
        f'spec.model.lora.targets[0] = "gate_proj": must be one of {TARGETS}; did you mean linear_fc1_gate?',
    ),
    (
        {"model": {"path": "/m", "lora": {"targets": "all-linear"}}},
        'spec.model.lora.targets = "all-linear": must be a list; remove it: unset stands for all that there are',
    ),
    (
        {"checkpoint": None},
        "spec.checkpoint = unset: is required; see spec.checkpoint in docs/reference/api.md, or `kubectl explain rljob.spec.checkpoint`",
    ),
    (
        {"model": {"path": None}},
        "spec.model.path = unset: is required; see spec.model in docs/reference/api.md, or `kubectl explain rljob.spec.model.path`",
    ),
    ({"train": {"steps": "2"}}, 'spec.train.steps = "2": must be a whole number; write 2'),
    ({"rewards": ["math"]}, 'spec.rewards[0] = "math": must be an object with fields of its own; write {rule: math}'),
    ({"rewards": "number"}, 'spec.rewards = "number": must be a list; write [{rule: number}]'),
    ({"rewards": "/r.py"}, 'spec.rewards = "/r.py": must be a list; write [{python: {path: "/r.py"}}]'),
    (
        {"rewards": [{"python": "/r.py"}]},
        'spec.rewards[0].python = "/r.py": must be an object with fields of its own; write {path: "/r.py"}',
    ),
    ({"model": "/m"}, 'spec.model = "/m": must be an object with fields of its own; write {path: "/m"}'),
    (
        {"rewards": "mine"},
        'spec.rewards = "mine": must be a list; see spec.rewards[] in docs/reference/api.md, or `kubectl explain rljob.spec.rewards`',
    ),
    (
        {"env": {"WANDB_PROJECT": "x"}},
        'spec.env = {"WANDB_PROJECT": "x"}: must be a list; write [{name: NAME, value: VALUE}], with an entry for each variable',
    ),
    (
        {"envFrom": "wandb"},
        'spec.envFrom = "wandb": must be a list; see spec in docs/reference/api.md, or `kubectl explain rljob.spec.envFrom`',
    ),
    (
        {"train": {"steps": "25 steps"}},
        'spec.train.steps = "25 steps": must be a whole number; write 25, without a unit: the field\'s name has it',
    ),
    (
        {"rewards": [{"rule": "math", "timeoutSeconds": "0.5s"}]},
        'spec.rewards[0].timeoutSeconds = "0.5s": must be a number; write 0.5, without a unit: the field\'s name has it',
    ),
    *(
        (
            {"checkpoint": {"path": "/c", "everySteps": given}},
            f'spec.checkpoint.everySteps = "{given}": must be a whole number; {fix}',
        )
        for given, fix in {
            "1 step": "write 1, without a unit: the field's name has it",
            "2.5 steps": "write a whole number",
            "30s": "write the number alone, in the unit of the field's name",
            "8k": "write the number alone, in the unit of the field's name",
            "2 epochs": "write the number alone, in the unit of the field's name",
        }.items()
    ),
    (
        {"rewards": [{"rule": "math", "timeoutSeconds": "500ms"}]},
        'spec.rewards[0].timeoutSeconds = "500ms": must be a number; write the number alone, in the unit of the field\'s name',
    ),
    ({"train": {"steps": "many"}}, 'spec.train.steps = "many": must be a whole number; write a whole number'),
    *(
        (
            {"trainer": {"shmSize": given}},
            f'spec.trainer.shmSize = "{given}": must be a Kubernetes quantity; {fix}',
        )
        for given, fix in {
            "512GB": "write 512G",
            "512 GiB": "write 512Gi",
            "1.5tb": "write 1.5T",
            "64 B": "write 64",
            "much": "write digits and one of m, k, Ki, M, Mi, G, Gi, T, Ti, for example 500m or 16Gi",
            "5 apples": "write digits and one of m, k, Ki, M, Mi, G, Gi, T, Ti, for example 500m or 16Gi",
        }.items()
    ),
    ({"train": {"steps": 2.5}}, "spec.train.steps = 2.5: must be a whole number; write 2 or 3"),
    ({"train": {"steps": 1e3}}, "spec.train.steps = 1000.0: must be a whole number; write 1000"),
    ({"train": {"steps": True}}, "spec.train.steps = true: must be a whole number; write a whole number"),
    ({"train": {"steps": 0}}, "spec.train.steps = 0: must be at least 1; set 1 or more"),
    (
        {"train": {"staleness": 9}},
        "spec.train.staleness = 9: must be at most 8; set 8 or less",
    ),
    (
        {"algorithm": {"gamma": "high"}},
        'spec.algorithm.gamma = "high": must be a number; write a number, for example 0.5 or 1.0e-6',
    ),
    (
        {"train": {"optimizer": {"learningRate": "1e-6"}}},
        'spec.train.optimizer.learningRate = "1e-6": must be a number; write 1e-6',
    ),
    (
        {"train": {"optimizer": {"learningRate": float("inf")}}},
        "spec.train.optimizer.learningRate = .inf: must be a finite number; write one, for example 0.5 or 1.0e-6",
    ),
    (
        {"trainer": {"transformerConfig": {"qk_clip_alpha": float("nan")}}},
        "spec.trainer.transformerConfig.qk_clip_alpha = .nan: must be a finite number; write one, for example 0.5 or 1.0e-6",
    ),
    (
        {"data": {"train": ["/data/train.parquet"], "chatTemplate": {"arguments": {"a": [1, float("-inf")]}}}},
        "spec.data.chatTemplate.arguments.a[1] = -.inf: must be a finite number; write one, for example 0.5 or 1.0e-6",
    ),
    ({"algorithm": {"gamma": 2}}, "spec.algorithm.gamma = 2: must be at most 1; set 1 or less"),
    ({"algorithm": {"clip": {"low": 0}}}, "spec.algorithm.clip.low = 0: must be above 0; set more than 0"),
    ({"suspend": "yes"}, 'spec.suspend = "yes": must be true or false; write true'),
    ({"image": 3}, 'spec.image = 3: must be a text; write "3", in quotes'),
    (
        {"image": " rljob:1"},
        'spec.image = " rljob:1": must be a reference to an image, without blanks; write one, for example registry/rljob-trainer:1.0',
    ),
    (
        {"trainer": {"template": {"image": ""}}},
        'spec.trainer.template.image = "": must be a reference to an image, without blanks; write one, for example registry/rljob-trainer:1.0',
    ),
    ({"image": "i" * 513}, f'spec.image = "{"i" * 76}...: has 513 characters; at most 512 are allowed; shorten it'),
    ({"data": {"train": "/a"}}, 'spec.data.train = "/a": must be a list; write ["/a"]'),
    ({"data": {"train": []}}, "spec.data.train = []: spec.task = rl learns from files; name at least one"),
    (
        {"evaluation": {"sets": [{"name": "a", "files": []}]}},
        "spec.evaluation.sets[0].files = []: has 0 entries; at least 1 are needed; add them",
    ),
    (
        {"trainer": {"parallelism": 4}},
        "spec.trainer.parallelism = 4: must be an object with fields of its own; see spec.trainer.parallelism in "
        "docs/reference/api.md, or `kubectl explain rljob.spec.trainer.parallelism`",
    ),
    ({"trainer": {"device": "GPU"}}, 'spec.trainer.device = "GPU": must be one of gpu, cpu; did you mean gpu?'),
    ({"data": {"train": ["a"]}}, 'spec.data.train[0] = "a": must be an absolute path without blanks; begin it with /'),
    (
        {"checkpoint": {"path": "runs/x"}},
        'spec.checkpoint.path = "runs/x": must be an absolute path without blanks; begin it with /',
    ),
    (
        {"model": {"path": "Qwen/Qwen2.5-7B-Instruct"}},
        'spec.model.path = "Qwen/Qwen2.5-7B-Instruct": must be an absolute path without blanks; name a directory in the pods; model.source and '
        "data.sources copy a model and data there, for example hf://ORG/MODEL@REVISION",
    ),
    (
        {"trainer": {"template": {"labels": {"a/b": 1}}}},
        'spec.trainer.template.labels.a/b = 1: must be a text; write "1", in quotes',
    ),
    (
        {"rewards": [{"rule": "number"}, {"rule": "math", "wait": 1}]},
        "spec.rewards[1].wait = 1: there is no such field; see spec.rewards[] in docs/reference/api.md, or `kubectl explain rljob.spec.rewards`",
    ),
)


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[message.split(":")[0][:40] for _, message in WRONG])
def test_a_value_of_the_wrong_type_names_field_value_rule_and_fix(changes: dict[str, Any], message: str) -> None:
    assert [str(v) for v in validate(raw_spec(**changes), "demo").violations] == [message]


def test_fields_have_one_spelling_as_for_the_api_server() -> None:
    found = validate(raw_spec(train={"optimizer": {"learning_rate": 1e-6}}), "demo").violations
    assert [v.field for v in found] == ["spec.train.optimizer.learning_rate"]


ERRORS = {
    "model": {"model_type"},
    "model-fields": {"extra_forbidden", "invalid_key", "missing", "model_attributes_type"},
    "literal": {"literal_error"},
    "tagged-union": {"union_tag_invalid", "union_tag_not_found"},
    "str": {"string_type", "string_unicode"},
    "int": {"int_type", "int_from_float", "int_parsing", "int_parsing_size"},
    "float": {"float_type", "float_parsing", "finite_number"},
    "bool": {"bool_type", "bool_parsing"},
    "list": {"list_type"},
    "dict": {"dict_type"},
    **{key: set() for key in ("any", "nullable", "default", "definitions", "definition-ref", "union")},
    **{
        key: set()
        for key in ("function-before", "function-after", "function-wrap", "no-info", "with-info", "model-field")
    },
}
"""pydantic's problems by the types of its schemas (pydantic.dev, validation errors)."""
CONSTRAINTS = {
    ("int", "ge"): "greater_than_equal", ("int", "le"): "less_than_equal",
    ("float", "gt"): "greater_than", ("float", "ge"): "greater_than_equal", ("float", "le"): "less_than_equal",
    ("str", "min_length"): "string_too_short", ("str", "max_length"): "string_too_long",
    ("str", "pattern"): "string_pattern_mismatch",
    ("list", "min_length"): "too_short", ("list", "max_length"): "too_long",
}  # fmt: skip


def nodes(value: Any, seen: set[int]) -> Iterator[dict[str, Any]]:
    """All schemas inside of one."""
    if isinstance(value, dict) and id(value) not in seen:
        seen.add(id(value))
        if isinstance(value.get("type"), str):
            yield value
        for inner in value.values():
            yield from nodes(inner, seen)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from nodes(inner, seen)


def without_words(model: type[BaseModel]) -> set[str]:
    """Problems and patterns of a type that nobody has written a sentence for."""
    found = list(nodes(model.__pydantic_core_schema__, set()))
    kinds = {kind for node in found for kind in ERRORS[node["type"]]}
    kinds |= {
        kind for node in found for (type_, key), kind in CONSTRAINTS.items() if node["type"] == type_ and key in node
    }
    patterns = {node["pattern"] for node in found if node["type"] == "str" and "pattern" in node}
    return (kinds - SENTENCES.keys()) | (patterns - PATTERNS.keys())


@pytest.mark.parametrize("model", [RLJobSpec, JobStatus, Report, Control, Request, scheduling._Affinity])
def test_every_problem_that_a_type_of_the_contract_can_have_has_words(model: type[BaseModel]) -> None:
    assert without_words(model) == set()


def test_a_field_without_a_better_fix_leads_to_a_heading_of_the_reference() -> None:
    headings = {line.removeprefix("## ") for line in docs.api_page().splitlines() if line.startswith("## spec")}
    for path in paths():
        found = re.match(
            r"see (\S+) in docs/reference/api.md, or `kubectl explain rljob.spec[.\w]*`$", described(path.split("."))
        )
        assert (
            found
            and found[1] in headings
            and path.startswith(found[1].removeprefix("spec").removeprefix(".").replace("[]", ""))
        )
