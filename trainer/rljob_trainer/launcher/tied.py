"""`python -m rljob_trainer.launcher.tied MODULE [ARGUMENT...]`: `python -m MODULE`, killed when the process that started it ends."""

import runpy
import sys

from rljob_trainer.launcher.processes import die_with_parent


def command(module: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-u", "-m", "rljob_trainer.launcher.tied", module, *arguments)


if __name__ == "__main__":
    die_with_parent()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
