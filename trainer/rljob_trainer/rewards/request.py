"""What a reward function is given, what it gives, and the error it raises when it cannot score."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rljob_trainer.failure import ConfigurationError

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
