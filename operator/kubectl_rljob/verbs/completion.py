"""Say how to switch on completion of verbs, flags and job names in a shell."""

import argparse
from datetime import datetime

TEXT = """\
kubectl completes `kubectl rljob` by itself when kubectl_complete-rljob is on the PATH (it is installed beside kubectl-rljob)
and kubectl's own completion is on:

    source <(kubectl completion {shell})"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")


def run(args: argparse.Namespace, now: datetime) -> int:
    print(TEXT.format(shell=args.shell))
    return 0
