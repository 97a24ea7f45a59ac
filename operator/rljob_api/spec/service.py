"""spec.service: what a service offers to the loops of its clients."""

from typing import Annotated

from pydantic import Field, StringConstraints

from rljob_api.base import Model
from rljob_api.spec.common import AbsolutePath, PositiveInt, Quantity, Template

ALPHA = 32
"""alpha of every client's adapters, whatever their rank: Tinker's."""
MOST_RANK = 256
"""Largest rank of a client's adapters."""


MOST_CLIENTS = 256
"""Clients with limits of their own."""


class ClientLimits(Model):
    """How much of a service one client may have."""

    max_models: Annotated[int, Field(ge=1, le=256)] | None = None
    """Models that the client trains at a time. Unset: as many as the service has."""
    max_saved: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """States and snapshots that the client has saved under a name, and not deleted. Unset: as many as the volume holds."""
    share: Annotated[int, Field(ge=1, le=1000)] = 1
    """The client's part of the trainers' time, in tokens, relative to those of other clients with work."""


class ServiceClient(ClientLimits):
    """Limits of one client, in place of `service.limits`."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*$", max_length=253)]
    """Name of the client: that of the file with its key."""


class ServiceSpec(Model):
    """The service of `task: service`: clients with loops of their own train adapters of one base model and sample from them, or one client trains all
    of its parameters. They talk to a gateway, a pod of its own without GPUs, which stays while trainers and rollouts restart or are suspended."""

    name: Annotated[str, StringConstraints(pattern=r"^[^\s:]+$", max_length=256)] | None = None
    """What clients call the base model, for example `Qwen/Qwen3-8B`: they load its tokenizer by this name. Unset: `model.path`."""
    max_models: Annotated[int, Field(ge=1, le=256)] = 8
    """Models that clients train at a time, each with adapters of its own. A further one is refused until another one's session has ended."""
    max_rank: Annotated[int, Field(ge=0, le=MOST_RANK)] = 32
    """Largest rank of a client's adapters. Memory for this rank is reserved. 0: there are no adapters, and all parameters of one model at a time are
    trained."""
    max_snapshots: Annotated[int, Field(ge=1, le=4096)] = 32
    """Snapshots of adapters that a server keeps in memory. Others are read from the volume again when somebody samples from them."""
    max_tokens: PositiveInt = 4096
    """Longest sequence: of a training sample, or of a prompt and its response."""
    session_timeout_seconds: PositiveInt = 600
    """A client that has said nothing for so long is taken for gone: its models are dropped. What it has saved stays."""
    checkpoint_seconds: PositiveInt = 120
    """Seconds between two checkpoints of a model that a client trains. After a failure it continues from the last one, and repeats the requests that
    came since."""
    keys: AbsolutePath | None = None
    """Directory of keys, for example of a Secret that `volumes` mounts: each file is named for a client, and holds its key, which begins with `tml-`.
    Only the gateway mounts the volume that holds it. Unset: whoever can reach the service may use it."""
    limits: ClientLimits = ClientLimits()
    """Limits of every client that is not in `clients`. Without `keys`, all who use the service are one client."""
    clients: Annotated[list[ServiceClient], Field(max_length=MOST_CLIENTS)] = []
    """Clients with limits of their own."""
    idle_seconds: Annotated[int, Field(ge=10, le=86400 * 365)] | None = None
    """Seconds without a request after which trainers and rollouts are released as if the job were suspended. The next request brings them back, and
    waits for them. Unset: they stay."""
    shm_size: Quantity = "64Mi"
    """Size of /dev/shm in the gateway's pod, in memory."""
    template: Template = Template()
    """Pod settings of the gateway: it needs a CPU and 1 GiB, and a writable volume with `checkpoint.path`."""
