"""What the driver's process writes while it imports its packages, which is the beginning of a job's log, and what they leave in it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

PREPARE = """
import gc, json, os, sys
from pathlib import Path
from rljob_trainer.driver.__main__ import prepare
before = dict(os.environ)
prepare()
assert "transformers" in sys.modules and sys.modules["torch"] is None
assert os.environ == before
from rljob_trainer.collection import exempt_from_collection
loaded = len(gc.get_objects())
exempt_from_collection()
Path(sys.argv[1]).write_text(json.dumps([loaded, len(gc.get_objects()), gc.get_freeze_count()]))
"""


class Prepared(NamedTuple):
    """A process that has imported what a driver's does."""

    said: tuple[int, str, str]
    """Exit code, and what it wrote."""
    counts: Path
    """Objects after the imports; afterwards those of the garbage collector, and those that it passes over."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    counts = tmp_path_factory.mktemp("driver") / "counts.json"
    ran = subprocess.run([sys.executable, "-c", PREPARE, counts], capture_output=True, text=True, timeout=300)
    return Prepared((ran.returncode, ran.stdout, ran.stderr), counts)


def test_the_log_does_not_begin_with_advice_about_the_torch_that_is_left_out(prepared: Prepared) -> None:
    assert prepared.said == (0, "", "")


def test_the_garbage_collector_passes_over_what_was_loaded(prepared: Prepared) -> None:
    """Else it holds the event loop for 0.3 s, several times in a step of 4,096 requests."""
    loaded, collected, frozen = json.loads(prepared.counts.read_text())
    assert collected < loaded / 100 and frozen > loaded / 2
