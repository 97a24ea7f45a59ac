"""Contradictory settings of the algorithm are found before anything runs, each at its field."""

from typing import Any

import pytest

from api.specs import make_spec, raw_spec
from rljob_api.rules import validate

CRITIC = {"critic": {}}
FUNCTION = {"path": "/data/algorithm.py", "function": "f"}
UPDATED_ON_HOST = {"trainer": {"offload": {"update": True}}}
CORRECTED = {"algorithm": {"rolloutCorrection": {"importanceSampling": "token"}}}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"train": {"samplesPerPrompt": 1}}, "spec.train.samplesPerPrompt"),
        ({"algorithm": {"advantage": "gae"}}, "spec.algorithm.advantage"),
        (CRITIC, "spec.critic"),
        ({"algorithm": {"advantage": "rloo", "group": {"divideByStd": False}}}, "spec.algorithm.group"),
        ({"algorithm": {"gamma": 0.9}}, "spec.algorithm.gamma"),
        ({"algorithm": {"gaeLambda": 0.9}}, "spec.algorithm.gaeLambda"),
        ({"algorithm": {"advantage": "python", "advantageFunction": FUNCTION, "gamma": 0.9}}, "spec.algorithm.gamma"),
        ({"algorithm": {"loss": "python", "lossFunction": FUNCTION, "clip": {"high": 0.3}}}, "spec.algorithm.clip"),
        ({"algorithm": {"loss": "gspo", "clip": {"low": 3e-4, "high": 4e-4}}}, "spec.algorithm.aggregation"),
        ({"algorithm": {"loss": "gspo", "aggregation": "sequenceMeanTokenMean"}}, "spec.algorithm.clip"),
        ({"algorithm": {"loss": "cispo", "clip": {"dual": 3}}}, "spec.algorithm.clip.dual"),
        ({"algorithm": {"rolloutCorrection": {"bypass": True, "importanceSampling": "token"}}},
         "spec.algorithm.rolloutCorrection.importanceSampling"),
        ({"algorithm": {"rolloutCorrection": {"reject": {"low": 1.5}}}}, "spec.algorithm.rolloutCorrection.reject"),
        ({"algorithm": {"kl": {"coefficient": 0.1, "estimator": "k1"}}}, "spec.algorithm.kl.estimator"),
        ({"algorithm": {"kl": {"adaptive": {"target": 0.1}}}}, "spec.algorithm.kl.coefficient"),
        ({"reference": {"path": "/data/other"}}, "spec.reference"),
        ({"reference": {"offload": False}}, "spec.reference"),
        ({"algorithm": {"dynamicSampling": {}}, "train": {"batches": {"replay": "/data/batches"}}}, "spec.algorithm.dynamicSampling"),
        ({"algorithm": {"overlong": {"bufferTokens": 8}}}, "spec.algorithm.overlong.bufferTokens"),
        ({"algorithm": {"difficulty": {"low": 1}}}, "spec.algorithm.difficulty"),
        ({"algorithm": {"difficulty": {}, "advantage": "reinforce++"}, "train": {"samplesPerPrompt": 1}}, "spec.algorithm.difficulty"),
        ({"train": {"staleness": 1}}, "spec.train.staleness"),
        ({"train": {"staleness": 1}, "algorithm": {"rolloutCorrection": {"reject": {}}}}, "spec.train.staleness"),
        ({"train": {"staleness": 1, "batches": {"replay": "/data/batches"}}, "algorithm": {"rolloutCorrection": {"bypass": True}}},
         "spec.train.staleness"),
        ({"train": {"staleness": 2}, "rollout": {"interrupt": "continue", "sampling": {"maxTokens": 8, "stop": ["#"]}}} | CORRECTED,
         "spec.rollout.interrupt"),
        ({"rollout": {"interrupt": "keep"}}, "spec.rollout.interrupt"),
        ({"rollout": {"interrupt": "keep", "placement": "colocated"}}, "spec.rollout.interrupt"),
        ({"train": {"staleness": 2}, "rollout": {"interrupt": "keep", "sampling": {"maxTokens": 8, "stop": ["#"]}}} | CORRECTED,
         "spec.rollout.interrupt"),
        ({"algorithm": {"rolloutCorrection": {"routerReplay": "trainer"}}}, "spec.algorithm.rolloutCorrection.routerReplay"),
        ({"algorithm": {"rolloutCorrection": {"routerReplay": "trainer", "bypass": True}}, "train": {"miniBatches": 2}},
         "spec.algorithm.rolloutCorrection.routerReplay"),
        ({"algorithm": {"rolloutCorrection": {"routerReplay": "trainer"}}, "train": {"epochsPerStep": 2},
          "trainer": {"nodes": 2, "parallelism": {"pipeline": 2}, "recompute": {"granularity": "full"}}},
         "spec.algorithm.rolloutCorrection.routerReplay"),
        ({"algorithm": {"rolloutCorrection": {"routerReplay": "rollout"}},
          "trainer": {"device": "gpu", "transformerConfig": {"moe_router_fusion": True}}},
         "spec.algorithm.rolloutCorrection.routerReplay"),
        ({"algorithm": {"rolloutCorrection": {"routerReplay": "rollout"}},
          "rollout": {"agent": {"python": {"path": "/a.py"}, "maxTurns": 2, "maxTokens": 64}}}, "spec.algorithm.rolloutCorrection.routerReplay"),
        ({"train": {"overSampling": 1.3}}, "spec.train.overSampling"),
        ({"train": {"overSampling": 1.5, "batches": {"replay": "/data/batches"}}}, "spec.train.overSampling"),
        ({"train": {"partialRollouts": {}}} | CORRECTED, "spec.train.partialRollouts"),
        ({"train": {"overSampling": 1.5, "partialRollouts": {}}}, "spec.train.partialRollouts"),
        ({"train": {"overSampling": 1.5, "partialRollouts": {}}, "algorithm": {"advantage": "remax", "rolloutCorrection": {"bypass": True}}},
         "spec.train.partialRollouts"),
        ({"train": {"overSampling": 1.5, "partialRollouts": {"maxAge": 1}, "staleness": 1}} | CORRECTED, "spec.train.partialRollouts.maxAge"),
        ({"rewards": [{"rule": "math", "vllm": {"url": "http://judge:8000"}}]}, "spec.rewards[0]"),
        ({"rewards": [{"model": {"path": "/m"}}], "algorithm": {"dynamicSampling": {}}}, "spec.algorithm.dynamicSampling"),
        ({"rewards": [{"model": {"path": "/m"}}], "algorithm": {"advantage": "remax"}}, "spec.algorithm.advantage"),
        ({"rewards": [{"model": {"path": "/m"}}], "evaluation": {"everySteps": 1}, "data": {"validation": ["/v.parquet"]}},
         "spec.evaluation"),
        ({"train": {"optimizer": {"learningRate": 1e-5, "minLearningRate": 1e-4, "decay": "cosine"}}}, "spec.train.optimizer.minLearningRate"),
        ({"train": {"optimizer": {"minLearningRate": 1e-7}}}, "spec.train.optimizer.minLearningRate"),
        ({"train": {"optimizer": {"warmupSteps": 10, "decay": "linear"}}}, "spec.train.optimizer.warmupSteps"),
        ({"algorithm": {"advantage": "gae"}, "critic": {"warmupSteps": 10}}, "spec.critic.warmupSteps"),
        ({"train": {"optimizer": {"momentsDtype": "bfloat16", "beta1": 0.995}}} | UPDATED_ON_HOST, "spec.train.optimizer.beta1"),
        ({"train": {"optimizer": {"momentsDtype": "bfloat16", "beta2": 0.999}}} | UPDATED_ON_HOST, "spec.train.optimizer.beta2"),
        ({"train": {"optimizer": {"momentsDtype": "bfloat16"}}, "trainer": {"device": "cpu"}}, "spec.train.optimizer.momentsDtype"),
        ({"train": {"optimizer": {"momentsDtype": "bfloat16"}}, "trainer": {"device": "gpu"}, "model": {"dtype": "bfloat16"}},
         "spec.train.optimizer.momentsDtype"),
        ({"algorithm": {"advantage": "gae"}, "critic": {"optimizer": {"momentsDtype": "bfloat16"}}} | UPDATED_ON_HOST,
         "spec.critic.optimizer.momentsDtype"),
    ],
)  # fmt: skip
def test_each_contradiction_is_found_at_its_field(changes: dict[str, Any], field: str) -> None:
    assert [v.field for v in validate(raw_spec(**changes), "demo").violations] == [field]


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": {"advantage": "gae", "gamma": 0.99, "gaeLambda": 0.95}, "critic": {}, "train": {"samplesPerPrompt": 1}},
        {"algorithm": {"advantage": "reinforce++", "gamma": 0.99}, "train": {"samplesPerPrompt": 1}},
        {"algorithm": {"advantage": "python", "advantageFunction": FUNCTION}, "critic": {}, "train": {"samplesPerPrompt": 1}},
        {"algorithm": {"loss": "gspo", "aggregation": "sequenceMeanTokenMean", "clip": {"low": 3e-4, "high": 4e-4}}},
        {"algorithm": {"kl": {"coefficient": 0.1, "estimator": "k1", "where": "reward", "adaptive": {"target": 0.05}}}},
        {"algorithm": {"rolloutCorrection": {"bypass": True, "reject": {"level": "sequence"}}}},
        {"algorithm": {"rolloutCorrection": {"importanceSampling": "token"}}, "train": {"staleness": 1}},
        {"algorithm": {"rolloutCorrection": {"bypass": True}}, "train": {"staleness": 1}},
        {"algorithm": {"rolloutCorrection": {"routerReplay": "trainer"}}, "train": {"miniBatches": 2}},
        {"algorithm": {"rolloutCorrection": {"routerReplay": "rollout", "bypass": True}}},
        {"train": {"staleness": 8}, "rollout": {"interrupt": "continue"}} | CORRECTED,
        {"train": {"staleness": 8}, "rollout": {"interrupt": "keep"}} | CORRECTED,
        {"train": {"overSampling": 1.5}},
        {"train": {"overSampling": 1.5}, "algorithm": {"dynamicSampling": {}}},
        {"train": {"overSampling": 1.1, "promptsPerStep": 10}},
        {"train": {"overSampling": 2, "partialRollouts": {}}} | CORRECTED,
        {"train": {"overSampling": 1.5, "partialRollouts": {"maxAge": 2}, "staleness": 1}} | CORRECTED,
        {"algorithm": {"dynamicSampling": {}, "overlong": {"bufferTokens": 4, "filter": True}, "clip": {"high": 0.28}}},
        {"train": {"optimizer": {"learningRate": 1e-5, "warmupSteps": 2, "decay": "cosine", "minLearningRate": 1e-6}}},
        {"rewards": [{"rule": "math", "weight": 0.5}, {"model": {"path": "/m"}}]},
        {"train": {"optimizer": {"momentsDtype": "bfloat16", "beta2": 0.99}}} | UPDATED_ON_HOST,
    ],
)  # fmt: skip
def test_what_belongs_together_is_accepted(changes: dict[str, Any]) -> None:
    assert validate(raw_spec(**changes), "demo").violations == ()


