"""A trajectory: segments of tokens behind each other, each with who wrote it. Prompt and response are the simplest case. No torch here."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rljob_trainer.images import Placed

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Experts = npt.NDArray[np.uint8]
"""[tokens, layers of the model, experts per token]: numbers of experts, 0 in layers without any."""
Source = Literal["policy", "prompt", "environment", "demonstration"]
SOURCES: tuple[Source, ...] = ("policy", "prompt", "environment", "demonstration")
"""In the order of their numbers in files and on the socket."""
LEARNT: tuple[Source, ...] = ("policy", "demonstration")
"""Authors of tokens that are learnt from."""
NO_POLICY = -1
"""In place of the policy's step, for tokens that no policy wrote."""


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """k tokens with one author."""

    tokens: Ints
    """[k]"""
    source: Source
    """policy: sampled, and learnt from; demonstration: learnt from, though no policy wrote it; prompt: given at the beginning; environment: what a
    tool or another party wrote in between."""
    log_probs: Floats | None = None
    """[k], of each token under the policy and temperature that sampled it, as the rollout server computed it. None where no policy wrote."""
    policy_step: int = NO_POLICY
    """Step of the policy that sampled the tokens."""
    images: tuple[Placed, ...] = ()
    """In the order of their places, which count from the segment's first token."""
    reward: float = 0.0
    """What the policy earned with the last token: a part of the trajectory's reward, in the precision of float32."""

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
    """The segment that a trajectory begins with."""
    return Segment(np.asarray(tokens, np.int32), "prompt", images=tuple(images))


def environment(tokens: Sequence[int] | Ints) -> Segment:
    """What somebody else wrote in between."""
    return Segment(np.asarray(tokens, np.int32), "environment")


def demonstration(tokens: Sequence[int] | Ints) -> Segment:
    """What is learnt from, though no policy wrote it."""
    return Segment(np.asarray(tokens, np.int32), "demonstration")


def sampled(tokens: Sequence[int] | Ints, log_probs: Sequence[float] | Floats, policy_step: int) -> Segment:
    """What the policy of that step wrote."""
    return Segment(np.asarray(tokens, np.int32), "policy", np.asarray(log_probs, np.float32), policy_step)


def appended(segments: tuple[Segment, ...], more: Segment) -> tuple[Segment, ...]:
    """With `more` behind them: nothing when it is empty, one segment with the last when the same policy wrote both and earned nothing in between."""
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
    """What the policy did with one prompt, and what that was worth. The arrays are of all T tokens in their order."""

    segments: tuple[Segment, ...]
    prompt_index: int
    """Row of the prompt or example in the data set."""
    group: int
    """Position of the prompt or example in the step, from 0; its samples share it."""
    sample: int
    """Position in the group, from 0: of `samplesPerPrompt` responses, or of an example's variants (0: chosen, 1: rejected)."""
    finish_reason: Literal["stop", "length"]
    """`stop`: the policy ended it, with the end-of-sequence token or a text of `sampling.stop`; `length`: cut off at maxTokens."""
    reward: float
    """Weighted sum of the driver's entries of spec.rewards and what the agent gave, less the overlong penalty. Entries with `model` are added by the
    ranks."""
    data_source: str
    """Of the prompt: it says which entries of spec.rewards apply (rewards/rules.py)."""
    baseline_reward: float | None = None
    """Of the prompt's greedy response (`remax`), like `reward`; the same in all samples of the group."""
    branches: tuple[tuple[Segment, ...], ...] = ()
    """Further sequences of the same trajectory, whose context an agent rewrote. In a batch each is a row of its own, see `rows`."""
    branch: int = 0
    """Which row of its trajectory this is."""
    routed_experts: Experts | None = field(default=None, compare=False)
    """To which experts the rollouts sent the T - 1 tokens behind which another one was predicted, under the policy that wrote the last; None where
    they are not replayed."""

    @staticmethod
    def of_response(
        prompt_tokens: Sequence[int] | Ints,
        response_tokens: Sequence[int] | Ints,
        log_probs: Sequence[float] | Floats,
        policy_step: int,
        **fields: Any,
    ) -> "Trajectory":
        """One prompt and one response that one policy wrote. `fields`: the others."""
        return Trajectory((prompt(prompt_tokens), sampled(response_tokens, log_probs, policy_step)), **fields)

    def __len__(self) -> int:
        """Tokens of the first branch, as in everything below."""
        return sum(len(s.tokens) for s in self.segments)

    def rows(self) -> list["Trajectory"]:
        """A trajectory for each branch, which differ in nothing else."""
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
        """[T], which tokens are learnt from: those that the policy wrote, and demonstrations."""
        return np.repeat([s.source in LEARNT for s in self.segments], self._lengths)

    @property
    def log_probs(self) -> Floats:
        """[T], 0 where no policy wrote."""
        rows = [np.zeros(len(s.tokens), np.float32) if s.log_probs is None else s.log_probs for s in self.segments]
        return _joined(rows, np.float32)

    @property
    def policy_steps(self) -> Ints:
        """[T], the step of the policy that wrote a token, NO_POLICY where none did."""
        return np.repeat(np.array([s.policy_step for s in self.segments], np.int32), self._lengths)

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt. What follows is the response, in which an environment may have had its say."""
        return sum(len(s.tokens) for s in self.segments if s.source == "prompt")

    @property
    def response_length(self) -> int:
        return len(self) - self.prompt_length

    @property
    def learnt_length(self) -> int:
        """Tokens that are learnt from."""
        return sum(len(s.tokens) for s in self.segments if s.source in LEARNT)

    @property
    def prompt_tokens(self) -> Ints:
        return self.tokens[: self.prompt_length]

    @property
    def response_tokens(self) -> Ints:
        return self.tokens[self.prompt_length :]

    @property
    def response_mask(self) -> Bools:
        """[response_length], the loss mask behind the prompt."""
        return self.loss_mask[self.prompt_length :]

    @property
    def response_log_probs(self) -> Floats:
        """[response_length]"""
        return self.log_probs[self.prompt_length :]

    @property
    def response_turn_rewards(self) -> Floats:
        """[response_length], the part of the reward that is a turn's own, at the turn's last token."""
        found = np.zeros(len(self), np.float32)
        np.add.at(found, np.cumsum(self._lengths) - 1, [s.reward for s in self.segments])
        return found[self.prompt_length :]

    @property
    def images(self) -> list[Placed]:
        """With their places among all tokens."""
        starts = accumulate(self._lengths, initial=0)
        return [(at + start, image) for at, s in zip(starts, self.segments, strict=False) for start, image in s.images]

    @property
    def sampled_segments(self) -> list[Segment]:
        """Those that a policy wrote. More than one of a single turn only with `partialRollouts`."""
        return [s for s in self.segments if s.source == "policy"]

    @property
    def _lengths(self) -> list[int]:
        return [len(s.tokens) for s in self.segments]


def of_rows(rows: Iterable[Trajectory]) -> list[Trajectory]:
    """The way back from `Trajectory.rows`, of many behind each other."""
    found: list[Trajectory] = []
    for row in rows:
        if row.branch:
            found[-1] = replace(found[-1], branches=(*found[-1].branches, row.segments))
        else:
            found.append(row)
    return found


def _joined(rows: Sequence[npt.NDArray[Any]], kind: type[Any]) -> npt.NDArray[Any]:
    return rows[0] if len(rows) == 1 else np.concatenate(rows) if rows else np.zeros(0, kind)


def same_bits(a: npt.NDArray[Any] | None, b: npt.NDArray[Any] | None) -> bool:
    """Two arrays, or two Nones."""
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
