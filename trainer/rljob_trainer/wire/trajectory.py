"""A trajectory: a sequence of segments of tokens, each with its author. A prompt and its response are the simplest case. No torch here."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rljob_trainer.wire.images import Placed

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Experts = npt.NDArray[np.uint8] | npt.NDArray[np.int16]
"""[tokens, layers of the model, experts per token]: indices of the experts that each token was routed to; 0 in dense layers. int16 in models with
more than BYTE_EXPERTS experts (rljob_api/sizing/shape.py)."""
SegmentSource = Literal["policy", "prompt", "environment", "demonstration"]
SOURCES: tuple[SegmentSource, ...] = ("policy", "prompt", "environment", "demonstration")
"""A segment's source is stored and sent as its index here."""
LEARNT: tuple[SegmentSource, ...] = ("policy", "demonstration")
"""Sources whose tokens are in the loss."""
NO_POLICY = -1
"""The `policy_step` of tokens that no policy wrote."""


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """k consecutive tokens with one author."""

    tokens: Ints
    """[k]"""
    source: SegmentSource
    """policy: sampled by a policy, in the loss. demonstration: given, in the loss. prompt: given at the beginning, not in the loss. environment:
    written by a tool or another party in between, not in the loss."""
    log_probs: Floats | None = None
    """[k], of each token under the policy and the temperature that sampled it, as the rollout server computed them. None unless `source` is
    policy."""
    policy_step: int = NO_POLICY
    """Number of steps that the policy had been trained for when it sampled the tokens."""
    images: tuple[Placed, ...] = ()
    """In the order of their places, which are counted from the first token of the segment."""
    reward: float = 0.0
    """The part of the trajectory's reward that was earned at the last token of this segment (a turn's own reward), as float32."""

    def __post_init__(self) -> None:
        assert (self.log_probs is not None) == (self.source == "policy"), "what the policy wrote has log-probabilities"
        assert self.log_probs is None or len(self.log_probs) == len(self.tokens), "every token has its own"

    def __eq__(self, other: object) -> bool:
        """Bit by bit."""
        if not isinstance(other, Segment):
            return NotImplemented
        mine, others = ((s.source, s.policy_step, s.reward) for s in (self, other))
        return (
            mine == others
            and same_bits(self.tokens, other.tokens)
            and same_bits(self.log_probs, other.log_probs)
            and self.images == other.images
        )

    __hash__ = None  # type: ignore[assignment]


def prompt(tokens: Sequence[int] | Ints, images: Sequence[Placed] = ()) -> Segment:
    """A segment of source prompt."""
    return Segment(np.asarray(tokens, np.int32), "prompt", images=tuple(images))


def environment(tokens: Sequence[int] | Ints) -> Segment:
    """A segment of source environment."""
    return Segment(np.asarray(tokens, np.int32), "environment")


def demonstration(tokens: Sequence[int] | Ints) -> Segment:
    """A segment of source demonstration."""
    return Segment(np.asarray(tokens, np.int32), "demonstration")


def sampled(tokens: Sequence[int] | Ints, log_probs: Sequence[float] | Floats, policy_step: int) -> Segment:
    """A segment of source policy."""
    return Segment(np.asarray(tokens, np.int32), "policy", np.asarray(log_probs, np.float32), policy_step)