QUANTIZED = {"vllmArgs": {"quantization": "fp8"}}


@pytest.mark.parametrize(
    ("rollout", "given", "chosen"),
    [
        ({}, {}, "none"),
        (QUANTIZED, {}, "token"),
        (QUANTIZED, {"importanceSampling": "none"}, "none"),
        (QUANTIZED, {"importanceSampling": "sequence"}, "sequence"),
        (QUANTIZED, {"bypass": True}, "none"),
    ],
)
def test_quantized_rollouts_are_corrected_for_unless_the_job_says_otherwise(
    rollout: dict[str, Any], given: dict[str, Any], chosen: str
) -> None:
    changes = {"rollout": {"sampling": {"maxTokens": 8}} | rollout, "algorithm": {"rolloutCorrection": given}}
    assert make_spec(**changes).rollout_correction.importance_sampling == chosen
    assert validate(raw_spec(**changes), "demo").violations == ()


@pytest.mark.parametrize(
    ("gang", "fix"),
    [({}, "set spec.critic.offload.update: true, or remove it"), ({"processesPerNode": 1}, "remove it")],
)
def test_the_fix_of_a_critics_moments_is_one_that_its_ranks_accept(gang: dict[str, Any], fix: str) -> None:
    critic = {"optimizer": {"momentsDtype": "bfloat16"}} | gang
    (found,) = validate(raw_spec(algorithm={"advantage": "gae"}, critic=critic), "demo").violations
    assert (found.field, found.fix) == ("spec.critic.optimizer.momentsDtype", fix)


@pytest.mark.parametrize("prompts", [3, 7, 64, 256, 1000])
@pytest.mark.parametrize("share", [1.3, 1.37, 1.9999])
def test_the_share_that_is_named_begins_a_whole_number_of_prompts(prompts: int, share: float) -> None:
    def broken(given: float) -> list[str]:
        spec = raw_spec(train={"overSampling": given, "promptsPerStep": prompts})
        return [v.fix for v in validate(spec, "demo").violations if v.field == "spec.train.overSampling"]

    for fix in broken(share):
        assert not broken(float(fix.removeprefix("set ").partition(",")[0]))
