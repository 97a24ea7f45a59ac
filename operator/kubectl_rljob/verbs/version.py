"""Print the versions of the plugin, of the API it speaks and of the runtime protocol."""

import argparse
from datetime import datetime
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

from rljob_api import names


def arguments(parser: argparse.ArgumentParser) -> None:
    """None of its own."""


def run(args: argparse.Namespace, now: datetime) -> int:
    print(f"kubectl-rljob {plugin_version()} (API {names.API_VERSION}, protocol {names.PROTOCOL})")
    return 0


def plugin_version() -> str:
    try:
        return installed_version("rljob")
    except PackageNotFoundError:
        return "from a source tree"
