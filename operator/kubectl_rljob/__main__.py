"""Entry point of `kubectl rljob`. Exit codes are in `errors`."""

import sys
from datetime import datetime, timezone

import click

from kubectl_rljob import command_line, errors
from kubectl_rljob.errors import UserError
from kubectl_rljob.options import Session
from kubectl_rljob.terminal import Terminal


def main(argv: list[str] | None = None, now: datetime | None = None) -> int:
    """Run one verb. `now` is the time that ages are counted to."""
    session = Session(now or datetime.now(timezone.utc), Terminal())
    try:
        command_line.run(sys.argv[1:] if argv is None else argv, session)
        session.terminal.flush()
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except UserError as error:
        session.terminal.tell(f"error: {error}")
        if error.next_command:
            session.terminal.tell(f"next:  {session.here(error.next_command)}")
        return errors.REFUSED
    except (KeyboardInterrupt, click.Abort):
        return errors.INTERRUPTED
    except BrokenPipeError:
        session.terminal.give_up()
    return errors.DONE


if __name__ == "__main__":
    sys.exit(main())
