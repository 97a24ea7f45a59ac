"""Values that are allowed and almost surely a mistake, such as a clip bound of 1.28 where 0.28 is meant. They are said, and never refused.

A window is wide: no recipe, and no published setting that an importer reads, lies outside. Defaults lie inside. `advice` says them of a spec, and
`warnings` has the API server say them as a manifest is applied.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rljob_api.quantity import parse, show
from rljob_api.rules.engine import Violation
from rljob_api.rules.fields import leaves
from rljob_api.rules.pods import templates
from rljob_api.sizing.layout import Amounts
from rljob_api.spec import RLJobSpec
from rljob_api.spec.run import CheckpointSpec
from rljob_api.spec.train import EvaluationSampling
from rljob_api.type_errors import as_written, path_of

MEBI = 2**20


@dataclass(frozen=True, slots=True)
class Window:
    """What a number is in every job that we know of."""

    low: float
    high: float
    reason: str
    """What a value outside does; one above, where `below` is not empty."""
    fix: str
    is_size: bool = False
    """Bytes, which a spec has as a text with a unit."""
    below: str = ""
    """What a value below does, where that differs."""

    @property
    def outside(self) -> str:
        """What values on both sides do."""
        return f"above it, {self.reason}; below it, {self.below}" if self.below else self.reason


ANY = float("inf")
_CLIP = "it is a distance of the ratio from 1: from 1 on hardly anything is clipped"
_ENDED = "attempts in order would be ended"
_SECONDS = "it is a time in seconds"
_STILL, _UNSTEADY = "the moments would hardly move", "the moments would hardly average"
OPTIMIZER = {
    "learningRate": Window(1e-9, 1e-2, "AdamW diverges", "1e-6 is usual in RL, 1e-5 in SFT, 1e-4 for adapters", below="the model stands still"),
    "minLearningRate": Window(0, 1e-2, "it is the rate at the end of the decay", "lower it"),
    "weightDecay": Window(0, 1, "it shrinks every weight by this times the rate, each step", "0.01 to 0.1 is usual"),
    "beta1": Window(0.5, 0.99, _STILL, "0.9 is usual", below=_UNSTEADY),
    "beta2": Window(0.8, 0.9999, _STILL, "0.95 to 0.999 is usual", below=_UNSTEADY),
    "epsilon": Window(1e-16, 1e-3, "it is added to the root of the second moment", "1e-8 is usual"),
    "clipGrad": Window(0, 100, "it bounds the norm of the gradient: such norms hardly occur", "1.0 is usual, 0 is off"),
}  # fmt: skip
SAMPLING = {
    "temperature": Window(0, 2, "tokens are drawn almost at random", "1.0 is the model's own distribution"),
    "topP": Window(0.1, 1, "almost every token but the likeliest is left out", "set temperature: 0 for the likeliest token"),
    "maxTokens": Window(1, 10**6, "no response of such a length is known", "lower it"),
}  # fmt: skip
SHARED = Window(
    64 * MEBI, ANY, "NCCL and vLLM exchange in it, and fail where it is full", "1Gi is the default", is_size=True
)
WINDOWS: Mapping[str, Window] = {
    **{f"train.optimizer.{key}": window for key, window in OPTIMIZER.items()},
    **{f"critic.optimizer.{key}": window for key, window in OPTIMIZER.items()},
    **{f"rollout.sampling.{key}": SAMPLING[key] for key in ("temperature", "maxTokens")},
    **{f"evaluation.sampling.{key}": window for key, window in SAMPLING.items()},
    **{f"evaluation.sets[].sampling.{key}": window for key, window in SAMPLING.items()},
    "algorithm.clip.low": Window(0, 0.99, _CLIP, "0.2 keeps ratios above 0.8"),
    "algorithm.clip.high": Window(0, 0.99, _CLIP, "0.28 keeps ratios below 1.28"),
    "algorithm.clip.dual": Window(1, 100, "it bounds the loss of bad responses, in multiples of their advantage", "3 is usual"),
    "algorithm.gamma": Window(0.9, 1, "a reward hardly reaches tokens that are 50 before it", "1 is usual with responses"),
    "algorithm.entropyCoefficient": Window(0, 0.5, "the policy is drawn to random tokens", "0 to 0.01 is usual"),
    "algorithm.rolloutCorrection.cap": Window(1, 100, "no weight is cut", "2 is usual: weights are near 1", below="every weight is cut"),
    "algorithm.overlong.penalty": Window(0, 100, "it is taken off the reward", "1 is usual"),
    "dpo.beta": Window(1e-3, 10, "it is the strength of the reference", "0.1 is usual"),
    "dpo.sftCoefficient": Window(0, 100, "pairs hardly count next to it", "0.1 to 1 is usual"),
    "model.lora.rank": Window(1, 1024, "adapters of such a rank are no smaller than what they adapt", "8 to 128 is usual"),
    "train.samplesPerPrompt": Window(1, 1024, "all samples of a prompt are of one group", "8 to 64 is usual"),
    "train.epochsPerStep": Window(1, 32, "it is the number of passes over one step's samples, not over the data", "1 is usual; see train.epochs"),
    "train.tokensPerMicroBatch": Window(16, 2**21, "it is what one data-parallel rank has in one pass", "8192 to 32768 is usual"),
    "rewards[].weight": Window(-1e4, 1e4, "it is a factor of the reward", "1 is usual"),
    "rewards[].timeoutSeconds": Window(0.1, 86400, _SECONDS, "10 is the default"),
    "data.custom.timeoutSeconds": Window(0.1, 3600, _SECONDS, "10 is the default"),
    "rollout.agent.timeoutSeconds": Window(1, 86400, _SECONDS, "60 is the default"),
    "environments[].claimSeconds": Window(10, 86400, _SECONDS, "1800 is the default"),
    "service.sessionTimeoutSeconds": Window(10, ANY, "clients that pause for a moment would be dropped", "600 is the default"),
    "lifecycle.drainTimeoutSeconds": Window(30, ANY, "a suspended job has so long to finish its step and to save", "600 is the default"),
    "lifecycle.stallTimeoutSeconds": Window(60, ANY, f"a step, or loading a model, takes longer without a word: {_ENDED}", "1800 is the default"),
    "lifecycle.nodeLossSeconds": Window(10, ANY, f"a node's report may be that late: {_ENDED}", "120 is the default"),
    "lifecycle.strandedSeconds": Window(30, ANY, "pods of a gang do not start in the same second", "600 is the default"),
    "lifecycle.pendingDeadlineSeconds": Window(60, ANY, "pulling an image takes longer", "raise it"),
    "lifecycle.activeDeadlineSeconds": Window(60, ANY, "loading a model takes longer", "raise it"),
    "lifecycle.backoffSeconds": Window(0, 3600, "a job waits so long before each restart", "5 is the default"),
    **{f"{section}.shmSize": SHARED for section in ("trainer", "rollout", "critic", "reference", "pools[]", "rewards[].model")},
}  # fmt: skip
"""By field, with [] for any entry of a list."""
PLACE = re.compile(r"\[\d+\]")
CLIPS = "algorithm.clip."
"""What these fields are to cispo differs: `low: 1` is no bound there, and `high: 5` usual."""


def advice(spec: RLJobSpec) -> Iterator[Violation]:
    """Each with the field, its value, what it does, and what is usual."""
    for location, value in leaves(spec.model_dump(by_alias=True, exclude_defaults=True)):
        path = path_of(location)
        window = WINDOWS.get(PLACE.sub("[]", path))
        if window is None or (path.startswith(CLIPS) and spec.algorithm.loss == "cispo"):
            continue
        number = _number(value)
        if number is None or window.low <= number <= window.high:
            continue
        if number < window.low:
            rule = f"is below {_shown(window.low, window)}: {window.below or window.reason}"
        else:
            rule = f"is above {_shown(window.high, window)}: {window.reason}"
        yield Violation(f"spec.{path}", as_written(value), rule, window.fix)
    for related in RELATIONS:
        yield from related(spec)


def _warmup(spec: RLJobSpec) -> Iterator[Violation]:
    if spec.task == "service":
        return
    steps, warmup = Amounts.of(spec).optimizer_steps, spec.train.optimizer.warmup_steps
    if steps is not None and warmup > steps:
        rule = f"is above the {steps} optimizer steps of the run, so that the rate never reaches learningRate"
        yield Violation("spec.train.optimizer.warmupSteps", str(warmup), rule, "lower it, or raise spec.train.steps")


def _clip(spec: RLJobSpec) -> Iterator[Violation]:
    clip = spec.algorithm.clip
    if clip.high < clip.low <= WINDOWS[f"{CLIPS}low"].high and spec.algorithm.loss != "cispo":
        rule = (
            f"is below spec.algorithm.clip.low = {clip.low:g}: likely tokens would be held back more than unlikely ones"
        )
        fix = "set it to clip.low, or above, as DAPO has 0.28 and 0.2"
        yield Violation("spec.algorithm.clip.high", f"{clip.high:g}", rule, fix)


HELD_OUT = int(EvaluationSampling.model_fields["max_tokens"].default)
CREDENTIAL = re.compile(r"(?i)authorization|(x-)?api-key|.*token|cookie")
SECRET = re.compile(r".*(API_KEY|TOKEN|PASSWORD|SECRET|SECRET_ACCESS_KEY|PRIVATE_KEY)")


def _secrets(spec: RLJobSpec) -> Iterator[Violation]:
    """Variables that are named like credentials. Their values are not repeated."""
    for at, variables in (("spec.env", spec.env), *((f"{at}.template.env", t.env) for at, t in templates(spec))):
        for i, variable in enumerate(variables):
            if variable.value and "$(" not in variable.value and SECRET.fullmatch(variable.name):
                rule = f"stands in {variable.name} for everybody who may read the job"
                fix = "put it into a Secret: valueFrom.secretKeyRef, or spec.envFrom"
                yield Violation(f"{at}[{i}].value", "...", rule, fix)
    for at, headers in _headers(spec):
        for name in (name for name, value in headers.items() if CREDENTIAL.fullmatch(name) and "$" not in value):
            fix = "write $NAME in its place, a variable of spec.trainer.template.env that comes from a Secret"
            yield Violation(f"{at}.{name}", "...", "stands there for everybody who may read the job", fix)


def _headers(spec: RLJobSpec) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Of services that rewards and agents ask."""
    for i, reward in enumerate(spec.rewards):
        if reward.http:
            yield f"spec.rewards[{i}].http.headers", reward.http.headers
    agent = spec.rollout.agent
    services = (("environment", "environment"), ("open_env", "openEnv"), ("nemo_gym", "nemoGym")) if agent else ()
    for name, alias in services:
        if service := getattr(agent, name):
            yield f"spec.rollout.agent.{alias}.headers", service.headers


