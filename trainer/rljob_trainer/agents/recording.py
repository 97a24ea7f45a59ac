"""What becomes of one trajectory: what the policy generated, which of its tokens these are, or why there is none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards.request import TRY, SampleFailed, ServiceDown
from rljob_trainer.wire.trajectory import Ints, Segment, Trajectory, appended, environment, prompt


@dataclass(frozen=True, slots=True)
class Recorded:
    """One answer of the policy."""

    context: Ints
    """[c], the tokens that it continues."""
    segments: tuple[Segment, ...]
    """More than one where weights changed meanwhile."""
    truncated: bool
    reward: float = 0.0
    """What the agent or environment gave for it."""

    @property
    def tokens(self) -> Ints:
        """[k]"""
        return np.concatenate([s.tokens for s in self.segments]) if self.segments else np.zeros(0, np.int32)

    @property
    def whole(self) -> Ints:
        """[c + k]"""
        return np.concatenate((self.context, self.tokens))

    def is_in(self, tokens: Ints) -> bool:
        """These tokens have context and answer at their beginning."""
        whole = self.whole
        return len(whole) <= len(tokens) and bool((tokens[: len(whole)] == whole).all())

    @property
    def rewarded(self) -> tuple[Segment, ...]:
        """The segments, with the reward at their end."""
        *before, last = self.segments
        return (*before, replace(last, reward=float(np.float32(self.reward))))


@dataclass(frozen=True, slots=True)
class Rollout:
    """A trajectory that is complete."""

    segments: tuple[Segment, ...]
    truncated: bool
    last_turn: Ints
    """The tokens with which the policy ended it."""
    turns: int
    """In all branches."""
    left_out: int
    """Tokens that the policy generated for it and that are not in it."""
    branches: tuple[tuple[Segment, ...], ...] = ()
    """Further sequences, whose context was rewritten."""
    reward: float = 0.0
    """What the agent itself makes of it, with the rewards of its turns."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the agent reports."""
    resumed: int = 0
    """How often it has continued, and ..."""
    run_again: int = 0
    """... how often it has begun from its first turn, since its process was lost."""


def rollout_of(sequences: Sequence[Ints], answers: Sequence[Recorded], ended_early: bool) -> Rollout | None:
    """`sequences`, with what the policy answered marked as its own: the trajectory, and further branches of it. A turn that stands in several is its
    own in the first. None when the first holds no answer. `ended_early`: the agent was refused another turn."""
    left = sorted((a for a in answers if len(a.tokens)), key=lambda a: len(a.context))
    branches = [_branch(tokens, left) for tokens in sequences]
    (segments, own), *others = branches
    if not own:
        return None
    turns = [answer for _, used in branches for answer in used]
    return Rollout(
        segments,
        truncated=ended_early or own[-1].truncated,
        last_turn=own[-1].tokens,
        turns=len(turns),
        left_out=sum(len(a.tokens) for a in answers) - sum(len(a.tokens) for a in turns),
        branches=tuple(branch for branch, used in others if used),
        reward=sum(a.reward for a in answers),
    )


def _branch(tokens: Ints, left: list[Recorded]) -> tuple[tuple[Segment, ...], list[Recorded]]:
    """One sequence, and the answers in it, which are taken from `left`. What comes behind the last is nobody's context and left out."""
    segments: tuple[Segment, ...] = ()
    used: list[Recorded] = []
    at = 0
    for answer in [a for a in left if a.is_in(tokens)]:
        begin = len(answer.context)
        if begin < at:
            continue
        given = tokens[at:begin]
        segments = appended(segments, environment(given) if used else prompt(given))
        for segment in answer.rewarded:
            segments = appended(segments, segment)
        used.append(answer)
        at = begin + len(answer.tokens)
    left[:] = [a for a in left if not any(a is u for u in used)]
    return segments, used


def endings(answers: Sequence[Recorded]) -> list[Ints]:
    """The sequences that no other continues, the one that was written last first."""
    wholes = {a.whole.tobytes(): a.whole for a in reversed(answers)}
    return [w for key, w in wholes.items() if not any(key != other and other.startswith(key) for other in wholes)]


def single(begin: Segment, response: tuple[Segment, ...], truncated: bool) -> Rollout:
    """One response to a prompt."""
    tokens = Recorded(begin.tokens, response, truncated).tokens
    return Rollout((begin, *response), truncated, tokens, turns=1, left_out=0)


def measured(sample: Trajectory, rollout: Rollout) -> dict[str, float]:
    """In the names of the metric table."""
    rows = sample.rows()
    return {
        "agent/turns": float(rollout.turns),
        "agent/branches": float(len(rows)),
        "agent/environment_tokens": float(sum(row.response_length - row.learnt_length for row in rows)),
        "agent/tokens_left_out": float(rollout.left_out),
        "agent/resumed": float(rollout.resumed),
        "agent/run_again": float(rollout.run_again),
    }


AgentFailureKind = Literal["raised", "timeout", "value", "none", "service"]
"""raised: the function raised or ended its process; timeout: it took too long; value: it returned something else than a trajectory that the policy
wrote; none: it returned None; service: an environment did not answer, or with an error status."""
KINDS: tuple[AgentFailureKind, ...] = ("raised", "timeout", "value", "none", "service")
FIXES: dict[AgentFailureKind, str] = {
    "raised": "correct the function",
    "timeout": "raise spec.rollout.agent.timeoutSeconds, or answer sooner",
    "value": "return a Trajectory whose tokens are those that policy.generate was given and returned",
    "none": "return a Trajectory; None leaves a sample out",
    "service": "see that the service is up and answers the trainer pod at this address",
}
ENVIRONMENT_FIXES: dict[AgentFailureKind, str] = FIXES | {
    "raised": "correct the environment, its arguments, or the rows that it is given",
    "value": "correct the environment: it answers with finite rewards, and with texts or messages that the chat template takes",
    "none": "see that maxTurns and maxTokens leave room for a turn",
}


class AgentFailed(SampleFailed):
    """One trajectory failed."""

    what = "trajectories"

    def __init__(self, kind: AgentFailureKind, field: str, target: str, reason: str):
        """`target` is the file at `field` of the spec."""
        super().__init__(kind, field, target, reason)

    def as_error(self) -> Exception:
        rule = f"every trajectory of a step failed; the first said: {self.reason}"
        if self.kind == "service":  # it may be back after a restart
            return ServiceDown(f"{self.field} = {self.target}: {rule}; {FIXES['service']}")
        fixes = FIXES if self.field.endswith(".path") else ENVIRONMENT_FIXES
        return ConfigurationError(self.field, self.target, rule, f"{fixes[self.kind]} ({TRY})")  # type: ignore[index]
