"""SIGKILL at random moments of a job that generates ahead: over all attempts every sample is trained exactly as often as without them.

Driver, checkpoints and their resumption are real; the rollout server writes what it is made to, and the trainer in between trains nothing.
"""

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from rljob_trainer.checkpoint.files import Tally, write_json
from rljob_trainer.checkpoint.manifest import BUFFERS, fingerprints, read_manifests
from rljob_trainer.checkpoint.store import Store
from rljob_trainer.data.order import permutation
from rljob_trainer.driver import main
from trainer.checkpoint.saving import contents, open_store
from trainer.driver.bench import Bench, Characters, Rank, call, publish, save_buffer, trained, whole_batch
from trainer.driver.servers import Thinker

ROWS, PROMPTS, SAMPLES, EVERY = 12, 2, 2, 2


class Job:
    """One job, whose attempts are processes."""

    def __init__(self, root: Path, steps: int, staleness: int, interrupt: str):
        root.mkdir()
        self._steps, self._attempts, self._bench = steps, 0, Bench(root)
        self._bench.spec["algorithm"] = {"rolloutCorrection": {"importanceSampling": "token"}}
        amounts = {"steps": steps, "promptsPerStep": PROMPTS, "samplesPerPrompt": SAMPLES}
        self._bench.spec["train"] = amounts | {"staleness": staleness}
        self._bench.spec["rollout"]["interrupt"] = interrupt
        self.root = self._bench.root
        self.root.mkdir()

    def start(self, step: int | None = None) -> int:
        """The next attempt's process: from `step`, or from the newest checkpoint."""
        self._attempts += 1
        child = os.fork()
        if not child:
            code = 1
            try:
                main.load_tokenizer = lambda spec: Characters()  # type: ignore[assignment, return-value]
                asyncio.run(self._attempt(open_store(self.root, self._attempts, step, keep_last=3)))
                code = 0
            finally:
                os._exit(code)
        return child

    def checkpoints(self) -> list[int]:
        return [m.step for m in read_manifests(self.root)]

    def trained(self) -> Counter[tuple[int, int]]:
        """Row of the prompt and number of the sample, over all steps."""
        files = [self._log(step) for step in range(1, self._steps + 1)]
        return Counter((row, sample) for file in files for row, sample in json.loads(file.read_text()))

    def _log(self, step: int) -> Path:
        return self.root / f"trained-{step}.json"

    async def _attempt(self, store: Store) -> None:
        start = store.start
        step, data, buffer = 0, None, None
        if start:
            assert start.manifest.corruption(start.directory, 0, 1, Tally()) == ""
            step, data, buffer = start.manifest.step, dict(start.manifest.data), start.directory / start.manifest.buffer
        async with Thinker("demo-rollout-0", lambda a, b: 8 * ((7 * a + b) % 5)) as server:
            self._bench.control(rollouts=(server.endpoint,))
            rank = await self._bench.connect()
            await call(rank.start, step, data, [], "", buffer)
            while "over" not in (answer := await call(rank.next)):
                if "newcomers" in answer:
                    await publish(rank, step, [server])
                elif "batch" in answer:
                    found = await call(whole_batch, rank, answer["batch"])
                    step = found.step
                    write_json(self._log(step), [(s.prompt_index, s.sample) for s in found.samples])
                    await trained(rank, step)
                    await publish(rank, step, [server])
                    if step % EVERY == 0 or step == self._steps:
                        await self._save(store, rank, step)

    async def _save(self, store: Store, rank: Rank, step: int) -> None:
        data = await call(rank.saving)
        directory = store.begin(step)
        await save_buffer(rank, directory / BUFFERS[0])
        made = contents(step, fingerprints(directory))
        store.commit(type(made)(**{field: getattr(made, field) for field in made.__slots__} | {"data": data}))


ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT


def through_kills(job: Job, kills: int, chance: random.Random) -> None:
    """Start it again and again, once from an earlier checkpoint than the last, until it ends; kill it before, at moments of all kinds."""
    back = kills // 2
    killed = 0
    while killed < kills:
        held = job.checkpoints()
        child = job.start(held[-2] if killed == kills - back and len(held) > 1 else None)
        newest = job.checkpoints()
        for _ in range(chance.randint(0, 2)):
            while job.checkpoints() == newest and not os.waitid(os.P_PID, child, ENDED):
                time.sleep(0.005)
            newest = job.checkpoints()
        time.sleep(chance.uniform(0, 0.8))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) == 0 and killed:  # on a busy machine we may come too late
            return
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "it ended before it was killed"
        killed += 1
    assert os.waitstatus_to_exitcode(os.waitpid(job.start(), 0)[1]) == 0


@pytest.mark.parametrize(
    ("kills", "staleness", "interrupt"),
    [
        pytest.param(2, 2, "continue", marks=pytest.mark.slow),
        pytest.param(20, 2, "continue", marks=pytest.mark.extra),
        pytest.param(20, 3, "wait", marks=pytest.mark.extra),
    ],
)
def test_no_sample_is_lost_or_doubled_by_kills_at_random_moments(
    tmp_path: Path, kills: int, staleness: int, interrupt: str
) -> None:
    steps = 6 + 5 * kills
    jobs = [Job(tmp_path / name, steps, staleness, interrupt) for name in ("killed", "undisturbed")]
    through_kills(jobs[0], kills, random.Random(kills))
    through_kills(jobs[1], 0, random.Random(0))
    order = [permutation(ROWS, 0, p // ROWS)[p % ROWS] for p in range(steps * PROMPTS)]
    assert jobs[1].trained() == Counter((row, i) for row in order for i in range(SAMPLES))
    assert jobs[0].trained() == jobs[1].trained()
    assert any((d / "buffer/buffer.json").exists() for d in jobs[0].root.glob("global_step_*")), "no test"
