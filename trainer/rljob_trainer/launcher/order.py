"""What the launcher asks a nursery for."""

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of all nodes meet."""

    run_id: str
    nodes: int
    node_rank: int
    address: str
    port: int
    timeout_seconds: int
    """How long to wait for the other nodes."""


@dataclass(frozen=True, slots=True)
class Order:
    """JSON on one line of the nursery's standard input."""

    module: str
    """Its `main()` is the life of a process."""
    directory: str
    """The attempt's, where failures go."""
    logs: list[str]
    """Output file of each process; their number is the number of processes."""
    environment: dict[str, str]
    """Set for them, beside what torchrun sets."""
    rendezvous: Rendezvous | None = None
    """Of ranks."""

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @staticmethod
    def from_line(line: str) -> "Order":
        raw = json.loads(line)
        where = raw.pop("rendezvous")
        return Order(**raw, rendezvous=Rendezvous(**where) if where else None)
