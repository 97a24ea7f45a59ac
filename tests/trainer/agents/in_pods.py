"""Agents in pods of their own, for tests with the whole driver."""

from pathlib import Path

import pytest

from rljob_trainer.wire.batch import Batch
from trainer.agents.talker import TWO_TURNS, with_agent
from trainer.driver.bench import Bench
from trainer.workers.pods import impatient_bench


def bench_of_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    found = impatient_bench(tmp_path, monkeypatch)
    found.spec["rewards"] = []
    found.spec["train"]["promptsPerStep"] = 12
    return found


def in_pods(bench: Bench, tmp_path: Path, code: str = TWO_TURNS, processes: int = 1, **agent: object) -> None:
    with_agent(bench.spec, tmp_path, code, workers={"replicas": 2, "processes": processes}, **agent)


def each_once(batch: Batch) -> bool:
    return [(s.group, s.sample) for s in batch.samples] == [(g, i) for g in range(12) for i in range(3)]


def saying_where(directory: Path) -> str:
    """The agent, whose processes write there."""
    mark = f"    import os\n    open(f'{directory}/{{os.environ[\"RLJOB_FAMILY\"]}}', 'a').write('x')\n    context ="
    return TWO_TURNS.replace("    context =", mark, 1)
