"""Convert another system's configuration to an RLJob."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from kubectl_rljob import errors
from kubectl_rljob.errors import UserError
from kubectl_rljob.options import Session, verb
from rljob_import import SYSTEMS, Options


def _pairs(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    wrong = [value for value in values if "=" not in value]
    if wrong:
        raise click.BadParameter(f"{wrong[0]} is not NAME=VALUE")
    return dict(value.split("=", 1) for value in values)


class SystemName(click.Choice[str]):
    """Also accepts other spellings: `LLaMA-Factory`, `Trinity-RFT`."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from rljob_import.others import OTHERS

        name = value.lower().replace("-", "").replace("_", "").removesuffix("rft")
        pages = next((other.pages for start, other in OTHERS.items() if name.startswith(start)), "")
        if pages:
            self.fail(f"{value} is not read ({', '.join(self.choices)} are); write the job by {pages}", param, ctx)
        return super().convert(name if name in self.choices else value, param, ctx)


@verb("import")
@click.argument("system", metavar="SYSTEM", type=SystemName(SYSTEMS), help=f"one of {', '.join(SYSTEMS)}")
@click.argument("file", metavar="FILE", type=click.Path(), help="its configuration: YAML, and of verl also a script")
@click.option("--image", default=Options.image, metavar="IMAGE", help=f"image of the pods (default: {Options.image})")
@click.option(
    "--claim",
    default=Options.claim,
    metavar="NAME",
    help="PersistentVolumeClaim that holds model, data and checkpoints (default: data)",
)
@click.option(
    "--root",
    default=Options.root,
    metavar="DIR",
    help="mount path of the claim; relative paths, ~ and names of a hub are taken to be below it (default: /data)",
)
@click.option(
    "--rows", type=click.IntRange(min=1), metavar="N", help="rows of the training data, by which epochs become steps"
)
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="number of trainer pods, instead of the file's")
@click.option(
    "--gpus-per-node", type=click.IntRange(min=1), metavar="N", help="ranks per trainer pod, instead of the file's"
)
@click.option(
    "--env",
    "environment",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_pairs,
    help="value of a variable that the script or YAML reads; 1, 2: arguments of the script; may be repeated",
)
@click.option("--allow", "allowed", multiple=True, metavar="KEY", help="ignore this unknown key; may be repeated")
@click.option(
    "--formula",
    metavar="FILE",
    help="Python file, in the pods, with a function `advantage` or `loss` for an algorithm that an RLJob does not have",
)
@click.option(
    "--dataset-info",
    type=click.Path(),
    metavar="FILE",
    help="LLaMA-Factory's dataset_info.json, or its v1 form's YAML of data sets",
)
def import_(session: Session, system: str, file: str, dataset_info: str | None, **flags: Any) -> None:
    """Convert another system's configuration to an RLJob.

    Reads verl (scripts of overrides, or YAML), ROLL, Trinity-RFT, LLaMA-Factory and RLinf. Writes the RLJob to
    standard output, each line with the key that it comes from, and to standard error what was implied or changed, or
    cannot be expressed. Scripts are read and never run. Exit code 1 for an unknown key, a value that its key or field
    cannot have, or a broken rule.
    """
    from rljob_import.report import data_sets, imported, problems  # tables of all systems, which no other verb needs

    sets: Mapping[str, Any] = {}
    if dataset_info:
        with _readable(dataset_info):
            sets = data_sets(_text(dataset_info))
    with _readable(file):
        result = imported(system, _text(file), Path(file).name, Options(data_sets=sets, **flags))
    if result.report:
        session.terminal.tell(result.report)
    if result.problems:
        raise UserError(f"{file} cannot be imported:\n{problems(result.problems)}")
    session.terminal.data(result.manifest)
    if not result.valid:
        raise click.exceptions.Exit(errors.REFUSED)


@contextmanager
def _readable(file: str) -> Iterator[None]:
    """Says of which file it is that it cannot be read."""
    from rljob_import.readers.hydra import UnreadableFile

    try:
        yield
    except UnreadableFile as error:
        raise UserError(f"{file} {error}") from error


def _text(file: str) -> str:
    try:
        return Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from error
