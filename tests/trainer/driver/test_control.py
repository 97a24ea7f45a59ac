"""What the operator says comes to the driver."""

import asyncio
import os

from rljob_trainer.wire.launcher_files import follow_control
from trainer.driver.bench import SECONDS, Bench


async def test_a_word_that_replaces_another_within_a_tick_of_the_clock_is_heard(tmp_path):
    bench = Bench(tmp_path)
    following = follow_control(bench.directory)
    for word in ("run", "drain", "run"):
        bench.control(word)
        os.utime(bench.directory / "control.json", ns=(1, 1))
        assert (await asyncio.wait_for(anext(following), SECONDS)).command == word
