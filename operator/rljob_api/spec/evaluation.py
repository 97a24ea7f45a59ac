"""spec.evaluation: what is measured on held-out data, and how."""

from typing import Annotated

from pydantic import Field, StringConstraints

from rljob_api.base import Model
from rljob_api.spec.common import AbsolutePath, Fraction, NonNegativeFloat, NonNegativeInt, Number, Sampling

VALIDATION = "validation"
"""Name of the set that data.validation makes."""
Samples = Annotated[int, Field(ge=1, le=1024)]


class EvaluationSampling(Sampling):
    """How held-out prompts are answered (`task: rl`)."""

    temperature: NonNegativeFloat = 0.0
    """Temperature of generation; 0 is greedy."""
    top_p: Annotated[Number, Field(gt=0, le=1)] = 1.0
    """Sample from the most probable tokens whose probabilities add up to this; 1: from all. Needs a temperature above 0."""
    top_k: NonNegativeInt = 0
    """Sample from this number of the most probable tokens; 0: from all. Needs a temperature above 0."""
    min_p: Fraction = 0.0
    """Sample from the tokens whose probability is at least this share of the most probable token's; 0: from all. Needs a temperature above 0."""


class EvaluationSet(Model):
    """Held-out prompts with a name of their own (`task: rl`)."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*$", max_length=32)]
    """Names its metrics: `evaluation_sets/NAME/avg@4`. `validation` is the set of `data.validation`."""
    files: Annotated[list[AbsolutePath], Field(min_length=1, max_length=1024)]
    """Files of prompts, read as those of `data`, by the same keys."""
    samples_per_prompt: Samples | None = None
    """Responses per prompt; unset: `evaluation.samplesPerPrompt`."""
    sampling: EvaluationSampling | None = None
    """How the set's prompts are answered, in place of the whole of `evaluation.sampling`; unset: `evaluation.sampling`."""


class EvaluationSpec(Model):
    """Measurements on held-out data: rewards of responses (`task: rl`), or loss, perplexity and preference accuracy (the other tasks)."""

    every_steps: NonNegativeInt = 0
    """Steps between evaluations; another one comes before the first step and after the last. 0: never."""
    only: bool = False
    """Evaluate the model, or the checkpoint that the job resumes from, and end. Nothing is trained, saved or exported, and `everySteps` is not
    read."""
    samples_per_prompt: Samples = 1
    """Responses per held-out prompt, for `avg@k`, `pass@k` and `maj@k`. More than one needs a temperature above 0. For `task: rl`."""
    sampling: EvaluationSampling = EvaluationSampling()
    """How held-out prompts are answered; greedily by default. For `task: rl`."""
    sets: Annotated[list[EvaluationSet], Field(max_length=8)] = []
    """Sets of held-out prompts, each with metrics of its own, in addition to `data.validation`. For `task: rl`."""
    correct_above: Number = 0.5
    """A response is correct, for `pass@k` and `maj@k`, when its reward is above this. For `task: rl`."""

    @property
    def takes_place(self) -> bool:
        return self.only or self.every_steps > 0
