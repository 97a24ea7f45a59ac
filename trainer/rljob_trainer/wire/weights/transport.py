"""The three transports of buckets from the trainer to the workers of a server, chosen by device and placement."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rljob_api.spec import RLJobSpec
from rljob_trainer.wire.weights import gloo, ipc, nccl, protocol
from rljob_trainer.wire.weights.protocol import backend

End = gloo.TrainerEnd | nccl.TrainerEnd | ipc.TrainerEnd


@dataclass(frozen=True, slots=True)
class Transport:
    """The transport to all servers of a job."""

    connect: Callable[[], End]
    """Makes the trainer's end of a connection to one server."""
    bucket_bytes: int
    """Largest size of a bucket; a larger tensor gets a bucket of its own. On GPUs buckets are large, because messages take longer than transfers."""
    on_gpu: bool
    """Whether buckets are on the trainer's GPU, or in host memory."""


def over_gloo(address: str) -> Transport:
    """`address`: IP of this machine, which the servers connect to."""
    return Transport(partial(gloo.TrainerEnd, address), 64 * 2**20, on_gpu=False)


def over_nccl(address: str) -> Transport:
    """`address`: IP of this machine, which the servers connect to."""
    return Transport(partial(nccl.TrainerEnd, address), 2**30, on_gpu=True)


def over_ipc(address: str) -> Transport:
    """To servers on this machine. `address`: its IP."""
    return Transport(partial(ipc.TrainerEnd, address), 512 * 2**20, on_gpu=True)


def transport_of(spec: RLJobSpec, address: str) -> Transport:
    """The transport of a job. `address`: IP of the trainer."""
    match backend(spec):
        case protocol.GLOO:
            return over_gloo(address)
        case protocol.NCCL:
            return over_nccl(address)
        case _:
            return over_ipc(address)
