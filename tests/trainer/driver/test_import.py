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
