"""Run the Python program on standard input, in this process, with limits that it cannot raise: `python -I limited.py SECONDS MEMORY_BYTES`.

It has that much processor time and memory, no process or thread but this one (which the kernel does not hold root to), no file that it could write
into, and nothing that was open before.
"""

import resource
import sys

OPEN_FILES = 16


def main() -> None:
    seconds, memory = map(int, sys.argv[1:])
    program = sys.stdin.read()
    limits = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in limits.items():
        resource.setrlimit(kind, (most, most))
    sys.argv[:] = ["program"]
    exec(compile(program, "program", "exec"), {"__name__": "__main__"})


main()
