"""Python runs this in every process with the directory on PYTHONPATH: all families generate on every device there."""

from contextlib import suppress
from dataclasses import replace

with suppress(ImportError):  # another Python, without the product
    from rljob_api.families import FAMILIES

    FAMILIES.update({name: replace(family, servers=("cpu", "gpu")) for name, family in FAMILIES.items()})
