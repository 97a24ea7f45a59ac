"""What an attempt waits for is in its progress when nothing has moved for a while."""

import asyncio
from pathlib import Path

import pytest

from api.specs import make_spec
from rljob_trainer.driver.reporter import Alarms, Reporter
from rljob_trainer.wire import launcher_files
from rljob_trainer.wire.launcher_files import ProgressFile


@pytest.mark.parametrize(
    ("rank_phase", "work_phase", "said"),
    [
        ("syncing", "generating", "syncing: waiting for demo-rollout-1 to receive weights"),
        ("training", "generating", "training: nothing moves"),
        ("", "generating", "generating: waiting for demo-rollout-0 (does not answer)"),
        ("loading", "generating", ""),
    ],
)
async def test_it_is_named_and_forgotten_with_the_next_movement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank_phase: str, work_phase: str, said: str
) -> None:
    monkeypatch.setattr(launcher_files, "QUIET_SECONDS", 0.3)
    monkeypatch.setattr(launcher_files, "WRITE_SECONDS", 0.02)
    progress = ProgressFile(tmp_path / "progress.json")
    reporter = Reporter(progress, lambda: True, list, lambda: "demo-rollout-0 (does not answer)", Alarms(make_spec()))
    reporter.work(work_phase)
    reporter.enter(rank_phase)
    if rank_phase == "syncing":
        reporter.rank_awaits("demo-rollout-1 to receive weights")
    assert progress.progress.awaiting == ""
    running = asyncio.create_task(progress.run())
    if not said:
        await asyncio.sleep(2 * launcher_files.QUIET_SECONDS)  # nothing is to be named
    async with asyncio.timeout(60):
        while progress.progress.awaiting != said:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        while progress.progress.awaiting:
            progress.heartbeat()
            await asyncio.sleep(0.01)
    running.cancel()
