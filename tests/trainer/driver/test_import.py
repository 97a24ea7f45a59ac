"""What the driver's process writes while it imports its packages, which is the beginning of a job's log."""

import subprocess
import sys

PREPARE = """
import os, sys
from rljob_trainer.driver.__main__ import prepare
before = dict(os.environ)
prepare()
assert "transformers" in sys.modules and sys.modules["torch"] is None
assert os.environ == before
"""


def test_the_log_does_not_begin_with_advice_about_the_torch_that_is_left_out():
    ran = subprocess.run([sys.executable, "-c", PREPARE], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


LOADED = """
import gc
from rljob_trainer.driver.__main__ import prepare
prepare()
from rljob_trainer.driver.main import exempt_from_collection
before = len(gc.get_objects())
exempt_from_collection()
assert len(gc.get_objects()) < before / 100 and gc.get_freeze_count() > before / 2
"""


def test_the_garbage_collector_passes_over_what_was_loaded():
    """Else it holds the event loop for 0.3 s, several times in a step of 4,096 requests."""
    subprocess.run([sys.executable, "-c", LOADED], check=True, timeout=300)
