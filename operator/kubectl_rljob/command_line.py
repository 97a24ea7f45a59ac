"""The command line, put together from the verbs."""

import click

from kubectl_rljob.options import with_global
from kubectl_rljob.session import Session
from kubectl_rljob.verbs import change, importing, logs, metrics, plan, samples, show, tensorboard, volume, watch
from kubectl_rljob.verbs.about import completion, version

PROGRAM = "kubectl rljob"
VERBS = (
    show.list_,
    show.status,
    watch.watch,
    metrics.metrics,
    samples.samples,
    logs.logs,
    volume.shell,
    tensorboard.tensorboard,
    show.describe_failure,
    show.checkpoints,
    volume.export,
    change.suspend,
    change.resume,
    change.restart,
    plan.plan,
    importing.import_,
    completion,
    version,
)


class Root(click.Group):
    """Verbs in the order of VERBS."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    cls=Root, context_settings={"help_option_names": ["-h", "--help"]}, subcommand_metavar="VERB ...", commands=VERBS
)
@with_global
def root() -> None:
    """Look at RLJobs, suspend and resume them, check one before it is applied."""


def run(argv: list[str], session: Session) -> None:
    """One verb. Raises what click raises for a wrong command line, UserError, and Exit with an exit code other than 0."""
    with root.make_context(PROGRAM, argv, obj=session) as context:
        root.invoke(context)
