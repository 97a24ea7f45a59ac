"""What a reward function is given, what it gives, and the error it raises when it cannot score; and what the processes that run one are started
with. Imports nothing large: pods of their own start these processes, too."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rljob_api.spec.model import PythonReward, RewardSpec
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards import builtin

RewardFailureKind = Literal["raised", "timeout", "value", "service"]
"""raised: the function raised or ended its process; value: not a finite number; service: no answer, or an error status."""
KINDS: tuple[RewardFailureKind, ...] = ("raised", "timeout", "value", "service")

TRY = "`python -m rljob_trainer try` runs it on rows of the data in seconds"
"""At the end of what is said of a user's reward or agent."""

FIXES: dict[RewardFailureKind, str] = {
    "raised": "correct the function",
    "timeout": "raise timeoutSeconds, or answer sooner",
    "value": "return a finite number, or a dict with one as its score",
    "service": "see that the service is up and answers the trainer pod at this address",
}
MODULE = "rljob_trainer.rewards.worker"
MATHEMATICS = PythonReward(path=str(Path(builtin.__file__).with_name("mathematics.py")))
READ_FROM_FILES = {"extra_info", "ground_truth", "row"}


@dataclass(frozen=True, slots=True)
class RewardRequest:
    """One response to score."""

    prompt: str
    response: str
    answer: str
    data_source: str
    tokens: tuple[int, ...] = ()
    """Of prompt and response, as they were generated. Reward models score these and not a new tokenization of the texts."""
    prompt_length: int = 0
    """How many of `tokens`, from the first, are the prompt's."""
    truncated: bool = False
    """Cut off at maxTokens."""
    row: Callable[[], Mapping[str, Any]] = dict
    """Reads all columns of the prompt's row."""
    answer_value: Callable[[], Any] = str
    """Reads the answer as its column holds it, which may be a number; empty where there is none."""


@dataclass(frozen=True, slots=True)
class Reward:
    """What one response is worth."""

    score: float
    """Trained on."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Finite numbers that are reported, by the names that the reward function gives them."""
    prediction: str | None = None
    """The answer that the response gives, as a text that equals that of equal answers: what `maj@k` counts. None: no entry says."""


class ServiceDown(RuntimeError):
    """A reward service scored no sample of a whole step."""


class SampleFailed(Exception):
    """Why a sample leaves its step."""

    what: str
    """What failed, in the plural."""

    def __init__(self, kind: str, field: str, target: str, reason: str):
        """`target` is the file, rule or address at `field` of the spec."""
        super().__init__(f"{field}: {reason}")
        self.kind, self.field, self.target, self.reason = kind, field, target, reason

    def as_error(self) -> Exception:
        """The error when all samples of a step failed."""
        raise NotImplementedError


class RewardFailed(SampleFailed):
    """One call failed."""

    what = "rewards"
    kind: RewardFailureKind

    def __init__(self, kind: RewardFailureKind, field: str, target: str, reason: str):
        super().__init__(kind, field, target, reason)

    def as_error(self) -> Exception:
        """The error when no sample of a step could be scored. A service may be back after a restart; the user has to fix anything else."""
        rule = f"every reward of a step failed; the first said: {self.reason}"
        if self.kind == "service" or (self.kind == "timeout" and self.field.endswith((".url", ".pool"))):
            return ServiceDown(f"{self.field} = {self.target}: {rule}; {FIXES[self.kind]}")
        return ConfigurationError(self.field, self.target, rule, f"{FIXES[self.kind]} ({TRY})")


Value = Callable[[RewardRequest], Any]


def python_of(reward: RewardSpec) -> PythonReward | None:
    """The function that processes of ours call for an entry of spec.rewards; None: they have nothing to do with it."""
    return MATHEMATICS if reward.rule == "math" else reward.python


def command(spec: PythonReward, seconds: float) -> tuple[str, str, str, str]:
    """Arguments of worker.py. `seconds`: that a call may take."""
    return spec.path, spec.function_name, json.dumps([*known_values(spec)]), str(seconds)


def _extra_info(request: RewardRequest) -> Any:
    return request.row().get("extra_info") or {}


def _verls_extra_info(request: RewardRequest) -> Any:
    """With what verl's reward managers add to it, for a job without turns and rewards of its rollouts."""
    info = _extra_info(request)
    return {"num_turns": None, "rollout_reward_scores": {}} | info if isinstance(info, dict) else info


INTERFACES: Mapping[Literal["rljob", "verl"], Mapping[str, Value]] = {
    "rljob": {
        "prompt": lambda r: r.prompt,
        "response": lambda r: r.response,
        "answer": lambda r: r.answer,
        "data_source": lambda r: r.data_source,
        "extra_info": _extra_info,
        "row": lambda r: r.row(),
        "tokens": lambda r: list(r.tokens[r.prompt_length :]),
        "truncated": lambda r: r.truncated,
    },
    "verl": {
        "data_source": lambda r: r.data_source,
        "solution_str": lambda r: r.response,
        "ground_truth": lambda r: r.answer_value(),
        "extra_info": _verls_extra_info,
    },
}
"""verl: what its reward managers give a custom function (verl/workers/reward_manager/naive.py)."""


def known_values(spec: PythonReward) -> dict[str, Value]:
    """Those of the interface, and the spec's own."""
    return {name: _constant(value) for name, value in spec.arguments.items()} | dict(INTERFACES[spec.interface])


def require_arguments(field: str, spec: PythonReward, takes: Sequence[str]) -> None:
    """Raises ConfigurationError for an argument at `field` of the spec that the function does not take, or that would hide a value of the call."""
    for name, value in spec.arguments.items():
        if name in INTERFACES[spec.interface]:
            rule, fix = "every call has a value of its own of that name", "choose another name"
        elif name not in takes:
            rule = f"{spec.function_name}() in {spec.path} takes no argument of that name"
            fix = "remove it, or add the parameter to the function"
        else:
            continue
        raise ConfigurationError(f"{field}.{name}", str(value)[:200], rule, fix)


def _constant(value: Any) -> Value:
    def constant(_: RewardRequest) -> Any:
        return value

    return constant


def arguments(request: RewardRequest, known: Mapping[str, Value], names: Sequence[str]) -> dict[str, Any]:
    """The values of these names, which are among the `known` ones. Reads the row's file for READ_FROM_FILES."""
    return {name: known[name](request) for name in names}