def _cut_short(spec: RLJobSpec) -> Iterator[Violation]:
    """Held-out responses that end earlier than those in training, by a default that hardly anybody chose."""
    longest, sets = spec.rollout.sampling.max_tokens, spec.evaluation.sets
    if spec.task != "rl" or not spec.evaluation.takes_place:
        return
    samplings = [(f"evaluation.sets[{i}]", given.sampling) for i, given in enumerate(sets) if given.sampling]
    if spec.data.validation or len(samplings) < len(sets):
        samplings.append(("evaluation", spec.evaluation.sampling))
    for at, sampling in samplings:
        if sampling.max_tokens == HELD_OUT < longest:
            rule = f"is the default, and cuts held-out responses, which may have {longest} tokens in training"
            yield Violation(
                f"spec.{at}.sampling.maxTokens", str(HELD_OUT), rule, f"set {longest}, or how long they may be"
            )


def on_purpose(steps: int) -> dict[str, int]:
    """By interval, the value that says on purpose what one above the `steps` of the run does."""
    return {"evaluation.everySteps": steps, "checkpoint.everySteps": 0, "checkpoint.exportEverySteps": 0}


def _intervals(spec: RLJobSpec) -> Iterator[Violation]:
    steps, evaluation = spec.train.steps, spec.evaluation
    if spec.task == "service" or steps is None or evaluation.only:
        return
    meant = on_purpose(steps)
    for field, every, what in (
        ("evaluation.everySteps", evaluation.every_steps, "only the first policy and the last one are evaluated"),
        ("checkpoint.everySteps", spec.checkpoint.every_steps, "the only checkpoint is the last one, without which a failure costs the whole run"),
        ("checkpoint.exportEverySteps", spec.checkpoint.export_every_steps, "nothing is exported on the way"),
    ):  # fmt: skip
        if every > steps and every != DEFAULTS.get(field):
            rule = f"is above the {steps} steps of the run: {what}"
            yield Violation(f"spec.{field}", str(every), rule, f"lower it, or set {meant[field]} if that is meant")


