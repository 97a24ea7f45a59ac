"""The batch of one training step. No torch here.

The driver holds every trajectory. Each rank gets one value per trajectory (Columns) for the whole step, from which it plans micro-batches and
computes advantages, but the tokens of its own data-parallel part only.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rljob_trainer.wire.trajectory import Trajectory, same_bits

Array = npt.NDArray[Any]
SCORES = "scores"
"""Name of the scores of a reward model on a gang of its own: [n] float64, times the weight of its entry in spec.rewards."""
ROWS = "rows"
"""Name of the array that says to which rows of the step the others belong, one after another: [rows with a response] int32."""
TEACHER_LOG_PROBS = "teacher_log_probs"
"""Name of the log-probabilities of the sampled tokens under a teacher in a pool."""


def candidates(count: int) -> tuple[list[str], list[str]]:
    """Names of the teacher's `count` likeliest tokens at each position: of their ids (exact in float32), and of their log-probabilities."""
    return [f"teacher_tokens/{i}" for i in range(count)], [f"teacher_top_log_probs/{i}" for i in range(count)]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """One value per row, [n], in the order of (group, sample, branch). Each branch of an agent's trajectory is a row of its own."""

    prompt_index: npt.NDArray[np.int64]
    group: npt.NDArray[np.int32]
    sample: npt.NDArray[np.int32]
    branch: npt.NDArray[np.int32]
    length: npt.NDArray[np.int32]
    """Tokens of prompt and response."""
    prompt_length: npt.NDArray[np.int32]
    learnt_length: npt.NDArray[np.int32]
    """Tokens in the loss."""
    truncated: npt.NDArray[np.bool_]
    """Cut off at maxTokens."""
    reward: npt.NDArray[np.float64]
    baseline_reward: npt.NDArray[np.float64]
    """NaN where there is none."""
    data_source: npt.NDArray[np.str_]

    @staticmethod
    def of(trajectories: Sequence[Trajectory]) -> "Columns":
        arrays: dict[str, Array] = {
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
        return Columns(**arrays)

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
        """[n], True for the first row of each trajectory that has a response."""
        return (self.response_length > 0) & (self.branch == 0)

    @property
    def trajectory(self) -> npt.NDArray[np.int64]:
        """[n], index of the trajectory that each row belongs to, from 0."""
        return np.cumsum(self.branch == 0) - 1

    def scored(self, scores: npt.NDArray[np.float64]) -> "Columns":
        """The columns with `scores` [n] added to the rewards. All rows of a trajectory get the score of its first branch."""
        return replace(self, reward=self.reward + scores[np.flatnonzero(self.branch == 0)][self.trajectory])

    def arrays(self) -> dict[str, Array]:
        """By name, in the order of the fields."""
        return {column.name: getattr(self, column.name) for column in fields(self)}

    def at(self, index: int) -> dict[str, Any]:
        """The fields of the Trajectory of a row, without its segments."""
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
    """A whole step, or one rank's part of it: `columns` and `metrics` always describe the whole step. Immutable."""

    step: int
    """The step that this batch trains, from 1."""
    columns: Columns
    trajectories: Mapping[int, Trajectory]
    """By row in `columns`; those of this part."""
    metrics: Mapping[str, float]
    """Metrics of generation and scoring."""
    measured: Mapping[str, Mapping[int, Array]] = field(default_factory=dict)
    """By name and row: per-token values, [response tokens] float32, that models on other gangs or a teacher in a pool have measured."""

    @staticmethod
    def of(step: int, trajectories: Sequence[Trajectory], metrics: Mapping[str, float]) -> "Batch":
        """A whole batch."""
        return Batch(step, Columns.of(trajectories), dict(enumerate(trajectories)), metrics)

    @property
    def samples(self) -> tuple[Trajectory, ...]:
        """Every trajectory, in the order of the columns. Only of a whole batch."""
        assert len(self.trajectories) == len(self.columns), "a part has not all of them"
        return tuple(self.trajectories[i] for i in range(len(self.columns)))

    def part(self, rows: Collection[int]) -> "Batch":
        """The batch with the trajectories of these rows only."""
        return replace(self, trajectories={i: self.trajectories[i] for i in rows})
