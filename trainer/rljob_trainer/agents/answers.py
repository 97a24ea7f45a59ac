"""What the policy has answered in one trajectory, by the numbers of its turns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rljob_trainer.agents.api import PolicyError
from rljob_trainer.agents.recording import Recorded, Rollout, endings, rollout_of
from rljob_trainer.agents.shared import with_objects_of, within
from rljob_trainer.wire.rollout_server import Parsed, ToolCall
from rljob_trainer.wire.trajectory import Ints


@dataclass(frozen=True, slots=True)
class AnsweredTurn:
    """One answer, and what is known of it."""

    recorded: Recorded
    parsed: Parsed | None = None
    """What it says; None: no more than its text."""
    conversation: list[dict[str, Any]] = field(default_factory=list)
    """That it ends; empty: it continues token ids."""


@dataclass
class Answers:
    """Of one trajectory. A turn that was given up or refused has a number, and no answer."""

    _known: dict[int, AnsweredTurn] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[tuple[int, AnsweredTurn]]:
        """In the order in which they were asked for, with their numbers."""
        return iter(sorted(self._known.items()))

    def copy(self) -> "Answers":
        return Answers(dict(self._known))

    def add(self, turn: int, answered: AnsweredTurn) -> None:
        said = with_objects_of(answered.conversation, [known.conversation for known in self._known.values()])
        contexts = within(answered.recorded.context, [known.recorded.context for known in self._known.values()])
        for (number, known), context in zip([*self._known.items()], contexts, strict=True):
            self._known[number] = replace(known, recorded=replace(known.recorded, context=context))
        self._known[turn] = replace(answered, conversation=said)

    @property
    def last(self) -> int:
        """The number of the last turn that was answered; -1: none was."""
        return max(self._known, default=-1)

    def __getitem__(self, turn: int) -> AnsweredTurn:
        """Raises PolicyError."""
        if turn not in self._known:
            raise PolicyError(f"there is no turn {turn}")
        return self._known[turn]

    def whole(self, turn: int) -> Ints:
        """The tokens of a turn, with its context. Raises PolicyError."""
        return self[turn].recorded.whole

    def conversation(self, turn: int) -> list[dict[str, Any]]:
        """That a turn ends; empty: it continues token ids, or there is no such turn."""
        answered = self._known.get(turn)
        return answered.conversation if answered else []

    def calls(self, turn: int) -> Sequence[ToolCall]:
        """What a turn calls: a reply to it is written by the template that sees the calls."""
        answered = self._known.get(turn)
        return answered.parsed.tool_calls if answered and answered.parsed else ()

    def sequences(self, branches: bool) -> list[list[int]]:
        """Tokens of the conversation that the policy continued last, and with `branches` of all others that were given up. Raises PolicyError."""
        answers = self._in_order()
        if not answers:
            raise PolicyError("the policy has not been asked yet")
        sequences = endings(answers) if branches else [answers[-1].whole]
        return [tokens.tolist() for tokens in sequences]

    def rollout(
        self, sequences: Sequence[Sequence[int]], rewards: Sequence[float], ended_early: bool
    ) -> Rollout | None:
        """The trajectory of these tokens and branches; None when the policy wrote none of the first sequence. Raises PolicyError.

        Args:
            rewards: of every turn that was asked for, in their order; empty: turns have none of their own
            ended_early: the agent was refused another turn
        """
        answers = self._in_order()
        if rewards and len(rewards) != len(answers):
            raise PolicyError(f"there are {len(rewards)} rewards for {len(answers)} turns of the policy")
        rewarded = [replace(a, reward=r) for a, r in zip(answers, rewards, strict=True)] if rewards else answers
        return rollout_of([np.array(tokens, np.int32) for tokens in sequences], rewarded, ended_early)

    def _in_order(self) -> list[Recorded]:
        return [answered.recorded for _, answered in self]
