"""What the launcher asks its nursery for: the ranks of one attempt on this node."""

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Order:
    """JSON on one line of the nursery's standard input."""

    module: str
    """Its `main()` is a rank's life."""
    directory: str
    """The attempt's, where failures go."""
    logs: list[str]
    """Output file of each local rank; their number is the number of ranks."""
    environment: dict[str, str]
    """Set for the ranks, beside what torchrun sets."""
    run_id: str
    nodes: int
    node_rank: int
    master_address: str
    master_port: int
    timeout_seconds: int
    """How long the rendezvous waits for the other nodes."""

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @staticmethod
    def from_line(line: str) -> "Order":
        return Order(**json.loads(line))
