"""The three transports of buckets from senders to the workers of a server, chosen by device and placement."""

from collections.abc import Callable
from dataclasses import dataclass

from rljob_api.sizing.arrival import COLOCATED_BUCKET, CPU_BUCKET, GPU_BUCKET
from rljob_api.spec import RLJobSpec
from rljob_trainer.wire.weights import gloo, ipc, nccl, protocol
from rljob_trainer.wire.weights.protocol import backend
from rljob_trainer.wire.weights.rendezvous import SenderStore

End = gloo.SenderEnd | nccl.SenderEnd | ipc.SenderEnd


@dataclass(frozen=True, slots=True)
class Transport:
    """The transport to all servers of a job."""

    address: str
    """IP of this machine, which the servers connect to."""
    connect: Callable[[SenderStore, str, Callable[[], bool]], End]
    """Makes the sender's end of a connection to one server: from the sender's store, the name of their group, and what ends the waiting."""
    bucket_bytes: int
    """Largest size of a bucket; a larger tensor gets a bucket of its own."""
    on_gpu: bool
    """Whether buckets are on the sender's GPU, or in host memory."""


def over_gloo(address: str) -> Transport:
    """`address`: see Transport."""
    return Transport(address, gloo.SenderEnd, CPU_BUCKET, on_gpu=False)


def over_nccl(address: str) -> Transport:
    """`address`: see Transport."""
    return Transport(address, nccl.SenderEnd, GPU_BUCKET, on_gpu=True)


def over_ipc(address: str) -> Transport:
    """To servers on this machine. `address`: see Transport."""
    return Transport(address, ipc.SenderEnd, COLOCATED_BUCKET, on_gpu=True)


def transport_of(spec: RLJobSpec, address: str) -> Transport:
    """The transport of a job. `address`: see Transport."""
    match backend(spec):
        case protocol.GLOO:
            return over_gloo(address)
        case protocol.NCCL:
            return over_nccl(address)
        case _:
            return over_ipc(address)
