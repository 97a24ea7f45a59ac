"""Configurations of other systems, converted."""

from importer.test_golden_files import GROUP, VERL
from rljob_import import Options
from rljob_import.report import Conversion, imported


def verl(text: str, options: Options = Options()) -> Conversion:  # noqa: B008
    return imported("verl", VERL + GROUP + text, "run.sh", options)
