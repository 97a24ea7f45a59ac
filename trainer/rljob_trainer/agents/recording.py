"""What becomes of one trajectory: what the policy generated, which of its tokens these are, or why there is none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards.request import SampleFailed, ServiceDown
from rljob_trainer.trajectory import Ints, Segment, Trajectory, appended, environment, prompt


@dataclass(frozen=True, slots=True)
class Recorded:
    """One answer of the policy."""

    context: Ints
    """[c], the tokens that it continues."""
    segments: tuple[Segment, ...]
    """More than one where weights changed meanwhile."""
    truncated: bool

    @property
    def tokens(self) -> Ints:
        """[k]"""
        return np.concatenate([s.tokens for s in self.segments]) if self.segments else np.zeros(0, np.int32)

    def is_in(self, tokens: Ints) -> bool:
        """These tokens have context and answer at their beginning."""
        whole = np.concatenate((self.context, self.tokens))
        return len(whole) <= len(tokens) and bool((tokens[: len(whole)] == whole).all())


@dataclass(frozen=True, slots=True)
class Rollout:
    """A trajectory that is complete."""

    segments: tuple[Segment, ...]
    truncated: bool
    last_turn: Ints
    """The tokens with which the policy ended it."""
    turns: int
    left_out: int
    """Tokens that the policy generated for it and that are not in it."""
    reward: float = 0.0
    """What the agent itself makes of it."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the agent reports."""


def rollout_of(tokens: Ints, answers: Sequence[Recorded], ended_early: bool) -> Rollout | None:
    """`tokens`, with what the policy answered marked as its own. What comes behind the last answer is nobody's context and left out. None when
    the tokens hold no answer. `ended_early`: the agent was refused another turn."""
    found: tuple[Segment, ...] = ()
    used: list[Recorded] = []
    at = 0
    for answer in sorted((a for a in answers if len(a.tokens)), key=lambda a: len(a.context)):
        begin = len(answer.context)
        if begin < at or not answer.is_in(tokens):
            continue
        given = tokens[at:begin]
        found = appended(found, environment(given) if used else prompt(given))
        for segment in answer.segments:
            found = appended(found, segment)
        used.append(answer)
        at = begin + len(answer.tokens)
    if not used:
        return None
    left_out = sum(len(a.tokens) for a in answers) - sum(len(a.tokens) for a in used)
    return Rollout(found, ended_early or used[-1].truncated, used[-1].tokens, len(used), left_out)


def single(begin: Segment, response: tuple[Segment, ...], truncated: bool) -> Rollout:
    """One response to a prompt."""
    tokens = Recorded(begin.tokens, response, truncated).tokens
    return Rollout((begin, *response), truncated, tokens, turns=1, left_out=0)


def measured(sample: Trajectory, rollout: Rollout) -> dict[str, float]:
    """In the names of the metric table."""
    return {
        "agent/turns": float(rollout.turns),
        "agent/environment_tokens": float(sample.response_length - sample.learnt_length),
        "agent/tokens_left_out": float(rollout.left_out),
    }


Kind = Literal["raised", "timeout", "value", "none", "service"]
"""raised: the function raised or ended its process; timeout: it took too long; value: it returned something else than a trajectory that the policy
wrote; none: it returned None; service: an environment did not answer, or with an error status."""
KINDS: tuple[Kind, ...] = ("raised", "timeout", "value", "none", "service")
FIXES: dict[Kind, str] = {
    "raised": "correct the function (try it on a row of the data)",
    "timeout": "raise spec.rollout.agent.timeoutSeconds, or answer sooner",
    "value": "return a Trajectory whose tokens are those that policy.generate was given and returned",
    "none": "return a Trajectory; None leaves a sample out",
    "service": "see that the service is up and answers the trainer pod at this address",
}


class AgentFailed(SampleFailed):
    """One trajectory failed."""

    what = "trajectories"

    def __init__(self, kind: Kind, field: str, target: str, reason: str):
        """`target` is the file at `field` of the spec."""
        super().__init__(kind, field, target, reason)

    def as_error(self) -> Exception:
        rule = f"every trajectory of a step failed; the first said: {self.reason}"
        if self.kind == "service":  # it may be back after a restart
            return ServiceDown(f"{self.field} = {self.target}: {rule}; {FIXES['service']}")
        return ConfigurationError(self.field, self.target, rule, FIXES[self.kind])  # type: ignore[index]
