"""Unusual values: every one is named with what it does and what is usual, and no job that is in order has any."""

import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.specs import make_spec, raw_spec
from rljob_api.base import Model
from rljob_api.rules import validate
from rljob_api.rules.advice import WINDOWS, Window, advice
from rljob_api.spec import RLJobSpec

REPOSITORY = Path(__file__).parents[2]
JOBS = [
    job["spec"]
    for folder in ("examples", "tests/importer/cases", "gitops")
    for file in sorted((REPOSITORY / folder).rglob("*.yaml"))
    for job in (yaml.safe_load_all(file.read_text()) if "\nkind: RLJob\n" in file.read_text() else ())
    if job and job.get("kind") == "RLJob"
]


def fields(section: Any, path: str = "") -> Iterator[str]:
    """All fields of the spec, with [] for entries of lists."""
    if isinstance(section, type) and issubclass(section, Model):
        for field in section.model_fields.values():
            here = f"{path}.{field.alias}" if path else str(field.alias)
            yield here
            yield from fields(field.annotation, here)
    for inner in typing.get_args(section):
        yield from fields(inner, f"{path}[]" if typing.get_origin(section) is list else path)


@pytest.mark.parametrize("spec", JOBS)
def test_no_example_and_no_import_has_an_unusual_value(spec: dict[str, Any]) -> None:
    parsed = validate(spec, "demo").spec
    assert parsed and not [*advice(parsed)]


def test_every_window_is_of_a_field_of_the_spec() -> None:
    assert len(JOBS) > 30 and WINDOWS.keys() <= {*fields(RLJobSpec)}


OUT_OF_PLACE = {
    "algorithm.clip.high": 1.28,
    "algorithm.clip.low": 1.2,
    "train.optimizer.learningRate": 10.0,
    "train.optimizer.weightDecay": 10.0,
    "lifecycle.drainTimeoutSeconds": 1,
    "lifecycle.stallTimeoutSeconds": 5,
    "evaluation.sampling.topP": 0.01,
    "rollout.sampling.temperature": 7.0,
    "algorithm.gamma": 0.1,
    "trainer.shmSize": "2Mi",
}


@pytest.mark.parametrize("path", OUT_OF_PLACE)
def test_what_is_almost_surely_a_mistake_is_said_with_what_it_does_and_what_is_usual(path: str) -> None:
    value, window = OUT_OF_PLACE[path], WINDOWS[path]
    section: dict[str, Any] = {}
    inner = section
    *above, last = path.split(".")
    for part in above:
        inner = inner.setdefault(part, {})
    inner[last] = value
    if path.startswith("rollout.sampling"):
        inner.setdefault("maxTokens", 8)
    (said,) = advice(make_spec(**section))
    assert said.field == f"spec.{path}" and window.reason in said.rule and said.fix == window.fix


@pytest.mark.parametrize(("path", "window"), WINDOWS.items(), ids=list(WINDOWS))
def test_a_window_has_a_reason_a_fix_and_an_inside(path: str, window: Window) -> None:
    assert window.low < window.high and window.reason and window.fix


@pytest.mark.parametrize(
    ("rate", "said"), [(1.0, "is above 0.01: AdamW diverges"), (1e-12, "is below 1e-09: the model stands still")]
)
def test_each_side_of_a_window_has_its_own_sentence(rate: float, said: str) -> None:
    (found,) = advice(make_spec(train={"steps": 10, "optimizer": {"learningRate": rate}}))
    assert found.rule == said


RELATED: list[tuple[dict[str, Any], str, str]] = [
    ({"train": {"optimizer": {"warmupSteps": 11}}}, "train.optimizer.warmupSteps", "the 10 optimizer steps of the run"),
    (
        {"algorithm": {"clip": {"low": 0.3, "high": 0.2}}},
        "algorithm.clip.high",
        "is below spec.algorithm.clip.low = 0.3",
    ),
    (
        {"evaluation": {"everySteps": 11}},
        "evaluation.everySteps",
        "only the first policy and the last one are evaluated",
    ),
    (
        {"checkpoint": {"everySteps": 11}},
        "checkpoint.everySteps",
        "is above the 10 steps of the run: the only checkpoint",
    ),
    ({"checkpoint": {"exportEverySteps": 11}}, "checkpoint.exportEverySteps", "nothing is exported on the way"),
]