def appended(segments: tuple[Segment, ...], more: Segment) -> tuple[Segment, ...]:
    """The segments with `more` appended. It is merged into the last one when both have the same author and policy and no reward lies between."""
    if not len(more.tokens):
        return segments
    last = segments[-1] if segments else None
    if last is None or last.reward or (last.source, last.policy_step) != (more.source, more.policy_step):
        return (*segments, more)
    log_probs = None
    if last.log_probs is not None and more.log_probs is not None:
        log_probs = np.concatenate((last.log_probs, more.log_probs))
    images = (*last.images, *((len(last.tokens) + start, image) for start, image in more.images))
    tokens = np.concatenate((last.tokens, more.tokens))
    return (*segments[:-1], Segment(tokens, last.source, log_probs, last.policy_step, images, more.reward))


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One sample: T tokens that begin with a prompt, and their reward."""

    segments: tuple[Segment, ...]
    prompt_index: int
    """Row of the prompt or example in the data set."""
    group: int
    """Position of the prompt or example in the step, from 0; shared by its samples."""
    sample: int
    """Position in the group, from 0: of `samplesPerPrompt` responses, or of an example's variants (0: chosen, 1: rejected)."""
    finish_reason: Literal["stop", "length"]
    """`stop`: ended by the end-of-sequence token or a text of `sampling.stop`; `length`: cut off at maxTokens."""
    reward: float
    """Weighted sum of the reward functions and the agent's own reward, minus the overlong penalty. The ranks add entries of spec.rewards with
    `model` later."""
    data_source: str
    """Data source of the prompt, which selects the entries of spec.rewards that apply (rewards/rules.py)."""
    baseline_reward: float | None = None
    """Reward of the prompt's greedy response, for `remax`; the same in all samples of the group."""
    branches: tuple[tuple[Segment, ...], ...] = ()
    """Further token sequences of the same trajectory: an agent that rewrites its context starts a new one. In a batch each branch is a row of its
    own, see `rows`."""
    branch: int = 0
    """Index of this row among the branches of its trajectory."""
    routed_experts: Experts | None = field(default=None, compare=False)
    """[T - 1, layers, experts per token], the experts that the rollout server routed each token to, except the last one, which predicts nothing.
    None unless they are replayed (rolloutCorrection.routerReplay)."""

    @staticmethod
    def of_response(
        prompt_tokens: Sequence[int] | Ints,
        response_tokens: Sequence[int] | Ints,
        log_probs: Sequence[float] | Floats,
        policy_step: int,
        **fields: Any,
    ) -> "Trajectory":
        """A prompt and the response of one policy. `fields`: the other fields of Trajectory."""
        return Trajectory((prompt(prompt_tokens), sampled(response_tokens, log_probs, policy_step)), **fields)

    def __len__(self) -> int:
        """T, the tokens of the first branch. All properties below are about the first branch as well."""
        return sum(len(s.tokens) for s in self.segments)

    def rows(self) -> list["Trajectory"]:
        """One trajectory without branches for each branch of this one."""
        if not self.branches:
            return [self]
        sequences = (self.segments, *self.branches)
        return [replace(self, segments=s, branches=(), branch=i) for i, s in enumerate(sequences)]

    @property
    def tokens(self) -> Ints:
        """[T]"""
        return _joined([s.tokens for s in self.segments], np.int32)

    @property
    def loss_mask(self) -> Bools:
        """[T], True for tokens in the loss: those of policy and demonstration."""
        return np.repeat([s.source in LEARNT for s in self.segments], self._lengths)

    @property
    def log_probs(self) -> Floats:
        """[T], rollout log-probabilities, 0 for tokens that no policy wrote."""
        rows = [np.zeros(len(s.tokens), np.float32) if s.log_probs is None else s.log_probs for s in self.segments]
        return _joined(rows, np.float32)

    @property
    def policy_steps(self) -> Ints:
        """[T], `Segment.policy_step` of each token."""
        return np.repeat(np.array([s.policy_step for s in self.segments], np.int32), self._lengths)

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt. Everything after it is the response, which may contain segments of an environment."""
        return sum(len(s.tokens) for s in self.segments if s.source == "prompt")

    @property
    def response_length(self) -> int:
        return len(self) - self.prompt_length

    @property
    def learnt_length(self) -> int:
        """Tokens in the loss."""
        return sum(len(s.tokens) for s in self.segments if s.source in LEARNT)

    @property
    def prompt_tokens(self) -> Ints:
        return self.tokens[: self.prompt_length]

    @property
    def response_tokens(self) -> Ints:
        return self.tokens[self.prompt_length :]

    @property
    def response_mask(self) -> Bools:
        """[response_length], `loss_mask` without the prompt."""
        return self.loss_mask[self.prompt_length :]

    @property
    def response_log_probs(self) -> Floats:
        """[response_length]"""
        return self.log_probs[self.prompt_length :]

    @property
    def response_turn_rewards(self) -> Floats:
        """[response_length], rewards of turns, each at the last token of its turn."""
        rewards = np.zeros(len(self), np.float32)
        np.add.at(rewards, np.cumsum(self._lengths) - 1, [s.reward for s in self.segments])
        return rewards[self.prompt_length :]

    @property
    def images(self) -> list[Placed]:
        """All images, with their places in the whole sequence."""
        starts = accumulate(self._lengths, initial=0)
        return [(at + start, image) for at, s in zip(starts, self.segments, strict=False) for start, image in s.images]

    @property
    def sampled_segments(self) -> list[Segment]:
        """Segments of source policy. A single turn has more than one only when weight updates interrupted it (partial rollouts)."""
        return [s for s in self.segments if s.source == "policy"]

    @property
    def _lengths(self) -> list[int]:
        return [len(s.tokens) for s in self.segments]


def of_rows(rows: Iterable[Trajectory]) -> list[Trajectory]:
    """The inverse of `Trajectory.rows`, for the rows of several trajectories one after another."""
    trajectories: list[Trajectory] = []
    for row in rows:
        if row.branch:
            trajectories[-1] = replace(trajectories[-1], branches=(*trajectories[-1].branches, row.segments))
        else:
            trajectories.append(row)
    return trajectories


def _joined(rows: Sequence[npt.NDArray[Any]], kind: type[Any]) -> npt.NDArray[Any]:
    return rows[0] if len(rows) == 1 else np.concatenate(rows) if rows else np.zeros(0, kind)


def same_bits(a: npt.NDArray[Any] | None, b: npt.NDArray[Any] | None) -> bool:
    """Whether two arrays have the same type, shape and bytes, or both are None."""
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
