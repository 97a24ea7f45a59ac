"""A command of a shell with a limit; when it ends, so does everything that it started.

    python -m benchmarks.reaper SECONDS COMMAND

Processes that left its session become children of this one as soon as their parents end. Exits as the command does, or with 124 after its limit.
"""

import signal
import subprocess
import sys
from contextlib import suppress

from rljob_trainer.processes import adopt_orphans, kill_group, sweep

GOODBYE_SECONDS = 10.0
LATE = 124
"""As timeout(1) has it."""


def main(seconds: float, command: str) -> int:
    adopt_orphans()
    process = subprocess.Popen(["bash", "-c", command], start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        kill_group(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GOODBYE_SECONDS)
        return LATE
    finally:
        sweep(set())


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2]))
