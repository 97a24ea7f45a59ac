"""The three transports of buckets from a sender to the workers of servers, chosen by device and placement. Each has a group of a sender and workers,
which is made anew when a member is lost: `SenderEnd` is its end at the sender, `WorkerEnd` that of a worker."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rljob_api.sizing.replica import COLOCATED_BUCKET, CPU_BUCKET, GPU_BUCKET
from rljob_api.spec import RLJobSpec
from rljob_trainer.wire.weights import chain, ipc, nccl, protocol
from rljob_trainer.wire.weights.protocol import ServerWorker, backend
from rljob_trainer.wire.weights.rendezvous import SenderStore

End = chain.SenderEnd | nccl.SenderEnd | ipc.SenderEnd


@dataclass(frozen=True, slots=True)
class Transport:
    """The transport to all servers of a job."""

    address: str
    """IP of this machine, which the servers connect to."""
    connect: Callable[[SenderStore, str, Sequence[ServerWorker], Callable[[], bool]], End]
    """Makes the sender's end of a group: from the sender's store, the group's name, its workers, and what ends the waiting."""
    bucket_bytes: int
    """Largest size of a bucket; a larger tensor gets a bucket of its own."""
    on_gpu: bool
    """Whether buckets are on the sender's GPU, or in host memory."""


def over_tcp(address: str) -> Transport:
    """`address`: see Transport."""
    return Transport(address, chain.SenderEnd, CPU_BUCKET, on_gpu=False)


def over_nccl(address: str) -> Transport:
    """`address`: see Transport."""
    return Transport(address, nccl.SenderEnd, GPU_BUCKET, on_gpu=True)


def over_ipc(address: str) -> Transport:
    """To servers on this machine. `address`: see Transport."""
    return Transport(address, ipc.SenderEnd, COLOCATED_BUCKET, on_gpu=True)


def transport_of(spec: RLJobSpec, address: str) -> Transport:
    """The transport of a job. `address`: see Transport."""
    match backend(spec.trainer.device, spec.rollout.placement):
        case protocol.CHAIN:
            return over_tcp(address)
        case protocol.NCCL:
            return over_nccl(address)
        case _:
            return over_ipc(address)
