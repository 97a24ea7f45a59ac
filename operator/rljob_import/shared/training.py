"""How long a job runs, in steps, and what depends on it: steps are the other system's where it counts them as we do. And names of algorithms,
formulas that an RLJob does not have, and how held-out prompts are answered."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from rljob_import.settings import Settings, show
from rljob_import.table import Field, Problem, Said


@dataclass(frozen=True)
class Length:
    """Keys of a number of steps, which wins, and of epochs; `per_step` rows are used in a step. No key of steps: epochs alone count."""

    steps: str
    epochs: str
    per_step: int
    first: bool = False
    """Whether what ends first counts, in place of the steps."""

    def total(self, settings: Settings) -> int | None:
        """Steps of the whole job; None: it takes the number of rows to say."""
        of_epochs = self._of_epochs(settings)
        if not self._counted(settings):
            return of_epochs
        steps = settings.integer(self.steps)
        return min(steps, of_epochs) if self.first and of_epochs else steps

    def _of_epochs(self, settings: Settings) -> int | None:
        if settings.options.rows is None or settings[self.epochs] is None:
            return None
        return max(1, int(settings.options.rows // max(1, self.per_step) * settings.number(self.epochs)))

    def _counted(self, settings: Settings) -> bool:
        return bool(self.steps) and settings[self.steps] is not None and settings.number(self.steps) > 0

    def said(self, settings: Settings) -> Iterator[Said]:
        total = self.total(settings)
        if self._counted(settings):
            ended = self.first and total != settings.integer(self.steps)
            yield settings.field("train.steps", total, *([self.epochs] if ended else []), self.steps)
            if self.first and settings.options.rows is None:
                text = f"it ends there after {settings.number(self.epochs):g} epochs if these come first: give --rows N"
                yield settings.changed(self.epochs, text)
            elif self.epochs in settings and not ended:
                yield settings.implied(self.epochs, f"{self.steps} decides")
        elif settings[self.epochs] is None:
            yield Problem(self.steps, f"neither {self.steps} nor {self.epochs} says how long to train")
        elif total is None:
            yield settings.field("train.epochs", settings.number(self.epochs), self.epochs)
        else:
            why = f"{settings.options.rows} rows of --rows, {self.per_step} in a step"
            yield settings.field("train.steps", total, self.epochs, why=why)


@dataclass(frozen=True)
class Warmup:
    """Keys of warm-up steps (above 0 they win) and of their share of all optimizer steps."""

    steps: str
    ratio: str
    field: str = "train.optimizer.warmupSteps"

    def said(self, settings: Settings, total: int | None, updates: int, counted: int = 1) -> Iterator[Said]:
        """`total` steps of `updates` optimizer steps each. `counted`: optimizer steps until the other system's schedule moves on by one."""
        given, ratio = settings[self.steps], settings[self.ratio]
        if given is not None and settings.number(self.steps) > 0:
            why = f"x {counted} optimizer steps of a training step" if counted > 1 else ""
            yield settings.field(self.field, settings.integer(self.steps) * counted, self.steps, why=why)
        elif ratio is None or not settings.number(self.ratio):
            return
        elif total is None:
            text = "a share of the optimizer steps, whose number depends on the rows of the data: give --rows N"
            yield settings.lacking(self.ratio, text)
        else:
            steps = int(settings.number(self.ratio) * total * updates)
            yield settings.field(self.field, steps, self.ratio, why=f"of {total * updates} optimizer steps")


AGGREGATIONS = {
    "token-mean": "tokenMean",
    "seq-mean-token-mean": "sequenceMeanTokenMean",
    "seq-mean-token-sum": "sequenceMeanTokenSum",
    "seq-mean-token-sum-norm": "sequenceMeanTokenSumNorm",
}
ESTIMATORS = {"low_var_kl": "k3", "k3": "k3", "mse": "k2", "k2": "k2", "kl": "k1", "k1": "k1"}
"""verl's words, which its relatives have as well, and ours."""


def kl_estimator(settings: Settings, key: str, known: str, in_loss: bool) -> Iterator[Said]:
    """`known`: the estimators that the message lists. `in_loss`: the penalty is differentiated, and not taken from rewards."""
    ours = ESTIMATORS.get(settings[key])
    if ours == "k1" and in_loss:
        yield settings.changed(key, "k2 in its place: the expected gradient of k1 in the loss is zero")
        ours = "k2"
    elif ours is None:
        yield settings.lacking(key, f"the estimators are {known}; k3 in its place")
    yield settings.field("algorithm.kl.estimator", ours or "k3", key)


PAGE = "docs/algorithms.md#functions-of-your-own"


def own(settings: Settings, key: str, part: Literal["advantage", "loss"], known: Iterable[str]) -> Iterator[Said]:
    """What a key becomes whose value is none of the `known`: refused, unless --formula names a file with a function `advantage` or `loss`."""
    path = settings.options.formula
    if path is None:
        text = f"{show(settings[key])} is none of {', '.join(dict.fromkeys(known))}"
        yield settings.problem(f"{text}: write it as a function ({PAGE}), and name its file with --formula", key)
        return
    yield settings.field(f"algorithm.{part}", "python", key)
    yield Field(f"algorithm.{part}Function.path", path, "--formula")
    yield Field(f"algorithm.{part}Function.function", part, "--formula")
    yield settings.changed(key, f"the function `{part}` of {path} in its place ({PAGE})")


def responses(settings: Settings, sampled: bool, top_p: str, top_k: str, count: str) -> Iterator[Said]:
    """What the keys for the narrowed distribution and the responses per prompt become. They say nothing unless responses are `sampled`."""
    if not sampled:
        for key in (top_p, top_k, count):
            if key in settings:
                yield settings.implied(key, "held-out prompts are answered greedily")
        return
    yield settings.field("evaluation.sampling.topP", float(settings.number(top_p)), top_p)
    yield settings.field("evaluation.sampling.topK", max(0, settings.integer(top_k)), top_k)
    yield settings.field("evaluation.samplesPerPrompt", settings.integer(count), count)
