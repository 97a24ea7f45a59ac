"""Rules of environments by the names of their libraries, and of data that these generate."""

from typing import Any

import pytest

from api.specs import make_spec, raw_spec
from rljob_api.families import FAMILIES
from rljob_api.rules import validate
from rljob_api.rules.key_tables import REASONING_PARSERS, TOOL_PARSERS
from rljob_api.rules.model import model_violations

SUMS = {"path": "/data/sums.jsonl", "library": "reasoning-gym", "environment": "chain_sum", "size": 100}
GSM8K = {"environment": "gsm8k"}


def violations(agent: dict[str, Any] | None = None, data: dict[str, Any] | None = None, **changes: Any) -> list[str]:
    spec = raw_spec(**changes)
    spec["data"] = spec["data"] | (data or {})
    if agent:
        spec["rollout"] = spec["rollout"] | {"agent": {"maxTurns": 2, "maxTokens": 16, **agent}}
    return [str(v) for v in validate(spec, "demo").violations]


@pytest.mark.parametrize(
    "agent",
    [
        {"verifiers": GSM8K},
        {"skyrlGym": {"environment": "package.module:Class", "arguments": {"a": [1]}}},
        {"reasoningGym": GSM8K},
        {"openEnv": {"url": "http://env.svc:8000", "observationKey": "text", "sessions": 8}},
        {"nemoGym": {"url": "http://gym.svc:8000"}},
        {"verifiers": GSM8K, "env": {"SETTINGS": "a" * 16384, "LINES": "a\nb"}},
    ],
)
def test_an_environment_is_named_by_one_key(agent: dict[str, Any]) -> None:
    assert violations(agent) == []


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ({"verifiers": GSM8K, "skyrlGym": GSM8K}, "spec.rollout.agent = verifiers and skyrlGym: needs exactly one of"),
        (
            {"verifiers": GSM8K, "toolParser": "qwen_coder"},
            "spec.rollout.agent.toolParser = qwen_coder: the pinned vLLM has no such parser; did you mean qwen3_coder?",
        ),
        (
            {"verifiers": GSM8K, "reasoningParser": "x"},
            "spec.rollout.agent.reasoningParser = x: the pinned vLLM has no",
        ),
        ({"skyrlGym": {}}, "spec.rollout.agent.skyrlGym.environment"),
        ({"skyrlGym": {"environment": "-m pip"}}, 'spec.rollout.agent.skyrlGym.environment = "-m pip"'),
        ({"openEnv": {"url": "ftp://a", "observationKey": "t"}}, 'spec.rollout.agent.openEnv.url = "ftp://a"'),
        ({"nemoGym": {"url": "gym.svc:8000"}}, 'spec.rollout.agent.nemoGym.url = "gym.svc:8000"'),
        (
            {"nemoGym": {"url": "http://a"}, "workers": {"replicas": 2}},
            "spec.rollout.agent.workers = set: the trainer itself asks the service",
        ),
        (
            {"openEnv": {"url": "http://a", "observationKey": "t", "sessions": 0}},
            "spec.rollout.agent.openEnv.sessions = 0",
        ),
    ],
)
def test_a_mistake_is_named_by_its_field(agent: dict[str, Any], said: str) -> None:
    (found,) = violations(agent)
    assert found.startswith(said)


def test_generated_files_are_read_as_others_are() -> None:
    held_out = SUMS | {"path": "/data/held.jsonl", "offset": 100}
    files = {"train": ["/data/a.parquet", SUMS["path"]], "validation": [held_out["path"]]}
    assert violations(data={"generated": [SUMS, held_out], **files}) == []


@pytest.mark.parametrize(
    ("generated", "said"),
    [
        ([SUMS | {"path": "/data/b.jsonl"}], "spec.data.generated[0].path = /data/b.jsonl: nothing reads this file"),
        (
            [SUMS, SUMS | {"seed": 1}],
            "spec.data.generated[1] = /data/sums.jsonl: writes the file of spec.data.generated[0], too",
        ),
        (
            [SUMS, SUMS | {"path": "/data/held.jsonl", "size": 10}],
            "spec.data.generated[1] = /data/held.jsonl: has rows of spec.data.generated[0]: environment and seed are the same",
        ),
        (
            [SUMS | {"offset": 50}, SUMS | {"path": "/data/held.jsonl", "size": 51}],
            "spec.data.generated[1] = /data/held.jsonl: has rows of spec.data.generated[0]: environment and seed are the same",
        ),
        (
            [SUMS, SUMS | {"path": "/data/held.jsonl", "seed": 1, "offset": 100}],
            "spec.data.generated[1] = /data/held.jsonl: may have rows of spec.data.generated[0]: the environment is the same",
        ),
        ([SUMS | {"offset": -1}], "spec.data.generated[0].offset = -1"),
        ([SUMS | {"size": 0}], "spec.data.generated[0].size = 0"),
        ([SUMS | {"library": "gym"}], 'spec.data.generated[0].library = "gym"'),
    ],
)
def test_generated_data_that_nobody_could_mean_are_refused(generated: list[dict[str, Any]], said: str) -> None:
    files = {"train": ["/data/sums.jsonl"], "validation": ["/data/held.jsonl"]}
    (found,) = violations(data={"generated": generated, **files})
    assert found.startswith(said)


def test_every_default_parser_of_a_family_is_one_of_the_pinned_vllm() -> None:
    assert {f.tools for f in FAMILIES.values()} <= TOOL_PARSERS | {""}
    assert {f.reasoning for f in FAMILIES.values()} <= REASONING_PARSERS | {""}


@pytest.mark.parametrize(
    ("kind", "named", "count"), [("gemma3_text", {}, 1), ("gemma3_text", {"toolParser": "hermes"}, 0), ("qwen3", {}, 0)]
)
def test_functions_need_a_parser_where_the_family_has_none(kind: str, named: dict[str, str], count: int) -> None:
    tools = {"path": "/data/tools.py", "functions": ["add"]}
    spec = make_spec(rollout={"agent": {"tools": tools, "maxTurns": 2, "maxTokens": 900, **named}})
    found = [v for v in model_violations(spec, {"model_type": kind}) if v.field == "spec.rollout.agent.toolParser"]
    assert len(found) == count


def test_rows_are_written_as_json_lines_on_a_volume_that_can_be_written() -> None:
    made = SUMS | {"path": "/data/sums.parquet"}
    volume = {"name": "data", "mountPath": "/data", "readOnly": True, "source": {"emptyDir": {}}}
    runs = {"name": "runs", "mountPath": "/runs", "source": {"emptyDir": {}}}
    found = violations(
        data={"generated": [made], "train": [made["path"]]}, volumes=[volume, runs], checkpoint={"path": "/runs/a"}
    )
    assert [line.partition(":")[2].strip().partition(";")[0] for line in found] == [
        "rows are written as JSON, one per line",
        "is on the volume data, which is read-only",
    ]


def test_only_prompts_are_generated() -> None:
    data = {"generated": [SUMS], "train": [SUMS["path"]]}
    assert any("data.generated" in v and "task sft does not read it" in v for v in violations(data=data, task="sft"))


@pytest.mark.parametrize("value", ["a" * 16385, "a\0b"])
def test_a_variable_that_the_kernel_gives_no_process_is_refused(value: str) -> None:
    (said,) = violations({"verifiers": GSM8K, "env": {"SETTINGS": value}})
    assert said.startswith("spec.rollout.agent.env.SETTINGS")
