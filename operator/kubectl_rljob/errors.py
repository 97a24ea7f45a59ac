"""How the plugin ends: what went wrong for the user, the command to run next, and exit codes for scripts."""

DONE = 0
REFUSED = 1
WRONG_COMMAND_LINE = 2
JOB_FAILED = 3
INTERRUPTED = 130

EXIT_CODES = {
    DONE: "done; of `watch`: the job has succeeded",
    REFUSED: "the request was refused, the manifest is invalid, or the cluster cannot be reached",
    WRONG_COMMAND_LINE: "wrong command line",
    JOB_FAILED: "`watch`: the job has failed",
    INTERRUPTED: "interrupted",
}


class UserError(Exception):
    """Printed as `error: <message>` and, if there is one, `next:  <next_command>`; exit code 1, no traceback."""

    def __init__(self, message: str, next_command: str = "", transient: bool = False) -> None:
        """`transient`: the same request may succeed in a moment, as when the API server restarts."""
        super().__init__(message)
        self.next_command = next_command
        self.transient = transient
