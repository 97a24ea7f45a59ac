"""The trajectories of one step: of all of them what fits into a few columns, and the tokens of those that are here. No torch here.

Rank 0's driver has every trajectory. A rank has the columns of all, so that it can plan and estimate advantages of the whole step, and only its
own part of the trajectories.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rljob_trainer.trajectory import Trajectory, same_bits

Array = npt.NDArray[Any]
SCORES = "scores"
"""Name of what a reward model on ranks of its own says of a batch: [n] float64, weighted."""
TEACHER_LOG_PROBS = "teacher_log_probs"
"""Name of what a teacher in a pool says of the tokens that were sampled."""


def candidates(count: int) -> tuple[list[str], list[str]]:
    """Names of what a teacher says of its so many likeliest tokens at each place: their ids, which float32 holds exactly, and log-probabilities."""
    return [f"teacher_tokens/{i}" for i in range(count)], [f"teacher_top_log_probs/{i}" for i in range(count)]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """One value per trajectory, [n], in (group, sample, branch) order: each branch of an agent's trajectory is a row."""

    prompt_index: npt.NDArray[np.int64]
    group: npt.NDArray[np.int32]
    sample: npt.NDArray[np.int32]
    branch: npt.NDArray[np.int32]
    length: npt.NDArray[np.int32]
    """Tokens in all."""
    prompt_length: npt.NDArray[np.int32]
    learnt_length: npt.NDArray[np.int32]
    """Tokens that are learnt from."""
    truncated: npt.NDArray[np.bool_]
    """Cut off at maxTokens."""
    reward: npt.NDArray[np.float64]
    baseline_reward: npt.NDArray[np.float64]
    """NaN where there is none."""
    data_source: npt.NDArray[np.str_]

    @staticmethod
    def of(trajectories: Sequence[Trajectory]) -> "Columns":
        found: dict[str, Array] = {
            "prompt_index": np.array([t.prompt_index for t in trajectories], np.int64),
            "group": np.array([t.group for t in trajectories], np.int32),
            "sample": np.array([t.sample for t in trajectories], np.int32),
            "branch": np.array([t.branch for t in trajectories], np.int32),
            "length": np.array([len(t) for t in trajectories], np.int32),
            "prompt_length": np.array([t.prompt_length for t in trajectories], np.int32),
            "learnt_length": np.array([t.learnt_length for t in trajectories], np.int32),
            "truncated": np.array([t.finish_reason == "length" for t in trajectories], np.bool_),
            "reward": np.array([t.reward for t in trajectories], np.float64),
            "baseline_reward": np.array(
                [np.nan if t.baseline_reward is None else t.baseline_reward for t in trajectories], np.float64
            ),
            "data_source": np.array([t.data_source for t in trajectories], np.str_),
        }
        return Columns(**found)

    def __len__(self) -> int:
        return len(self.group)

    def __eq__(self, other: object) -> bool:
        """Bit by bit."""
        if not isinstance(other, Columns):
            return NotImplemented
        return all(same_bits(mine, other.arrays()[name]) for name, mine in self.arrays().items())

    __hash__ = None  # type: ignore[assignment]

    @property
    def response_length(self) -> npt.NDArray[np.int32]:
        return self.length - self.prompt_length

    @property
    def answered(self) -> npt.NDArray[np.bool_]:
        """[n], the first rows of trajectories that have a response."""
        return (self.response_length > 0) & (self.branch == 0)

    @property
    def trajectory(self) -> npt.NDArray[np.int64]:
        """[n], from 0: branches of one trajectory have the same number."""
        return np.cumsum(self.branch == 0) - 1

    def scored(self, scores: npt.NDArray[np.float64]) -> "Columns":
        """With `scores` [n] added to the rewards: a trajectory gets that of its first branch."""
        return replace(self, reward=self.reward + scores[np.flatnonzero(self.branch == 0)][self.trajectory])

    def arrays(self) -> dict[str, Array]:
        """By name, in the order of the fields."""
        return {column.name: getattr(self, column.name) for column in fields(self)}

    def at(self, index: int) -> dict[str, Any]:
        """What a Trajectory of that row is made of, but for its segments."""
        baseline = float(self.baseline_reward[index])
        return {
            "prompt_index": int(self.prompt_index[index]),
            "group": int(self.group[index]),
            "sample": int(self.sample[index]),
            "branch": int(self.branch[index]),
            "finish_reason": "length" if self.truncated[index] else "stop",
            "reward": float(self.reward[index]),
            "data_source": str(self.data_source[index]),
            "baseline_reward": None if np.isnan(baseline) else baseline,
        }


@dataclass(frozen=True, slots=True)
class Batch:
    """Immutable. `trajectories` may be those of one part; `columns` and `metrics` are always of the whole step."""

    step: int
    """The step they train, from 1."""
    columns: Columns
    trajectories: Mapping[int, Trajectory]
    """By their row in `columns`: those that are here."""
    metrics: Mapping[str, float]
    """What generating and scoring the step measured."""
    measured: Mapping[str, Mapping[int, Array]] = field(default_factory=dict)
    """By name and row of the trajectories that are here: [response tokens] float32, from roles on ranks of their own."""

    @staticmethod
    def of(step: int, trajectories: Sequence[Trajectory], metrics: Mapping[str, float]) -> "Batch":
        """A whole batch."""
        return Batch(step, Columns.of(trajectories), dict(enumerate(trajectories)), metrics)

    @property
    def samples(self) -> tuple[Trajectory, ...]:
        """Every trajectory, in order. Of a whole batch only."""
        assert len(self.trajectories) == len(self.columns), "a part has not all of them"
        return tuple(self.trajectories[i] for i in range(len(self.columns)))

    def part(self, rows: Collection[int]) -> "Batch":
        """With the trajectories of these rows only."""
        return replace(self, trajectories={i: self.trajectories[i] for i in rows})
