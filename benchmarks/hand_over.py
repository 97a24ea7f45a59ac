"""What a step's trajectories take between processes, at full size on one core: the bytes on every link from rank 0, in messages and as raw arrays.

    python -m benchmarks.hand_over [--samples N] [--ranks N] [--routed N] [--turns N]

Real trajectories of the lengths of benchmarks/budget.py (4,096 of up to 64k tokens); 10,000 responses with the experts of their tokens, as
Qwen3-235B-A22B routes them (94 layers, 8 experts); and 4,096 agents of 100 turns, with a tool's answer after each. Goals: every link carries what
`kubectl rljob plan` says (rljob_api.sizing.network), within a hundredth; the JSON of a message does not grow with what follows it.
"""

import argparse
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from benchmarks import budget
from rljob_api.sizing.layout import Layout
from rljob_api.sizing.network import LOG_PROB, TOKEN
from rljob_trainer.wire import arrays
from rljob_trainer.wire.batch import Batch, Columns
from rljob_trainer.wire.channel import encode, part_of
from rljob_trainer.wire.trajectory import Trajectory, environment, prompt, sampled

LAYERS, EXPERTS = 94, 8
"""Of Qwen3-235B-A22B: layers, and experts of a token in each."""
ROUTED_TOKENS, TURN, ANSWER = 64, 24, 8
"""Tokens of a routed response, of a turn of an agent, and of a tool's answer."""


class Message(NamedTuple):
    """A part of a batch on its way."""

    json: int
    """Bytes of the message itself."""
    raw: int
    """Bytes of the arrays that follow it."""


def responses(columns: Columns) -> list[Trajectory]:
    """Prompts and responses of these lengths, which share their tokens' memory."""
    tokens = np.arange(int(columns.length.max()), dtype=np.int32)
    log_probs = -np.ones(len(tokens), np.float32)
    return [
        Trajectory.of_response(
            tokens[:first],
            tokens[first:length],
            log_probs[: length - first],
            0,
            **_fields(row),
        )
        for row, (first, length) in enumerate(zip(columns.prompt_length.tolist(), columns.length.tolist(), strict=True))
    ]


def routed(count: int) -> list[Trajectory]:
    """Responses, each with an array of its own of the experts that its tokens were routed to."""
    chance, tokens = np.random.default_rng(0), np.arange(ROUTED_TOKENS, dtype=np.int32)
    shape = (ROUTED_TOKENS - 1, LAYERS, EXPERTS)
    log_probs = -np.ones(ROUTED_TOKENS - 1, np.float32)
    return [
        Trajectory.of_response(
            tokens[:1],
            tokens[1:],
            log_probs,
            0,
            routed_experts=chance.integers(0, 128, shape, np.uint8),
            **_fields(row),
        )
        for row in range(count)
    ]


def agents(count: int, turns: int) -> list[Trajectory]:
    """A prompt, then turns of the policy with a tool's answer after each."""
    turn, answer = np.arange(TURN, dtype=np.int32), environment(np.arange(ANSWER, dtype=np.int32))
    spoken = sampled(turn, -np.ones(TURN, np.float32), 0)
    segments = (prompt(turn), *chain.from_iterable((spoken, answer) for _ in range(turns)))
    return [Trajectory(segments, **_fields(row)) for row in range(count)]


def _fields(row: int) -> dict[str, Any]:
    return {
        "prompt_index": row // budget.GROUP,
        "group": row // budget.GROUP,
        "sample": row % budget.GROUP,
        "finish_reason": "stop",
        "reward": 1.0,
        "data_source": "s",
    }


def batch_of(made: Sequence[Trajectory]) -> Batch:
    return Batch(1, Columns.of(made), dict(enumerate(made)), {})


def message(batch: Batch, rows: Sequence[int]) -> Message:
    """Of a part, as it leaves the driver for rank 0, and rank 0 for the first rank of the part's copy."""
    part = part_of(batch, rows)
    return Message(len(encode(part)), sum(map(len, arrays.chunks(part.pieces))))


def links(batch: Batch, layout: Layout) -> Iterator[tuple[Message, float]]:
    """From rank 0 to each other copy: what is sent, and what plan counts for it."""
    plan = budget.planner(layout).plan(batch.columns)
    for rows in plan.rows_by_rank()[1:]:
        tokens, written = batch.columns.length[rows].sum(), batch.columns.response_length[rows].sum()
        yield message(batch, rows), float(TOKEN * tokens + LOG_PROB * written)


def read_back(batch: Batch) -> dict[int, Trajectory]:
    """All trajectories out of the bytes that a rank receives."""
    part, rows = part_of(batch, range(len(batch.columns))), range(len(batch.columns))
    sizes = {name: part[name] for name in arrays.KINDS}
    block = np.frombuffer(b"".join(arrays.chunks(part.pieces)), np.uint8)
    return arrays.trajectories_of(arrays.cut(block, sizes), batch.columns, rows)


def report(name: str, made: list[Trajectory]) -> None:
    batch = batch_of(made)
    seconds, sent = budget.timed(lambda: message(batch, range(len(made))))
    back, found = budget.timed(lambda: read_back(batch))
    assert found == batch.trajectories
    print(f"\n{name}")
    print(f"  message               {sent.json:,} bytes of JSON, then {sent.raw / 1e9:.3f} GB of arrays")
    print(f"  written               {seconds:.2f} s")
    print(f"  written and read      {back:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.hand_over")
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--routed", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=100)
    options = parser.parse_args()
    size = budget.Size(options.samples, options.ranks)
    batch = batch_of(responses(size.columns()))
    for layout in size.layouts:
        found = list(links(batch, layout))
        sent = [one.raw for one, _ in found]
        off = max(abs(one.raw / planned - 1) for one, planned in found)
        print(
            f"{layout}: {len(found)} links, {min(sent) / 1e6:,.1f} to {max(sent) / 1e6:,.1f} MB each, "
            f"{sum(sent) / 1e9:.2f} GB in all; off what plan says by {100 * off:.2f} % at most (goal 1)"
        )
    report(f"{options.routed:,} responses with their experts", routed(options.routed))
    report(f"{options.samples:,} agents of {options.turns} turns", agents(options.samples, options.turns))


if __name__ == "__main__":
    main()
