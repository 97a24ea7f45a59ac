"""What a step on hundreds of GPUs costs outside of the GPUs, at full size on one core: the plan, the advantages and the hand-over of the batch.

    python -m benchmarks.budget [--samples N] [--ranks N]

A step of 4,096 responses, 16 of each prompt, of lognormal length up to 64k tokens, on 512 ranks: tensor-parallel 8 and expert-parallel 8, in 8, 16,
32 and 64 data-parallel copies. What is timed is what every rank does with its own part, of which the largest is taken; sums over ranks, of 8 bytes
per response, are left out. Goals: each estimator and each plan in less than 1 s of one core; ranks that wait for each other compute 0.97 of
their time; rank 0 sends each part once to each copy. `python -m benchmarks.hand_over` sends the trajectories themselves.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rljob_api.sizing.layout import Layout
from rljob_api.sizing.shape import PassCost
from rljob_api.spec import RLJobSpec
from rljob_api.spec.algorithm import AlgorithmSpec
from rljob_trainer.algorithm.advantages import ADVANTAGES, estimate
from rljob_trainer.algorithm.episodes import Episodes
from rljob_trainer.megatron.batching import Planner, StepPlan
from rljob_trainer.wire.batch import Columns

GROUP, PROMPT, LONGEST, MEDIAN, SPREAD = 16, 512, 65_536, 12_000, 0.9
"""Responses to a prompt; tokens of a prompt, and of the longest and the middle response; deviation of the logarithm of their lengths."""
WORK = PassCost(token=44_000_000_000, square=94 * 2 * 64 * 128)
"""Of Qwen3-235B-A22B: 22 billion parameters take part; 94 layers with 64 heads of 128."""
EXPERT_GROUP = 8
"""Data-parallel ranks that wait for each other in every layer."""
TOKEN_BYTES = 8
"""Of a token in a part: its id and its log-probability."""
ESTIMATORS: tuple[dict[str, Any], ...] = (
    *({"advantage": name} for name in ADVANTAGES),
    {"advantage": "reinforce++", "gamma": 0.999},
    {"advantage": "gae", "gaeLambda": 0.95},
)


@dataclass(frozen=True, slots=True)
class Size:
    """A step, and the ranks that train it."""

    samples: int
    ranks: int

    @property
    def layouts(self) -> Iterator[Layout]:
        """Tensor-parallel 8, and pipelines that leave 8 to 64 copies of 512 ranks."""
        for pipeline in (8, 4, 2, 1):
            yield Layout(self.ranks, tensor=8, pipeline=pipeline, expert=EXPERT_GROUP)

    def columns(self) -> Columns:
        chance = np.random.default_rng(0)
        responses = np.clip(chance.lognormal(np.log(MEDIAN), SPREAD, self.samples), 16, LONGEST).astype(np.int32)
        number = np.arange(self.samples, dtype=np.int32)
        return Columns(
            prompt_index=(number // GROUP).astype(np.int64),
            group=number // GROUP,
            sample=number % GROUP,
            branch=np.zeros(self.samples, np.int32),
            length=PROMPT + responses,
            prompt_length=np.full(self.samples, PROMPT, np.int32),
            learnt_length=responses,
            truncated=responses == LONGEST,
            reward=chance.random(self.samples),
            baseline_reward=chance.random(self.samples),
            data_source=np.full(self.samples, "s"),
        )


def planner(layout: Layout, work: PassCost = WORK) -> Planner:
    spec = RLJobSpec.model_validate(
        {
            "model": {"path": "/none"},
            "data": {"train": ["/none"]},
            "rewards": [{"rule": "exactMatch"}],
            "train": {"steps": 1, "tokensPerMicroBatch": PROMPT + LONGEST},
            "checkpoint": {"path": "/none"},
            "image": "none",
        }
    )
    return Planner(spec, layout, work=work)


def computing(plan: StepPlan, columns: Columns) -> float:
    """The part of their time that ranks compute, by WORK: those of an expert group wait for each other in each micro-batch, and all at the end."""
    (cut,) = plan.mini_batches
    lengths = (columns.length - 1).tolist()
    costs = np.array([[sum(WORK.of(lengths[row]) for row in micro) for micro in rank] for rank in cut], float)
    together = costs.reshape(-1, min(EXPERT_GROUP, len(cut)), costs.shape[1]).max(1).sum(1)
    return float(costs.sum() / (len(cut) * together.max()))


def largest_part(plan: StepPlan, columns: Columns) -> list[int]:
    """Rows of the data-parallel rank with the most response tokens."""
    return max(plan.rows_by_rank(), key=lambda rows: int(columns.response_length[rows].sum()))


def episodes(columns: Columns, rows: list[int]) -> Episodes:
    """What the rank of these rows estimates advantages from."""
    counts = torch.zeros(len(columns), dtype=torch.int64)
    counts[rows] = torch.from_numpy(columns.response_length[rows]).long()
    chance, tokens = torch.Generator().manual_seed(0), int(counts.sum())
    return Episodes(
        rewards=torch.from_numpy(columns.reward),
        groups=torch.from_numpy(columns.group),
        counts=counts,
        mask=torch.ones(tokens, dtype=torch.float64),
        token_rewards=torch.zeros(tokens, dtype=torch.float64),
        values=torch.rand(tokens, generator=chance, dtype=torch.float64),
        baselines=torch.from_numpy(columns.baseline_reward),
    )


def held(given: Episodes) -> int:
    """Bytes of a rank's tokens in all columns of its episodes."""
    columns = (given.mask, given.token_rewards, given.values)
    return sum(column.nbytes for column in columns if column is not None)


