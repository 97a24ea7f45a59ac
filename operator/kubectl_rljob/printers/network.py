"""What crosses the network cards of the busiest node."""

from collections.abc import Mapping

from kubectl_rljob.printers.text import table
from rljob_api.sizing.network import Cards, Flow

GB = 1e9
FLOWS = {
    "generation": "generation of a step",
    "update": "an update of the servers",
    "batch": "the hand-over of a batch",
}


def table_of(traffic: Mapping[str, Flow], cards: Cards | None) -> str:
    """With the least time, where the cards were named."""
    rows = [
        (
            FLOWS[name],
            f"{flow.sent / GB:,.1f}",
            f"{flow.received / GB:,.1f}",
            f"{flow.seconds(cards):.2f}" if cards else "-",
        )
        for name, flow in traffic.items()
    ]
    at = f"SECONDS AT {cards.text}" if cards else "SECONDS (--network)"
    return table(("BETWEEN NODES, GB", "OUT OF A POD", "INTO A POD", at), rows)
