"""How buckets travel from a trainer to the workers of a server: one of three ways, by where the two are."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rljob_api.spec import RLJobSpec
from rljob_trainer.weights import gloo, ipc, nccl, protocol
from rljob_trainer.weights.protocol import backend

End = gloo.TrainerEnd | nccl.TrainerEnd | ipc.TrainerEnd


@dataclass(frozen=True, slots=True)
class Transport:
    """Of all servers of a job."""

    connect: Callable[[], End]
    """The trainer's end of a connection to one server."""
    bucket_bytes: int
    """Most that a bucket holds; a larger tensor has one for itself. On a GPU a bucket takes less time than the message about it."""
    on_gpu: bool
    """Whether buckets lie on the trainer's GPU, or in host memory."""


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
    """Of a job whose trainer has this IP."""
    match backend(spec):
        case protocol.GLOO:
            return over_gloo(address)
        case protocol.NCCL:
            return over_nccl(address)
        case _:
            return over_ipc(address)
