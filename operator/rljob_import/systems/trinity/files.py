"""How Trinity-RFT's configurations are written, and which of its tables holds for one."""

from collections.abc import Mapping

from rljob_import.readers.hydra import flatten, plain, resolve, tree_of
from rljob_import.settings import Source
from rljob_import.systems.trinity.rl import TRINITY
from rljob_import.systems.trinity.supervised import DPO, SFT
from rljob_import.table import Note, Outcome

TABLES = {"sft": SFT, "dpo": DPO}
"""By `algorithm_type`; all others are of reinforcement learning."""


def read_file(text: str, environment: Mapping[str, str]) -> Source:
    """YAML of OmegaConf. Raises Unreadable."""
    tree, lost = resolve(tree_of(text), environment)
    values = {k: plain(v) for k, v in flatten(tree).items()}
    table = TABLES.get(str(values.get("algorithm.algorithm_type")), TRINITY)
    return Source(table, values, [Note(Outcome.CHANGED, path, "is left out") for path in lost])
