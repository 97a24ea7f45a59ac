"""Where the workers of all servers find one sender: it hosts a TCPStore, which lives as long as its attempt. Messages go through it (messages.py)."""

import socket
from datetime import timedelta

import torch.distributed as dist

from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.protocol import Offer

FIND_SECONDS = 5.0
"""Time limit for reaching the machine of a sender."""


class SenderStore:
    """The sender's side."""

    def __init__(self, address: str) -> None:
        """`address`: an IP of this machine that the workers can reach."""
        self.store = dist.TCPStore(address, 0, None, True, _timeout(), wait_for_workers=False)
        self.offer = Offer(address, int(self.store.port))


class RemoteStore:
    """A worker's side."""

    def __init__(self, offer: Offer) -> None:
        """Raises OSError or RuntimeError when the sender does not answer."""
        self.offer = offer
        with socket.create_connection((offer.address, offer.port), timeout=FIND_SECONDS):
            pass  # fails at once when the sender is gone, where the store would keep trying
        # torch looks up the name of the address for its log, which counts: 5 s for each answer of the name server that is lost
        self.store = dist.TCPStore(offer.address, offer.port, None, False, _timeout(), wait_for_workers=False)


def _timeout() -> timedelta:
    return timedelta(seconds=protocol.SILENT_SECONDS)
