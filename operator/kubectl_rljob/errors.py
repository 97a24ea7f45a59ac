"""What went wrong for the user, and the command to go on with."""

import argparse
from shlex import quote


class UserError(Exception):
    """Printed as `error: <message>` and, if there is one, `next:  <next_command>`; exit code 1, no traceback."""

    def __init__(self, message: str, next_command: str = "") -> None:
        super().__init__(message)
        self.next_command = next_command


def here(command: str, args: argparse.Namespace) -> str:
    """The command with the flags by which `args` chose a cluster: without them it could act on a job of that name in another one."""
    if not command.startswith("kubectl ") or command.startswith("kubectl config "):
        return command
    chosen = {"--context": args.context, "--kubeconfig": args.kubeconfig}
    return " ".join([command, *(f"{flag} {quote(value)}" for flag, value in chosen.items() if value)])
