"""Evaluation"""

from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath

from rljob_api.rules.engine import Check, Violation
from rljob_api.spec import RLJobSpec
from rljob_api.spec.train import VALIDATION


def name_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Names of sets are unique: their metrics are told apart by them."""
    count = Counter(s.name for s in spec.evaluation_sets)
    for i, s in enumerate(spec.evaluation.sets):
        if count[s.name] > 1:
            holder = "spec.data.validation" if s.name == VALIDATION and spec.data.validation else "another set"
            rule = f"{holder} has that name too, and metrics are told apart by it"
            yield Violation(f"spec.evaluation.sets[{i}].name", s.name, rule, "choose another name")


def greedy_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Several responses to a prompt need a temperature above 0."""
    e = spec.evaluation
    if spec.supervised:
        return
    fields = {VALIDATION: "spec.evaluation"} if spec.data.validation else {}
    fields |= {
        s.name: f"spec.evaluation.sets[{i}]" if s.samples_per_prompt else "spec.evaluation"
        for i, s in enumerate(e.sets)
    }
    for s in spec.evaluation_sets:
        if (s.samples_per_prompt or 1) > 1 and s.sampling and s.sampling.temperature == 0:
            rule = f"the set {s.name} is answered greedily, so that all responses to a prompt are equal"
            fix = "set a temperature above 0 in its sampling, or 1 response"
            yield Violation(f"{fields[s.name]}.samplesPerPrompt", str(s.samples_per_prompt), rule, fix)


def narrowing_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """topP, topK and minP have no effect on greedy answers."""
    e = spec.evaluation
    samplings = {"spec.evaluation": e.sampling} | {
        f"spec.evaluation.sets[{i}]": s.sampling for i, s in enumerate(e.sets)
    }
    for field, sampling in samplings.items():
        if sampling is None or sampling.temperature > 0:
            continue
        given = {"topP": (sampling.top_p, 1), "topK": (sampling.top_k, 0), "minP": (sampling.min_p, 0)}
        for name, (value, neutral) in given.items():
            if value != neutral:
                rule = "temperature 0 is greedy and does not read it"
                yield Violation(
                    f"{field}.sampling.{name}", f"{value:g}", rule, "set a temperature above 0, or remove it"
                )


def only_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """`evaluation.only` needs rollouts, and may not change the run whose checkpoint it measures."""
    if not spec.evaluation.only:
        return
    if spec.train.batches.replay:
        rule = "recorded batches are replayed without rollouts, which would answer held-out prompts"
        yield Violation("spec.evaluation.only", "true", rule, "remove spec.train.batches.replay")
    checkpoint = spec.checkpoint
    if checkpoint.resume_from and PurePosixPath(checkpoint.resume_from).parent == PurePosixPath(checkpoint.path):
        rule = "a job that goes back to a checkpoint of its own directory drops the steps and metrics after it"
        fix = "set spec.checkpoint.path to another directory, for the evaluation alone"
        yield Violation("spec.checkpoint.resumeFrom", checkpoint.resume_from, rule, fix)


RULES: tuple[Check, ...] = (only_violations, name_violations, greedy_violations, narrowing_violations)
