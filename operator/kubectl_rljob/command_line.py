"""The command line, put together from the verbs, and the verbs about the plugin itself."""

import click

from kubectl_rljob.options import Session, verb, with_global
from kubectl_rljob.verbs import change, importing, logs, metrics, plan, show, trial, volume
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


PROGRAM = "kubectl rljob"
VERBS = (
    show.list_,
    show.status,
    show.watch,
    metrics.metrics,
    metrics.samples,
    logs.logs,
    volume.shell,
    volume.tensorboard,
    volume.view,
    show.describe_failure,
    show.checkpoints,
    volume.export,
    change.suspend,
    change.resume,
    change.restart,
    plan.plan,
    trial.try_,
    importing.import_,
    completion,
    version,
)


HINTS = {
    "get": "`kubectl rljob list` lists jobs, `kubectl get rljob NAME -o yaml` prints one as it is",
    "ls": "`kubectl rljob list` lists jobs",
    "describe": "`kubectl rljob status NAME` shows one job, `kubectl rljob describe-failure NAME` its last failure",
    "create": "`kubectl apply --server-side -f FILE` creates a job; `kubectl rljob plan -f FILE` checks it first",
    "apply": "`kubectl apply --server-side -f FILE` creates a job; `kubectl rljob plan -f FILE` checks it first",
    "run": "`kubectl apply --server-side -f FILE` creates a job; `python -m rljob_trainer run FILE` runs it on this machine",
    "check": "`kubectl rljob plan -f FILE` checks a manifest, `kubectl rljob try -f FILE` its data, rewards and agent",
    "edit": "`kubectl edit rljob NAME` changes a job, `kubectl rljob restart NAME` restarts it",
    "delete": "`kubectl delete rljob NAME` deletes a job, `kubectl rljob suspend NAME` frees its pods",
    "stop": "`kubectl rljob suspend NAME` saves a checkpoint and frees the pods",
    "exec": "`kubectl rljob shell NAME` opens a shell on the job's volumes",
    "doctor": "`python -m rljob_trainer doctor` checks the machine or image that it runs in",
    "help": "`kubectl rljob --help` lists the verbs, `kubectl rljob VERB --help` explains one",
}
"""What to run instead of verbs of kubectl or of the trainer that this plugin does not have."""


class Root(click.Group):
    """Verbs in the order of VERBS."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in HINTS and not ctx.resilient_parsing:
            raise click.UsageError(f"There is no verb {args[0]}: {HINTS[args[0]]}.", ctx)
        return super().resolve_command(ctx, args)


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        ctx.invoke(version)
        ctx.exit()


@click.group(
    cls=Root, context_settings={"help_option_names": ["-h", "--help"]}, subcommand_metavar="VERB ...", commands=VERBS
)
@with_global
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit."
)
def root() -> None:
    """Inspect RLJobs, suspend and resume them, and check manifests before they are applied."""


def run(argv: list[str], session: Session) -> None:
    """One verb. Raises what click raises for a wrong command line, UserError, and Exit with an exit code other than 0."""
    with root.make_context(PROGRAM, argv, obj=session) as context:
        root.invoke(context)
