"""What went wrong for the user, and the command to go on with."""


class UserError(Exception):
    """Printed as `error: <message>` and, if there is one, `next:  <next_command>`; exit code 1, no traceback."""

    def __init__(self, message: str, next_command: str = "") -> None:
        super().__init__(message)
        self.next_command = next_command
