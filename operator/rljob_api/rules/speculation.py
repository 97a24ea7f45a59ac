"""Guessed tokens: `spec.rollout.speculation`, and the layer that guesses, `spec.model.multiTokenPrediction`. Combinations that are not proven are
refused."""

from collections.abc import Iterator
from typing import Any

from rljob_api.families import FAMILIES, family_of
from rljob_api.rules.engine import COLOCATED, Check, Rule, Violation, field, present
from rljob_api.spec import RLJobSpec
from rljob_api.spec.roles import Speculation
from rljob_api.type_errors import as_written

SPECULATION = "rollout.speculation"
METHOD = field(f"{SPECULATION}.method")
DRAFT = present(f"{SPECULATION}.draft")
TRAINED = "model.multiTokenPrediction"

WITHOUT = {
    "recorded batches are replayed, and nothing is generated": present("train.batches.replay"),
    "the experts of a token that servers return are proven without guesses only": field(
        "algorithm.rolloutCorrection.routerReplay"
    ).equals("rollout"),
    "requests that are kept while a policy is applied are proven without guesses only": field(
        "rollout.interrupt"
    ).equals("keep"),
    "servers of data-parallel copies are proven without guesses only": field("rollout.dataParallel") > 1,
    "servers that are cut into pipeline stages are proven without guesses only": field("rollout.pipelineParallel") > 1,
    "adapters that are sent alone are proven without guesses only": present("model.lora")
    & field("model.lora.sync").equals("adapters"),
    "responses to prompts with images are proven without guesses only": present("data.imageKey"),
    "a colocated server gives up the memory of all weights while it sleeps, and guesses by a model are proven without that only": COLOCATED
    & ~METHOD.equals("ngram"),
}
"""What servers that guess cannot do, and when a job needs it."""

UNTRAINED = {
    "the layer is proven in models that are trained whole": present("model.lora"),
    "its router is proven without replay": ~field("algorithm.rolloutCorrection.routerReplay").equals("none"),
    "a pass without its loss gives it no gradient to reduce": field("trainer.overlap.gradReduce"),
}
"""What the layer for multi-token prediction is not trained with."""

OBJECT_RULES = (
    *(Rule(TRAINED, ~field(TRAINED) | ~needed, problem, "set false") for problem, needed in UNTRAINED.items()),
    Rule(
        f"{SPECULATION}.method",
        ~present(SPECULATION) | ~METHOD.equals("mtp") | field(TRAINED),
        "the layer for multi-token prediction is not trained, and would guess for a policy that has moved on",
        "set spec.model.multiTokenPrediction: true, or another method",
    ),
    Rule(
        f"{SPECULATION}.draft",
        ~present(SPECULATION) | ~METHOD.equals("eagle3") | DRAFT,
        "EAGLE-3 guesses with a model of its own",
        "name the directory of one that was made for this policy's model, or set another method",
        value="unset",
    ),
    Rule(
        f"{SPECULATION}.draft",
        ~present(SPECULATION) | METHOD.equals("eagle3") | ~DRAFT,
        "{0} guesses without a model",
        "remove it, or set method: eagle3",
        (METHOD,),
    ),
    *(
        Rule(SPECULATION, ~present(SPECULATION) | ~needed, problem, "remove it", value="set")
        for problem, needed in WITHOUT.items()
    ),
)


def learning_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """A draft is trained where that is proven."""
    speculation = spec.rollout.speculation
    if not speculation or not speculation.learns:
        return
    for needed, rule in _unlearnt(spec, speculation):
        if needed:
            rate = f"{speculation.learning_rate:g}"
            yield Violation(f"spec.{SPECULATION}.learningRate", rate, rule, "remove it")


def _unlearnt(spec: RLJobSpec, speculation: Speculation) -> Iterator[tuple[bool, str]]:
    """What a draft is not trained with, and whether a job needs it."""
    cut = spec.trainer.parallelism
    kept = "servers on several devices are proven to keep the draft that they began with only"
    yield speculation.method != "eagle3", f"spec.{SPECULATION}.method {speculation.method} guesses without a draft"
    yield spec.model.lora is not None, "a draft is proven to be trained with policies that are trained whole only"
    yield cut.pipeline > 1, "a draft is proven to be trained where each rank has all layers only"
    yield cut.context > 1, "a draft is proven to be trained where each rank has whole samples only"
    yield spec.rollout.tensor_parallel > 1, kept


def sampling_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """vLLM 0.32 refuses requests with min_p when it speculates (vllm/sampling_params.py, `_validate_spec_decode`)."""
    if not spec.rollout.speculation:
        return
    samplings = {"spec.evaluation": spec.evaluation.sampling} | {
        f"spec.evaluation.sets[{i}]": s.sampling for i, s in enumerate(spec.evaluation.sets)
    }
    for where, sampling in samplings.items():
        if sampling and sampling.min_p:
            rule = "servers that guess tokens (spec.rollout.speculation) cannot draw by it"
            yield Violation(f"{where}.sampling.minP", f"{sampling.min_p:g}", rule, "set topP in its place")


def quantization_violations(spec: RLJobSpec) -> Iterator[Violation]:
    if spec.rollout.speculation and spec.rollout.quantized:
        rule = "servers with quantized weights are proven without guesses only"
        yield Violation("spec.rollout.speculation", "set", rule, "remove it, or spec.rollout.vllmArgs.quantization")


def layout_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """megatron-core wants the layer named in a layout of its own."""
    key = "pipeline_model_parallel_layout"
    if spec.model.multi_token_prediction and key in spec.trainer.transformer_config:
        rule = "the layer for multi-token prediction is proven in the last stage, where it is without this key"
        value = as_written(spec.trainer.transformer_config[key])
        yield Violation(
            f"spec.trainer.transformerConfig.{key}", value, rule, f"remove it, or set spec.{TRAINED}: false"
        )


def multi_token_violations(spec: RLJobSpec, config: dict[str, Any]) -> Iterator[Violation]:
    """Of a config.json whose model's layer is to be trained."""
    family, layers = family_of(config), config.get("num_nextn_predict_layers") or 0
    if not spec.model.multi_token_prediction or family is None:
        return
    rule, fix = "", "set false"
    if not family.multi_token:
        able = ", ".join(f.model_type for f in FAMILIES.values() if f.multi_token)
        rule, fix = (
            f"nothing shows that this layer of {family.model_type} is trained right",
            f"set false, or use one of {able}",
        )
    elif layers != 1:
        rule = f"the model's config.json has num_nextn_predict_layers = {layers}, and exactly one layer can be trained"
    if rule:
        yield Violation(f"spec.{TRAINED}", "true", rule, fix)


def speculation_violations(spec: RLJobSpec, config: dict[str, Any]) -> Iterator[Violation]:
    """Against the model's config.json."""
    yield from multi_token_violations(spec, config)
    speculation, family, device = spec.rollout.speculation, family_of(config), spec.trainer.device
    if not speculation or not family or speculation.method in family.guesses_on(device):
        return
    able = ", ".join(f.model_type for f in FAMILIES.values() if speculation.method in f.guesses_on(device))
    rule = f"nothing shows that servers of {family.model_type} on a {device} draw from the policy with such guesses"
    yield Violation(f"spec.{SPECULATION}.method", speculation.method, rule, f"use one of {able}, or another method")


RULES: tuple[Check, ...] = (
    *OBJECT_RULES,
    learning_violations,
    sampling_violations,
    quantization_violations,
    layout_violations,
)
