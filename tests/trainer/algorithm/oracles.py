"""Numbers worked out by hand, from the papers' formulas, and what computes them here. docs/algorithms.md shows them as a table."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from trainer.algorithm.cases import Rows, episodes, estimate

Numbers = Sequence[float]


class Oracle(NamedTuple):
    name: str
    working: str
    """The arithmetic, on one line."""
    expected: Numbers
    compute: Callable[[], Numbers]


EIGHT = "rewards 1, 0 x 7"
ONE_IN_EIGHT = [1.0, 0, 0, 0, 0, 0, 0, 0]


def flat(rows: Any) -> list[float]:
    return [float(x) for row in rows for x in row]


def first_two(**fields: Any) -> Callable[[], Numbers]:
    return lambda: estimate(episodes(ONE_IN_EIGHT), **fields).advantages[:2, 0].tolist()


def advantages(rewards: Numbers, groups: Sequence[int], mask: Rows, **fields: Any) -> Callable[[], Numbers]:
    given = ("token_rewards", "values", "baselines", "turn_rewards", "trajectories")
    extra = {k: fields.pop(k) for k in given if k in fields}
    return lambda: flat(estimate(episodes(rewards, groups, mask, **extra), **fields).advantages)


def returns(
    rewards: Numbers,
    mask: Rows,
    values: Rows,
    turn_rewards: Rows | None = None,
    trajectories: Sequence[int] | None = None,
    **fields: Any,
) -> Callable[[], Numbers]:
    step = episodes(rewards, None, mask, values=values, turn_rewards=turn_rewards, trajectories=trajectories)
    return lambda: flat(estimate(step, **fields).returns)


GAE: dict[str, Any] = {"advantage": "gae", "gamma": 0.9, "gaeLambda": 0.8}
VALUES = [[0.5, 0.4, 0.3]]

ADVANTAGE_ORACLES = (
    Oracle(
        "grpo",
        f"{EIGHT}: 7/8 / (sqrt(1/8) + 1e-6), -1/8 / (sqrt(1/8) + 1e-6)",
        [2.47486673417, -0.35355239060],
        first_two(),
    ),
    Oracle(
        "grpo, divideByStd: false (Dr. GRPO)",
        f"{EIGHT}: 1 - 1/8, 0 - 1/8",
        [0.875, -0.125],
        first_two(group={"divideByStd": False}),
    ),
    Oracle(
        "grpo, rewardClip 2, divideByStd: false",
        "rewards 10, -1 x 7: 2, -1 x 7 less their mean -5/8",
        [2.625, -0.375],
        lambda: (
            estimate(episodes([10.0, *[-1.0] * 7]), rewardClip=2, group={"divideByStd": False})
            .advantages[:2, 0]
            .tolist()
        ),
    ),
    Oracle(
        "grpo, advantageClip 2",
        f"{EIGHT}: 2.4749 becomes 2, -0.3536 stays",
        [2.0, -0.35355239060],
        first_two(advantageClip=2),
    ),
    Oracle(
        "grpo, leaveOneOut",
        f"{EIGHT}: others all 0, so (1 - 0) / 1; -1/7 / (sqrt(1/7) + 1e-6)",
        [1.0, -0.37796347301],
        first_two(group={"leaveOneOut": True}),
    ),
    Oracle(
        "grpo, leaveOneOut, divideByStd: false",
        f"{EIGHT}: 1 - 0, 0 - 1/7",
        [1.0, -1 / 7],
        first_two(group={"leaveOneOut": True, "divideByStd": False}),
    ),
    Oracle("rloo", f"{EIGHT}: 8/7 (1 - 1/8), 8/7 (0 - 1/8)", [1.0, -1 / 7], first_two(advantage="rloo")),
    Oracle(
        "opo",
        "rewards 1, 0; lengths 3, 5: baseline 3/8",
        [0.625] * 3 + [0.0] * 2 + [-0.375] * 5,
        advantages([1, 0], [0, 0], [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], advantage="opo"),
    ),
    Oracle(
        "remax",
        "reward 1, baseline 0.25, every token -0.1: 1 - 0.3 - 0.25, 1 - 0.2 - 0.25, 1 - 0.1 - 0.25",
        [0.45, 0.55, 0.65],
        advantages([1], [0], [[1, 1, 1]], token_rewards=[[-0.1] * 3], baselines=[0.25], advantage="remax"),
    ),
    Oracle(
        "reinforce++",
        "rewards 4, 1; lengths 3, 1; gamma 0.5: returns 1, 2, 4 and 1; mean 2, variance 6/3",
        [-0.70710677942, 0.0, 1.41421355884, -0.70710677942, 0.0, 0.0],
        advantages([4, 1], [0, 1], [[1, 1, 1], [1, 0, 0]], advantage="reinforce++", gamma=0.5),
    ),
    Oracle(
        "reinforce++-baseline",
        "rewards 1, 0 and 0, 0; lengths 2, 1, 1, 1: tokens 0.5, 0.5, -0.5, 0, 0; mean 0.1, variance 0.7/4",
        [0.95618286015, 0.95618286015, -1.43427429022, 0.0, -0.23904571504, 0.0, -0.23904571504, 0.0],
        advantages([1, 0, 0, 0], [0, 0, 1, 1], [[1, 1], [1, 0], [1, 0], [1, 0]], advantage="reinforce++-baseline"),
    ),
    Oracle(
        "gae, returns",
        "reward 1, values 0.5, 0.4, 0.3, gamma 0.9, lambda 0.8: d = -0.14, -0.13, 0.7; A = 0.12928, 0.374, 0.7; A + V",
        [0.62928, 0.774, 1.0],
        returns([1], [[1, 1, 1]], VALUES, **GAE),
    ),
    Oracle(
        "gae",
        "the same A less their mean 0.40109333, by their deviation 0.28733391",
        [-0.94932404010, -0.09462505884, 1.04394909894],
        advantages([1], [0], [[1, 1, 1]], values=VALUES, **GAE),
    ),
    Oracle(
        "gae, a token that is not the policy's",
        "mask 1, 0, 1: A = 0.9 x 0.3 - 0.5 + 0.72 x 0.7, -, 0.7; A + V",
        [0.774, 0.0, 1.0],
        returns([1], [[1, 0, 1]], [[0.5, 9.0, 0.3]], **GAE),
    ),
    Oracle(
        "gae, a turn's own reward",
        "the same, reward 1.5, of which 0.5 at the first token: A = 0.5 + 0.9 x 0.3 - 0.5 + 0.72 x 0.7, -, 0.7; A + V",
        [1.274, 0.0, 1.0],
        returns([1.5], [[1, 0, 1]], [[0.5, 9.0, 0.3]], [[0.5, 0.0, 0.0]], **GAE),
    ),
    Oracle(
        "gae, a turn's own reward, two branches",
        "reward 1, of which 0.6 at the first token, values 0: 0.6 + 0.72 x 0.4, 0.4 and 0.72 x 0.4, 0.4",
        [0.888, 0.4, 0.288, 0.4],
        returns([1, 1], [[1, 1]] * 2, [[0.0, 0.0]] * 2, [[0.6, 0.0], [0.0, 0.0]], [7, 7], **GAE),
    ),
    Oracle(
        "grpo, two branches of one trajectory, divideByStd: false",
        "rewards 1, 1 (branches) and 0: less 1/2, the mean of two trajectories",
        [0.5, 0.5, -0.5],
        advantages([1, 1, 0], [0] * 3, [[1]] * 3, trajectories=[7, 7, 8], group={"divideByStd": False}),
    ),
)
