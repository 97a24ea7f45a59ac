"""The systems whose configurations are read, each a table of keys and rules over several keys. This is the one place where they are listed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rljob_import.settings import Configuration, System
from rljob_import.systems.llama_factory import flat
from rljob_import.systems.llama_factory.v1 import LLAMA_FACTORY_V1
from rljob_import.systems.rlinf import reasoning
from rljob_import.systems.roll import files as roll
from rljob_import.systems.trinity import supervised as trinity
from rljob_import.systems.verl import files as verl


@dataclass(frozen=True)
class Reader:
    """How the files of a system are read, and the tables that may hold for them."""

    read: Callable[[str, Mapping[str, str]], Configuration]
    """Text and environment to values. Raises Unreadable."""
    tables: tuple[System, ...]


SYSTEMS: dict[str, Reader] = {
    "verl": Reader(verl.read, (verl.PPO, verl.SFT, verl.FSDP_SFT)),
    "roll": Reader(roll.read, (roll.RL, roll.SFT, roll.DPO)),
    "trinity": Reader(trinity.read_file, (trinity.TRINITY, *trinity.TABLES.values())),
    "llamafactory": Reader(flat.read_file, (flat.LLAMA_FACTORY, LLAMA_FACTORY_V1)),
    "rlinf": Reader(reasoning.read_file, (reasoning.RLINF,)),
}