def sent_by_rank_0(plan: StepPlan, columns: Columns, layout: Layout) -> tuple[int, int]:
    """Bytes of parts that leave rank 0 for other copies, and those that would if it sent a part to each rank of a copy."""
    parts = [TOKEN_BYTES * int(columns.length[rows].sum()) for rows in plan.rows_by_rank()]
    return sum(parts[1:]), layout.model * sum(parts) - parts[0]


def timed[T](function: Callable[[], T]) -> tuple[float, T]:
    """Seconds of this thread's processor, so that other processes of a busy machine do not count."""
    began = time.thread_time()
    found = function()
    return time.thread_time() - began, found


def measure(columns: Columns, layout: Layout) -> None:
    seconds, plan = timed(lambda: planner(layout).plan(columns))
    by_tokens = planner(layout, PassCost(token=1, square=0)).plan(columns)
    own = episodes(columns, largest_part(plan, columns))
    once, each = sent_by_rank_0(plan, columns, layout)
    print(f"\n{layout}: {len(plan.mini_batches[0][0])} micro-batches a rank, {len(own.mask) / 1e6:.1f} M own tokens")
    print(f"  plan                  {seconds:.2f} s (goal 1)")
    print(
        f"  ranks compute         {computing(plan, columns):.3f} (goal 0.97), dealt by tokens {computing(by_tokens, columns):.3f}"
    )
    whole = 3 * 8 * len(columns) * int(columns.response_length.max())
    print(f"  columns of tokens     {held(own) / 1e9:.3f} GB a rank; padded, of the whole step {whole / 1e9:.1f} GB")
    for fields in ESTIMATORS:
        algorithm = AlgorithmSpec.model_validate(fields)
        seconds, _ = timed(lambda: estimate(own, algorithm, ADVANTAGES[algorithm.advantage]))  # noqa: B023
        print(f"  {' '.join(map(str, fields.values())):<22}{seconds:.2f} s (goal 1)")
    print(f"  leaves rank 0         {once / 1e9:.2f} GB; if sent to each rank of a copy {each / 1e9:.1f} GB")


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.budget")
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--ranks", type=int, default=512)
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = Size(options.samples, options.ranks)
    columns = size.columns()
    print(f"{len(columns):,} responses of {columns.response_length.mean():,.0f} tokens in the mean, {size.ranks} ranks")
    for layout in size.layouts:
        measure(columns, layout)


if __name__ == "__main__":
    main()
