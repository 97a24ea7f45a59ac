"""Entry point of `kubectl rljob`.

Exit codes: 0 done; 1 the job, the manifest or the cluster refuses; 2 wrong command line; 130 interrupted.
"""

import io
import os
import sys
from datetime import UTC, datetime

from kubectl_rljob import parser
from kubectl_rljob.errors import UserError, here

INTERRUPTED = 130


def main(argv: list[str] | None = None, now: datetime | None = None) -> int:
    """Run one verb. `now` is the time that ages are counted to."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 gets question marks, not a traceback
    args = parser.parse(argv)
    try:
        code = args.run(args, now or datetime.now(UTC))
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.next_command:
            print(f"next:  {here(error.next_command, args)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `| head` has seen enough; keep the interpreter's own flush at exit quiet
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
