"""A batch from the driver to the ranks: what each holds in the end, and the bytes on every socket on the way."""

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from api.specs import make_spec
from rljob_api.sizing.layout import Layout
from rljob_trainer.driver.buffer.measured import joined
from rljob_trainer.driver.server import serve
from rljob_trainer.rank.driver_client import DriverClient
from rljob_trainer.wire import arrays
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.channel import announced, listen, part_of
from rljob_trainer.wire.trajectory import Trajectory
from trainer.ranks import run_ranks
from trainer.traffic import Traffic

SECONDS = 120
GROUPS, SAMPLES, TOKENS = 8, 4, 20_000
SPEC = make_spec(train={"promptsPerStep": GROUPS, "samplesPerPrompt": SAMPLES, "tokensPerMicroBatch": 2 * TOKENS})


class Received(NamedTuple):
    """By one rank."""

    copy: int
    """Its data-parallel rank."""
    rows: list[int]
    equal: bool
    """Whether its trajectories and measurements are the driver's."""
    part: int
    """Bytes of its part."""
    sent: int
    received: int
    returned: int
    """Bytes that it received while all ranks sent measurements back to the driver."""
    arrived: bool
    """Whether these are the driver's own ones again, where this rank is the first."""


@pytest.fixture(scope="module")
def batch() -> Batch:
    chance = np.random.default_rng(0)
    made = []
    for group in range(GROUPS):
        for sample in range(SAMPLES):
            tokens = chance.integers(0, 1000, TOKENS - 1000 * sample, dtype=np.int32)
            log_probs = -chance.random(len(tokens) - 8, dtype=np.float32)
            fields: dict[str, Any] = {"prompt_index": group, "group": group, "sample": sample, "data_source": "s"}
            made.append(
                Trajectory.of_response(tokens[:8], tokens[8:], log_probs, 0, finish_reason="stop", reward=1.0, **fields)
            )
    measured = {i: chance.random(t.response_length, dtype=np.float32) for i, t in enumerate(made)}
    return Batch(1, Batch.of(1, made, {}).columns, dict(enumerate(made)), {}, {"values": measured})


def served(directory: Path, batch: Batch, sent_back: list[Batch]) -> DriverClient:
    """Rank 0's connection to a driver that has this batch, and keeps what comes back."""
    listener = listen(directory / "driver.sock")

    async def next() -> Any:
        return announced(batch)

    async def part(rows: list[int]) -> Any:
        return part_of(batch, rows)

    async def learn(step: int, arrays: Any) -> None:
        sent_back.append(joined(Batch(step, batch.columns, {}, {}), arrays))

    async def end(export: str) -> None: ...

    calls: Any = {"next": next, "part": part, "learn": learn, "end": end}
    threading.Thread(
        target=lambda: asyncio.run(serve(listener, calls, {"heartbeat": lambda count: None})), daemon=True
    ).start()
    return DriverClient.connect(directory / "driver.sock", directory / "error", SECONDS)


def same(found: Mapping[int, arrays.Array], expected: Mapping[int, arrays.Array]) -> bool:
    return sorted(found) == sorted(expected) and all(np.array_equal(found[row], expected[row]) for row in expected)


def on_a_rank(directory: Path, batch: Batch, layout: Layout) -> Received:
    import torch

    from rljob_trainer.megatron import parallel_state
    from rljob_trainer.megatron.batching import Planner
    from rljob_trainer.rank.scatter import Scatter
    from rljob_trainer.wire.collective import Ranks

    model, ranks = parallel_state.initialize(layout, torch.device("cpu"), SECONDS), Ranks(SECONDS)
    model.share(np.zeros(1, np.uint8))  # connects the copy's ranks
    sent_back: list[Batch] = []
    driver = served(directory, batch, sent_back) if ranks.is_first else None
    scatter = Scatter(ranks, driver, model, Planner(SPEC, layout).parts)
    answer = ranks.broadcast(driver.next() if driver else None)
    ranks.barrier()
    before = Traffic.now()
    found = scatter.receive(answer["batch"])
    ranks.barrier()
    after, rows = Traffic.now(), sorted(found.trajectories)
    equal = found.columns == batch.columns and all(found.trajectories[i] == batch.trajectories[i] for i in rows)
    equal = equal and same(found.measured["values"], {i: batch.measured["values"][i] for i in rows})
    part = arrays.nbytes(part_of(batch, rows))
    values = scatter.collect(batch.columns, found.measured)
    if driver:
        assert values
        driver.learn(1, values)
        driver.end("")
    ranks.barrier()
    returned = Traffic.now()
    return Received(
        copy=model.data_rank,
        rows=rows,
        equal=equal,
        part=part,
        sent=after.sent - before.sent,
        received=after.received - before.received,
        returned=returned.received - after.received,
        arrived=driver is None or same(sent_back[0].measured["values"], batch.measured["values"]),
    )


@pytest.mark.parametrize(
    ("layout", "own_sends"),
    [
        pytest.param(Layout(8, tensor=2, pipeline=2), 2, id="DP2 TP2 PP2"),
        pytest.param(Layout(8, tensor=2, context=2), 2, id="DP2 TP2 CP2"),
        pytest.param(Layout(8), 0, id="DP8"),
        pytest.param(Layout(8, tensor=4, pipeline=2), 3, id="TP4 PP2"),
    ],
)
def test_a_part_goes_once_to_each_copy_and_measurements_once_back_however_many_ranks_it_has(
    megatron: None, tmp_path: Path, batch: Batch, layout: Layout, own_sends: int
) -> None:
    """Within a copy it is passed on: `own_sends` is the number of sends with which rank 0 begins that in its own copy, a tree of its ranks."""
    found = run_ranks(8, lambda: on_a_rank(tmp_path, batch, layout))
    assert all(rank.equal for rank in found)
    copies = {rank.copy: rank for rank in found}
    assert sorted(row for rank in copies.values() for row in rank.rows) == list(range(GROUPS * SAMPLES))
    small = 0.02 * sum(rank.part for rank in copies.values())
    expected = own_sends * copies[0].part + sum(rank.part for copy, rank in copies.items() if copy)
    assert expected <= found[0].sent < expected + small
    for rank in found[1:]:
        assert rank.part <= rank.received < rank.part + small, "every rank gets its part, and that once"
        assert rank.returned < small, "measurements go to the driver, not to other ranks"
    assert all(rank.arrived for rank in found)
    of_others = sum(4 * int(batch.columns.response_length[rank.rows].sum()) for c, rank in copies.items() if c)
    assert of_others <= found[0].returned < of_others + small
