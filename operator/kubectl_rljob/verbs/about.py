"""Verbs about the plugin itself."""

import click

from kubectl_rljob.options import verb
from kubectl_rljob.session import Session
from rljob_api import names

VERSION = "0.1.0"
"""Written here, because the plugin in one file has no package metadata."""
COMPLETION = """\
kubectl completes `kubectl rljob` when kubectl_complete-rljob is on the PATH (it is installed with kubectl-rljob)
and kubectl's own completion is on:

    {line}"""
LINES = {
    "bash": "source <(kubectl completion bash)",
    "zsh": "source <(kubectl completion zsh)",
    "fish": "kubectl completion fish | source",
}


@verb()
@click.argument("shell", metavar="SHELL", type=click.Choice(tuple(LINES)), help="bash, zsh or fish")
def completion(session: Session, shell: str) -> None:
    """Explain how to enable completion in a shell.

    It completes verbs, flags and job names.
    """
    session.terminal.show(COMPLETION.format(line=LINES[shell]))


@verb()
def version(session: Session) -> None:
    """Print the plugin's version.

    Also prints the versions of the API and of the runtime protocol.
    """
    session.terminal.show(f"kubectl-rljob {VERSION} (API {names.API_VERSION}, protocol {names.PROTOCOL})")
