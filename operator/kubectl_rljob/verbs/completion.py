"""Say how to switch on completion of verbs, flags and job names in a shell."""

import argparse
from datetime import datetime

TEXT = """\
kubectl completes `kubectl rljob` by itself when kubectl_complete-rljob is on the PATH (it is installed beside kubectl-rljob)
and kubectl's own completion is on:

    {line}"""
LINES = {
    "bash": "source <(kubectl completion bash)",
    "zsh": "source <(kubectl completion zsh)",
    "fish": "kubectl completion fish | source",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=tuple(LINES), metavar="SHELL", help="bash, zsh or fish")


def run(args: argparse.Namespace, now: datetime) -> int:
    print(TEXT.format(line=LINES[args.shell]))
    return 0
