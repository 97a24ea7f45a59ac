"""The systems whose configurations are read. The one place where they are listed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kubectl_rljob.importer import llama_factory, rlinf
from kubectl_rljob.importer.llama_factory_v1 import LLAMA_FACTORY_V1
from kubectl_rljob.importer.roll import files as roll
from kubectl_rljob.importer.settings import System
from kubectl_rljob.importer.sources import Source
from kubectl_rljob.importer.trinity import files as trinity
from kubectl_rljob.importer.verl import files as verl


@dataclass(frozen=True)
class Reader:
    """How the files of a system are read, and the tables that may hold for them."""

    read: Callable[[str, Mapping[str, str]], Source]
    """Text and environment to values. Raises Unreadable."""
    tables: tuple[System, ...]


SYSTEMS: dict[str, Reader] = {
    "verl": Reader(verl.read, (verl.PPO, verl.SFT)),
    "roll": Reader(roll.read, (roll.RL, roll.SFT, roll.DPO)),
    "trinity": Reader(trinity.read_file, (trinity.TRINITY, *trinity.TABLES.values())),
    "llamafactory": Reader(llama_factory.read_file, (llama_factory.LLAMA_FACTORY, LLAMA_FACTORY_V1)),
    "rlinf": Reader(rlinf.read_file, (rlinf.RLINF,)),
}
