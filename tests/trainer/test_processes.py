"""Who our children are, and what becomes of them."""

import subprocess
import sys

from rljob_trainer.processes import children

PR_SET_NAME = 15
"""linux/prctl.h"""


def test_a_child_whose_name_is_cut_within_a_letter_is_one_too() -> None:
    name = "rank of 训练".encode()[:-1]
    code = f"import ctypes; ctypes.CDLL(None).prctl({PR_SET_NAME}, {name!r}); print('named', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        assert child.pid in children()
        child.kill()