DEFAULTS = {"checkpoint.everySteps": CheckpointSpec.model_fields["every_steps"].default}
"""Of what is advised; a default is nobody's mistake."""
RELATIONS = (_warmup, _clip, _intervals, _secrets, _cut_short)
"""Of fields that are in order each for itself."""


def warnings() -> Iterator[dict[str, str]]:
    """The windows as validations of a ValidatingAdmissionPolicy, in CEL. `object` is an RLJob."""
    for path, window in WINDOWS.items():
        low, high = _shown(window.low, window), _shown(window.high, window)
        outside = f"below {low}" if window.high == ANY else f"outside {low} to {high}"
        message = f"spec.{path}: a value {outside} is almost surely a mistake: {window.outside}; {window.fix}"
        cispo = 'object.spec.?algorithm.?loss.orValue("") == "cispo" || ' if path.startswith(CLIPS) else ""
        yield {"expression": cispo + _is_inside(path, window), "message": message}


def _is_inside(path: str, window: Window) -> str:
    """True also for a field that is not set."""
    if window.is_size:
        inside = f'!quantity(string(v)).isLessThan(quantity("{_shown(window.low, window)}"))'
    else:
        inside = f"double(v) >= {float(window.low)}"
        if window.high < ANY:
            inside += f" && double(v) <= {float(window.high)}"
    items, _, field = path.rpartition("[].")
    value = f"{'e' if items else 'object.spec'}{_optional(field)}.optMap(v, {inside}).orValue(true)"
    return f"object.spec{_optional(items)}.orValue([]).all(e, {value})" if items else value


def _optional(path: str) -> str:
    return "".join(f".?{name}" for name in path.split("."))


def _shown(bound: float, window: Window) -> str:
    return show(round(bound) * 1000) if window.is_size and bound < ANY else f"{bound:,g}"


def _number(value: Any) -> float | None:
    """Of a quantity, its units; None: it is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value) if isinstance(value, int | float) else parse(value) / 1000
    except ValueError:
        return None
