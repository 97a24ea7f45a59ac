"""The soft punishment of long responses."""

import subprocess
import sys

import pytest

from rljob_api.spec.algorithm import Overlong
from rljob_trainer.algorithm.shaping import overlong_penalty


def test_the_penalty_grows_linearly_over_the_buffer() -> None:
    overlong = Overlong(buffer_tokens=20, penalty=2.0)
    assert [overlong_penalty(n, 100, overlong) for n in (0, 80, 85, 90, 100)] == [0.0, 0.0, 0.5, 1.0, 2.0]


@pytest.mark.parametrize("length", [0, 99, 100])
def test_without_a_buffer_there_is_none(length: int) -> None:
    assert overlong_penalty(length, 100, Overlong()) == 0.0


def test_the_driver_needs_no_torch_for_it() -> None:
    code = "import sys; import rljob_trainer.algorithm.shaping; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
