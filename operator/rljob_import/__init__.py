"""Configurations of other systems become RLJobs: `kubectl rljob import`. Pure, from text to text; it knows the contract, and no cluster.
The plugin declares its verb from this module alone, and loads the rest when the verb is called.

readers           what people write, which is read and never executed: scripts, overrides, interpolations
table settings    a row says what becomes of one key; a configuration as rules read it
engine report     a configuration and a table become fields and notes; the RLJob and its report
systems           the systems, each a table of keys (`rows`) and rules over several keys
shared            what several systems have alike
reference         the tables of docs/reference/import.md
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SYSTEMS = ("verl", "roll", "trinity", "llamafactory", "rlinf")


@dataclass(frozen=True)
class Options:
    """What an import is asked for: what no configuration of another system says."""

    image: str = "registry.invalid/rljob/trainer-gpu:0.1.0"
    claim: str = "data"
    root: str = "/data"
    """Directory of the claim: relative paths, `~` and names of a hub are looked for below it."""
    rows: int | None = None
    """Of the training data."""
    nodes: int | None = None
    gpus_per_node: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    allowed: tuple[str, ...] = ()
    """Unknown keys that are passed over."""
    formula: str | None = None
    """A Python file with a formula of the user's, in the pods."""
    data_sets: Mapping[str, Any] = field(default_factory=dict)
    """LLaMA-Factory's dataset_info.json."""
