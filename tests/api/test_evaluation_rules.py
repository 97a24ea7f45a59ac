"""Held-out sets: what contradicts itself, and what a set takes from the others' settings."""

from typing import Any

import pytest

from api.specs import make_spec, raw_spec
from rljob_api.rules import validate
from rljob_api.sizing.replica import longest_context

SET = {"name": "aime", "files": ["/data/aime.parquet"]}
WARM = {"temperature": 0.6}


def spec(validation: bool = True, **evaluation: Any) -> dict[str, Any]:
    return {
        "data": {"validation": ["/data/v.parquet"] if validation else []},
        "evaluation": {"everySteps": 1} | evaluation,
    }


def resumed(path: str, checkpoint: str) -> dict[str, Any]:
    return {"checkpoint": {"path": path, "resumeFrom": checkpoint}}


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        (spec(sets=[SET]), []),
        (spec(validation=False, sets=[SET]), []),
        (spec(validation=False), ["spec.evaluation"]),
        ({"evaluation": {"only": True}}, ["spec.evaluation"]),
        (spec(everySteps=0, only=True), []),
        (spec(only=True) | {"train": {"batches": {"replay": "/data/b"}}}, ["spec.evaluation.only"]),
        (spec(sets=[SET, SET]), ["spec.evaluation.sets[0].name", "spec.evaluation.sets[1].name"]),
        (spec(sets=[SET | {"name": "validation"}]), ["spec.evaluation.sets[0].name"]),
        (spec(validation=False, sets=[SET | {"name": "validation"}]), []),
        (spec(samplesPerPrompt=4), ["spec.evaluation.samplesPerPrompt"]),
        (spec(samplesPerPrompt=4, sampling=WARM), []),
        (spec(sets=[SET | {"samplesPerPrompt": 4}]), ["spec.evaluation.sets[0].samplesPerPrompt"]),
        (spec(sets=[SET | {"samplesPerPrompt": 4, "sampling": WARM}]), []),
        (spec(sets=[SET | {"name": "a/b"}]), ["spec.evaluation.sets[0].name"]),
        (spec(sets=[SET | {"name": ".."}]), ["spec.evaluation.sets[0].name"]),
        (spec(sampling={"topP": 0.9, "minP": 0.1}), ["spec.evaluation.sampling.topP", "spec.evaluation.sampling.minP"]),
        (spec(sampling=WARM | {"topP": 0.9, "topK": 20}), []),
        (spec(sets=[SET | {"sampling": {"topK": 20}}]), ["spec.evaluation.sets[0].sampling.topK"]),
        (spec(only=True) | resumed("/run", "/run/global_step_5"), ["spec.checkpoint.resumeFrom"]),
        (spec(only=True) | resumed("/run", "/run/./global_step_5/"), ["spec.checkpoint.resumeFrom"]),
        (spec(only=True) | resumed("/run/evaluation", "/run/global_step_5"), []),
        (spec() | resumed("/run", "/run/global_step_5"), []),
        (spec(sampling={"topP": 0}), ["spec.evaluation.sampling.topP"]),
        (spec(sampling={"stop": [""]}), ["spec.evaluation.sampling.stop[0]"]),
    ],
)
def test_a_contradiction_is_found_at_its_field(changes: dict[str, Any], fields: list[str]) -> None:
    assert [v.field for v in validate(raw_spec(**changes), "demo").violations] == fields


def test_a_set_is_answered_as_the_evaluation_says_unless_it_says_so_itself() -> None:
    own = {"samplesPerPrompt": 16, "sampling": {"temperature": 1, "maxTokens": 99}}
    job = make_spec(
        **spec(samplesPerPrompt=4, sampling=WARM | {"maxTokens": 50}, sets=[SET, SET | own | {"name": "b"}])
    )
    found = [(s.name, s.samples_per_prompt, s.sampling.temperature, s.sampling.max_tokens) for s in job.evaluation_sets]
    assert found == [("validation", 4, 0.6, 50), ("aime", 4, 0.6, 50), ("b", 16, 1.0, 99)]
    assert longest_context(job) == job.data.max_prompt_tokens + 99


def test_stop_texts_are_refused_where_a_response_is_resumed_in_the_middle_of_one() -> None:
    correction = {"algorithm": {"rolloutCorrection": {"importanceSampling": "token"}}}
    train = {"overSampling": 1.5, "partialRollouts": {}}
    changes = correction | {"train": train, "rollout": {"sampling": {"maxTokens": 8, "stop": ["</answer>"]}}}
    (violation,) = validate(raw_spec(**changes), "demo").violations
    assert violation.field == "spec.train.partialRollouts" and "would not be seen" in violation.rule
