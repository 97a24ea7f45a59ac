"""Rules of the held-out sets of spec.evaluation."""

from collections import Counter
from collections.abc import Iterator

from rljob_api.spec import RLJobSpec
from rljob_api.spec.evaluation import VALIDATION
from rljob_api.validation.result import Violation


def name_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Every set has metrics of its own."""
    count = Counter(s.name for s in spec.evaluation_sets)
    for i, s in enumerate(spec.evaluation.sets):
        if count[s.name] > 1:
            holder = "spec.data.validation" if s.name == VALIDATION and spec.data.validation else "another set"
            rule = f"{holder} has that name too, and metrics are told apart by it"
            yield Violation(f"spec.evaluation.sets[{i}].name", s.name, rule, "choose another name")


def greedy_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Several responses differ."""
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


def only_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Somebody answers."""
    if spec.evaluation.only and spec.train.batches.replay:
        rule = "recorded batches are replayed without rollouts, which would answer held-out prompts"
        yield Violation("spec.evaluation.only", "true", rule, "remove spec.train.batches.replay")


RULES = (only_violations, name_violations, greedy_violations)
