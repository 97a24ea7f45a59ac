"""What an import is asked for. The plugin declares its verb from this alone, and loads the rest when the verb is called."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SYSTEMS = ("verl", "roll", "trinity", "llamafactory", "rlinf")


@dataclass(frozen=True)
class Options:
    """What no configuration of another system says."""

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
