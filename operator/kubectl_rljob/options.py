"""What verbs are made of: the session (the cluster that the user chose, the clock and the terminal), the decorator that makes a function a verb, and
flags and arguments that several verbs share."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from shlex import quote
from typing import Any

import click
from click.shell_completion import CompletionItem

from kubectl_rljob.cluster import ClusterClient
from kubectl_rljob.errors import UserError
from kubectl_rljob.job import Job
from kubectl_rljob.terminal import Terminal
from rljob_api import names
from rljob_api.policy import DEFAULT_POLICY, JobPolicy


@dataclass
class Session:
    """One run of the plugin. kubectl's own flags are filled in as they are read."""

    now: datetime
    """Ages are counted to it."""
    terminal: Terminal
    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    user: str | None = None
    """Whom to act as."""

    def cluster(self) -> ClusterClient:
        """Raises UserError."""
        return ClusterClient.connect(self.kubeconfig, self.context, self.namespace, self.user)

    def job(self, name: str) -> Job:
        """Raises UserError."""
        return self.cluster().job(name)

    def job_policy(self, operator_namespace: str) -> tuple[JobPolicy, str]:
        """The cluster's, or the one without defaults and limits and why it is not the cluster's."""
        try:
            return self.cluster().job_policy(operator_namespace), ""
        except UserError as error:
            return DEFAULT_POLICY, f"not read: {error}"

    def here(self, command: str) -> str:
        """The command with the flags that chose this cluster: without them it could act on a job of that name in another one."""
        if not command.startswith("kubectl ") or command.startswith("kubectl config "):
            return command
        chosen = {"--context": self.context, "--kubeconfig": self.kubeconfig, "--as": self.user}
        return " ".join([command, *(f"{flag} {quote(value)}" for flag, value in chosen.items() if value)])


Decorator = Callable[[Any], Any]
SINGULAR = names.KIND.lower()
KINDS = {kind + group for kind in (SINGULAR, names.PLURAL) for group in ("", f".{names.GROUP}")}


def _keep(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Into the session. The flags may stand before or after the verb, so one that is absent says nothing."""
    if value is not None and parameter.name:
        setattr(ctx.find_object(Session), parameter.name, value)


GLOBAL: tuple[Decorator, ...] = (
    click.option(
        "-n",
        "--namespace",
        metavar="NAMESPACE",
        expose_value=False,
        callback=_keep,
        help="namespace to work in (default: the context's)",
    ),
    click.option("--context", metavar="CONTEXT", expose_value=False, callback=_keep, help="context of the kubeconfig"),
    click.option(
        "--kubeconfig",
        metavar="FILE",
        type=click.Path(),
        expose_value=False,
        callback=_keep,
        help="path of the kubeconfig (default: $KUBECONFIG, else ~/.kube/config)",
    ),
    click.option(
        "--as",
        "user",
        metavar="USER",
        expose_value=False,
        callback=_keep,
        help="act as this user, or system:serviceaccount:NAMESPACE:NAME; you need the right to impersonate",
    ),
)


def with_global(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(GLOBAL):
        command = option(command)
    return command


def verb(name: str | None = None) -> Decorator:
    """A command whose help is the docstring of a function `(session, **flags)`."""

    def make(function: Callable[..., None]) -> click.Command:
        return click.command(name)(with_global(click.pass_obj(function)))

    return make


def _jobs(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Of the namespace that the flags choose; none when there is no cluster, since a prompt is no place for errors."""
    session = ctx.find_object(Session)
    assert session
    try:
        return [CompletionItem(j.name) for j in session.cluster().jobs(False) if j.name.startswith(incomplete)]
    except UserError:
        return []


def _without_kind(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    """kubectl also names an object by its kind: `rljob/demo`, or `rljob.rljob.dev/demo`."""
    kind, _, name = value.rpartition("/")
    return name if kind in KINDS else value


job_name = click.argument("name", metavar="NAME", help="name of the job", shell_complete=_jobs, callback=_without_kind)


def filename(text: str) -> Decorator:
    """`text`: its help."""
    return click.option("-f", "--filename", required=True, type=click.Path(), metavar="FILE", help=text)


def settings(text: str) -> Decorator:
    """`text`: its help."""
    return click.option("--set", "settings", multiple=True, metavar="PATH=VALUE", help=text)


operator_namespace = click.option(
    "--operator-namespace",
    metavar="NAMESPACE",
    default=names.OPERATOR_NAMESPACE,
    help=f"namespace of the operator, which holds the defaults of the cluster (default: {names.OPERATOR_NAMESPACE})",
)
output = click.option("-o", "--output", type=click.Choice(("json", "yaml")), help="print the data instead of a page")
