"""The command line, put together from the verbs."""

import argparse
from datetime import datetime
from typing import Protocol

from kubectl_rljob.verbs import (
    checkpoints,
    completion,
    describe_failure,
    logs,
    metrics,
    plan,
    restart,
    resume,
    status,
    suspend,
    version,
    watch,
)
from kubectl_rljob.verbs import list as list_


class Verb(Protocol):
    """What a module of `verbs` offers."""

    __name__: str
    __doc__: str | None

    def arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace, now: datetime) -> int: ...


VERBS: tuple[Verb, ...] = (
    list_,
    status,
    watch,
    metrics,
    logs,
    describe_failure,
    checkpoints,
    suspend,
    resume,
    restart,
    plan,
    completion,
    version,
)
GLOBAL_DEFAULTS = {"kubeconfig": None, "context": None, "namespace": None}


def name(verb: Verb) -> str:
    return verb.__name__.rpartition(".")[2].replace("_", "-")


def summary(verb: Verb) -> str:
    """First line of its docstring."""
    return (verb.__doc__ or "").split("\n", 1)[0].rstrip(".")


def global_flags() -> argparse.ArgumentParser:
    """kubectl's own flags. They may stand before or after the verb, so neither sets a default: GLOBAL_DEFAULTS does."""
    flags = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    group = flags.add_argument_group("global flags")
    group.add_argument("-n", "--namespace", help="namespace to work in (default: the context's)")
    group.add_argument("--context", help="context of the kubeconfig")
    group.add_argument(
        "--kubeconfig", metavar="FILE", help="path of the kubeconfig (default: $KUBECONFIG, else ~/.kube/config)"
    )
    return flags


def build() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser, and those of its verbs by name."""
    flags = global_flags()
    root = argparse.ArgumentParser(
        "kubectl rljob",
        description="Look at RLJobs, hold and continue them, check one before it is applied.",
        parents=[flags],
    )
    commands = root.add_subparsers(title="verbs", metavar="VERB", required=True)
    parsers = {}
    for verb in VERBS:
        description = (verb.__doc__ or "").strip()
        sub = commands.add_parser(
            name(verb),
            help=summary(verb),
            description=description,
            parents=[flags],
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.arguments(sub)
        sub.set_defaults(run=verb.run)
        parsers[name(verb)] = sub
    return root, parsers


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Exits with 2 on a wrong command line."""
    return build()[0].parse_args(argv, argparse.Namespace(**GLOBAL_DEFAULTS))
