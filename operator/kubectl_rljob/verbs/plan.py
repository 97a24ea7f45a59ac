"""Check a manifest before it is applied."""

from typing import Any

import click

from kubectl_rljob import errors, manifest
from kubectl_rljob.options import output, verb
from kubectl_rljob.planning import Plan, preview
from kubectl_rljob.printers import data
from kubectl_rljob.printers import plan as page
from kubectl_rljob.session import Session


@verb()
@click.option(
    "-f",
    "--filename",
    required=True,
    type=click.Path(),
    metavar="FILE",
    help="manifest with one or more RLJobs; - reads standard input",
)
@click.option(
    "--model",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Hugging Face directory: checks heads and layers of its config.json too, and estimates memory per GPU",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="PATH=VALUE",
    help="put a YAML value into the spec of every job before it is checked, for example `train.steps=500`; may be repeated",
)
@click.option("--offline", is_flag=True, help="do not ask the cluster where the pods would go")
@output
def plan(
    session: Session, filename: str, model: str | None, settings: tuple[str, ...], offline: bool, output: str | None
) -> None:
    """Check a manifest before it is applied.

    Ranks, layout, batches, pods, GPUs, memory, placement on the cluster as it is now, and every broken rule at
    once. Exit code 1 when a rule is broken.
    """
    config = manifest.model_config(model) if model else None
    plans = [Plan.of(m, config) for m in manifest.read(filename, settings)]
    found = [(p, preview(p, lambda: _read(session), offline)) for p in plans]
    if output:
        session.terminal.data(data.render([p.dump() | {"placement": where.dump()} for p, where in found], output))
    else:
        session.terminal.show("\n\n".join(page.page(p, where) for p, where in found))
    if any(p.violations for p in plans):
        raise click.exceptions.Exit(errors.REFUSED)


def _read(session: Session) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    cluster = session.cluster()
    return cluster.everything("nodes"), cluster.everything("pods")
