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
    found = model_violations(make_spec(**{"trainer": {"device": "cpu"}} | sections), config)
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


EAGLE = {"method": "eagle3", "draft": "/draft", "learningRate": 1e-4}


@pytest.mark.parametrize(
    ("sections", "rule"),
    [
        ({"rollout": {"speculation": {"method": "ngram", "learningRate": 1e-4}}}, "guesses without a draft"),
        ({"model": {"lora": {"rank": 8}}}, "policies that are trained whole"),
        ({"trainer": {"nodes": 2, "parallelism": {"pipeline": 2}}}, "where each rank has all layers only"),
        ({"trainer": {"nodes": 2, "parallelism": {"context": 2}}}, "where each rank has whole samples only"),
        ({"rollout": {"speculation": EAGLE, "tensorParallel": 2}}, "servers on several devices are proven to keep"),
    ],
)
def test_a_draft_is_trained_only_where_that_is_proven(sections: dict[str, Any], rule: str) -> None:
    ((field, found),) = broken(raw_spec(**{"rollout": {"speculation": EAGLE}} | sections))
    assert field == f"{S}.learningRate"
    assert rule in found


def test_a_draft_is_trained_on_ranks_that_divide_its_policy_and_the_samples() -> None:
    layout = {"nodes": 4, "parallelism": {"tensor": 2}}
    assert broken(raw_spec(trainer=layout, rollout={"speculation": EAGLE})) == []


def test_a_draft_is_trained_on_gpus() -> None:
    assert broken(raw_spec(trainer={"device": "gpu"}, rollout={"speculation": EAGLE})) == []


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


PROVEN = {
    ("cpu", "mtp"): ["glm4_moe", "deepseek_v3"],
    ("cpu", "eagle3"): ["qwen3"],
    ("cpu", "ngram"): ["qwen3"],
    ("gpu", "mtp"): ["glm4_moe"],
    ("gpu", "eagle3"): ["qwen3"],
    ("gpu", "ngram"): ["qwen3"],
}
"""By tests/trainer/server/test_speculation.py and benchmarks/guesses.py."""


@pytest.mark.parametrize(("device", "method"), PROVEN)
def test_a_family_s_servers_guess_by_methods_that_are_proven_with_it(device: str, method: str) -> None:
    speculation = {"method": method} | ({"draft": "/draft"} if method == "eagle3" else {})
    job = {"rollout": {"speculation": speculation}, "model": {"path": "/m", "multiTokenPrediction": method == "mtp"}}
    assert broken(raw_spec(trainer={"device": device}, **job)) == []
    refused = {
        kind: rule
        for kind in FAMILIES
        for field, *rule in of_model(
            {"model_type": kind, "num_nextn_predict_layers": 1}, trainer={"device": device}, **job
        )
        if field == f"{S}.method"
    }
    assert [kind for kind in FAMILIES if kind not in refused] == PROVEN[device, method]
    assert refused["glm4"] == [
        f"nothing shows that servers of glm4 on a {device} draw from the policy with such guesses",
        f"use one of {', '.join(PROVEN[device, method])}, or another method",
    ]


@pytest.mark.parametrize("method", ["mtp", "eagle3"])
def test_a_colocated_server_does_not_guess_by_weights_that_it_gives_up(method: str) -> None:
    speculation = {"method": method} | ({"draft": "/draft"} if method == "eagle3" else {})
    rollout = {"placement": "colocated", "sampling": {"maxTokens": 8}}
    model = {"path": "/m", "multiTokenPrediction": method == "mtp"}
    assert broken(raw_spec(model=model, rollout=rollout | {"speculation": {"method": "ngram"}})) == []
    ((field, rule),) = broken(raw_spec(model=model, rollout=rollout | {"speculation": speculation}))
    assert (field, rule.split(",")[0]) == (S, "a colocated server gives up the memory of all weights while it sleeps")
