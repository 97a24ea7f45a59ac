"""Guessed tokens, and the layer that guesses: what is refused, and in which words."""

from typing import Any

import pytest

from api.specs import make_spec, raw_spec
from rljob_api.families import FAMILIES
from rljob_api.rules import validate
from rljob_api.rules.model import model_violations

GLM = {"model_type": "glm4_moe", "num_nextn_predict_layers": 1}
S, M = "spec.rollout.speculation", "spec.model.multiTokenPrediction"


def broken(spec: dict[str, Any]) -> list[tuple[str, str]]:
    return [(v.field, v.rule) for v in validate(spec, "job").violations]


def of_model(config: dict[str, Any], **sections: Any) -> list[tuple[str, str, str]]:
    found = model_violations(make_spec(trainer={"device": "cpu"}, **sections), config)
    return [(v.field, v.rule, v.fix) for v in found]


@pytest.mark.parametrize(
    ("sections", "field", "rule"),
    [
        (
            {"rollout": {"speculation": {"method": "ngram"}, "vllmArgs": {"quantization": "fp8"}}},
            S,
            "servers with quantized weights are proven without guesses only",
        ),
        (
            {"rollout": {"speculation": {"method": "ngram"}}, "evaluation": {"sampling": {"minP": 0.1}}},
            "spec.evaluation.sampling.minP",
            "servers that guess tokens (spec.rollout.speculation) cannot draw by it",
        ),
        (
            {
                "model": {"path": "/m", "multiTokenPrediction": True},
                "trainer": {"transformerConfig": {"pipeline_model_parallel_layout": "Et|tL"}, "nodes": 2}
                | {"parallelism": {"pipeline": 2}},
            },
            "spec.trainer.transformerConfig.pipeline_model_parallel_layout",
            "the layer for multi-token prediction is proven in the last stage, where it is without this key",
        ),
        (
            {"trainer": {"transformerConfig": {"mtp_num_layers": 1}}},
            "spec.trainer.transformerConfig.mtp_num_layers",
            "this key is set by spec.model.multiTokenPrediction",
        ),
        (
            {"rollout": {"vllmArgs": {"speculative-config": {"method": "ngram"}}}},
            "spec.rollout.vllmArgs.speculative-config",
            "this key is set by spec.rollout.speculation",
        ),
    ],
)
def test_what_is_not_proven_is_refused_by_name(sections: dict[str, Any], field: str, rule: str) -> None:
    assert (field, rule) in broken(raw_spec(**sections))


def test_a_job_may_guess_with_each_method() -> None:
    for speculation in ({"method": "ngram"}, {"method": "eagle3", "draft": "/draft", "tokens": 4}, {"method": "mtp"}):
        model = {"path": "/m", "multiTokenPrediction": speculation["method"] == "mtp"}
        assert broken(raw_spec(model=model, rollout={"speculation": speculation})) == []


def test_the_layer_is_trained_where_it_is_proven_and_there_is_exactly_one() -> None:
    job = {"model": {"path": "/m", "multiTokenPrediction": True}}
    assert [v for v in of_model(GLM, **job) if v[0] == M] == []
    able = ", ".join(name for name, family in FAMILIES.items() if family.multi_token)
    assert (
        M,
        "nothing shows that this layer of qwen3 is trained right",
        f"set false, or use one of {able}",
    ) in of_model({"model_type": "qwen3"}, **job)
    for number, config in ((0, {"model_type": "glm4_moe"}), (3, GLM | {"num_nextn_predict_layers": 3})):
        rule = f"the model's config.json has num_nextn_predict_layers = {number}, and exactly one layer can be trained"
        assert (M, rule, "set false") in of_model(config, **job)


def test_an_eagle_model_needs_a_policy_that_shows_it_hidden_states() -> None:
    job = {"rollout": {"speculation": {"method": "eagle3", "draft": "/draft"}}}
    assert not [v for v in of_model({"model_type": "qwen3"}, **job) if v[0].startswith(S)]
    able = ", ".join(name for name, family in FAMILIES.items() if family.guesses("eagle3"))
    expected = (
        f"{S}.method",
        "vLLM shows an EAGLE-3 model no hidden states of glm4",
        f"use one of {able}, or another method",
    )
    assert expected in of_model({"model_type": "glm4"}, **job)