@pytest.mark.parametrize(("changes", "field", "said"), RELATED)
def test_values_that_do_not_go_together_are_said(changes: dict[str, Any], field: str, said: str) -> None:
    (found,) = advice(make_spec(**changes))
    assert found.field == f"spec.{field}" and said in found.rule and found.fix


def test_values_that_go_together_are_not_said() -> None:
    assert not [*advice(make_spec(train={"optimizer": {"warmupSteps": 10}}))]
    epochs = {"steps": None, "epochs": 1, "optimizer": {"warmupSteps": 1000}}
    assert not [*advice(make_spec(train=epochs))], "the trainer counts the steps"


def test_an_interval_that_says_what_a_longer_one_would_do_is_not_said() -> None:
    meant = {"evaluation": {"everySteps": 10}, "checkpoint": {"everySteps": 0}}
    assert not [*advice(make_spec(**meant))]
    assert not [*advice(make_spec())], "the default of checkpoints is longer than the run"
    assert not [*advice(make_spec(train={"steps": None, "epochs": 1}, evaluation={"everySteps": 10**6}))]
    assert not [*advice(make_spec(evaluation={"everySteps": 11, "only": True}))], "it is not read"


@pytest.mark.parametrize(("changes", "field", "said"), RELATED[2:])
def test_the_value_that_is_meant_is_the_fix(changes: dict[str, Any], field: str, said: str) -> None:
    (found,) = advice(make_spec(**changes))
    value = int(re.findall(r"or set (\d+) if", found.fix)[0])
    section, name = field.split(".")
    assert not [*advice(make_spec(**{section: {name: value}}))]


def test_a_bound_of_cispo_is_of_a_weight_and_not_of_a_distance() -> None:
    assert not [*advice(make_spec(algorithm={"loss": "cispo", "clip": {"low": 1.0, "high": 5.0}}))]


@pytest.mark.parametrize("size", ["1", "64", "1000Ki", "900k"])
def test_a_size_without_its_unit_is_refused(size: str) -> None:
    broken = validate(raw_spec(trainer={"shmSize": size}), "demo").violations
    (said,) = [v for v in broken if v.field == "spec.trainer.shmSize"]
    assert said.fix == "write its unit, for example 1Gi"


def test_credentials_belong_into_a_secret_and_are_not_repeated() -> None:
    given = [
        ("WANDB_API_KEY", "abc"),
        ("HF_TOKEN", "abc"),
        ("AWS_SECRET_ACCESS_KEY", "abc"),
        ("A_TOKEN", "$(HF_TOKEN)"),
    ]
    found = [*advice(make_spec(env=[{"name": name, "value": value} for name, value in given]))]
    assert [v.field for v in found] == [f"spec.env[{i}].value" for i in range(3)]
    assert "abc" not in "".join(map(str, found)) and "TOKENIZERS_PARALLELISM" not in "".join(map(str, found))
    assert not [*advice(make_spec(env=[{"name": "TOKENIZERS_PARALLELISM", "value": "false"}]))]


def test_credentials_in_headers_come_from_variables() -> None:
    given = {"Authorization": "Bearer abc", "X-Api-Key": "$KEY", "Accept": "json"}
    (found,) = advice(make_spec(rewards=[{"http": {"url": "http://judge", "headers": given}}]))
    assert found.field == "spec.rewards[0].http.headers.Authorization" and "abc" not in str(found)
    agent = {"environment": {"url": "http://e", "headers": given}, "maxTurns": 2, "maxTokens": 2048}
    (found,) = advice(make_spec(rollout={"agent": agent}))
    assert found.field == "spec.rollout.agent.environment.headers.Authorization"


def test_held_out_responses_are_not_cut_by_a_default() -> None:
    """But whoever writes another length means it."""
    rollout, held_out = (
        {"sampling": {"maxTokens": 8192}},
        {"everySteps": 1, "sets": [{"name": "a", "files": ["/data/a.jsonl"]}]},
    )
    train = {"tokensPerMicroBatch": 16384}

    def said(**evaluation: Any) -> list[str]:
        return [v.field for v in advice(make_spec(rollout=rollout, train=train, evaluation=held_out | evaluation))]

    assert said() == ["spec.evaluation.sampling.maxTokens"]
    assert not said(sampling={"maxTokens": 512}) and not said(everySteps=0)
    greedy = [{"name": "a", "files": ["/data/a.jsonl"], "sampling": {"temperature": 0.6}}]
    assert said(sampling={"maxTokens": 8192}, sets=greedy) == ["spec.evaluation.sets[0].sampling.maxTokens"]
