"""The calls of a rank 0 to the driver, each declared once with its types: of the trainer's rank 0 (DriverCalls), and of those of other gangs
(RoleCalls). The driver implements these classes; the ranks call them through `remote`.

A call is a message {"call": name, argument: value, ...} (channel.py), and its answer one of the type that is declared. Arguments are JSON; paths and
models of rljob_api become text and objects on the way, and what they were where they arrive. Arrays follow a message as raw bytes. An answer to a
call that has to wait comes within about a second, if only as an empty one: meanwhile the other ranks wait in a broadcast, which has a time limit.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Literal, TypedDict, get_args, get_type_hints

from pydantic import BaseModel, TypeAdapter

from rljob_api.protocol import Checkpoint
from rljob_trainer.wire.batch import Array

Handler = Callable[..., Awaitable[Any]]
Notice = Callable[..., None]
EndpointFields = dict[str, Any]
"""A RolloutEndpoint as JSON."""
TaskOutcome = Literal["succeeded", "drained"]
"""How a job's task ended: all steps are trained, or the operator wants the pods back."""
LOG_PROBS = "log_probs"
"""The array of DriverCalls.log_probs."""


class Announcement(TypedDict):
    """A batch. Its columns follow as arrays; its trajectories and measurements are asked for in parts."""

    step: int
    metrics: dict[str, float]
    columns: list[list[Any]]
    """Name, type and length of each."""
    measured: list[str]
    """Names of the measurements that it has."""
    trajectories: bool


class PolicyBatch(Announcement):
    """A batch for the trainer."""

    probe: Any
    """What to ask rollouts about (parity.py)."""


class Next(TypedDict, total=False):
    """The next batch, or what there is instead of it; empty: nothing yet, ask again."""

    batch: PolicyBatch
    newcomers: list[EndpointFields]
    """Rollouts that need the policy of the last step and have never had one, or have lost it."""
    over: TaskOutcome
    """No batch will come any more."""


class HeldOut(TypedDict, total=False):
    """The held-out batch; empty: not read yet, ask again."""

    batch: PolicyBatch
    over: Literal["done"]
    """No evaluation of this step is due."""


class PublishTargets(TypedDict, total=False):
    """Empty: something is still generated under the previous policy, ask again."""

    replicas: list[EndpointFields]
    """The rollouts that are to get the policy of the last trained step."""


class RoleRequest(TypedDict, total=False):
    """The next request to a role, with what it needs; empty: nothing yet, ask again."""

    ask: Literal["open", "measure", "restore", "learn", "save"]
    """open: load the model, the first request to every role. measure: a batch. Of the critic: restore, continue from the engine's part of a
    checkpoint; learn, from the batch that it measured last, of which this one has what was measured since; save, begin to write its state into the
    engine's part of a checkpoint."""
    steps: int
    """open: steps of the job."""
    batch: Announcement
    """measure, learn."""
    directory: str
    """restore, save."""
    step: int
    alongside: bool
    """save."""
    over: TaskOutcome
    """Nothing will be asked any more."""


class DriverCalls(ABC):
    """Calls of the trainer's rank 0. `heartbeat`, `awaiting` and `updating` are notices, which have no answer."""

    @abstractmethod
    def heartbeat(self, count: int) -> None:
        """Progress was made, so many times: micro-batches, buckets, files."""

    @abstractmethod
    def awaiting(self, what: str) -> None:
        """Rank 0 waits for `what`; empty: for nothing any more."""

    @abstractmethod
    def updating(self) -> None:
        """The batch is measured, and the update begins."""

    @abstractmethod
    async def steps(self) -> int:
        """Steps of the whole job, once the driver has counted the data."""

    @abstractmethod
    async def start(
        self,
        step: int,
        data: dict[str, Any] | None,
        checkpoints: Sequence[Checkpoint],
        backend: str,
        buffer: Path | None = None,
        engine: Path | None = None,
    ) -> None:
        """The attempt starts after `step`.

        Args:
            data: data cursor of its checkpoint; None: from the beginning
            checkpoints: those of this run, for the report
            backend: what the trainer computes with, for the report
            buffer, engine: directories of the rollout buffer and of the engine in its checkpoint; None without one
        """

    @abstractmethod
    async def colocated(self, servers: list[EndpointFields]) -> None:
        """The rollout servers in the trainer's pods. Those in pods of their own are listed by the operator."""

    @abstractmethod
    async def next(self) -> Next:
        """The next batch, or what there is instead of it."""

    @abstractmethod
    async def part(self, rows: Sequence[int]) -> dict[str, int]:
        """Rows of the announced batch: the length of each array, measurements, then those of arrays.sizes. The arrays follow in this order."""

    @abstractmethod
    async def log_probs(self, step: int, arrays: dict[str, Array]) -> None:
        """What the trainer has computed of the samples of `step` that are kept as text (reporting/samples.py), before it is reported as trained."""

    @abstractmethod
    async def trained(self, step: int, metrics: Mapping[str, float]) -> None:
        """Step `step` is done."""

    @abstractmethod
    async def learn(self, step: int, arrays: dict[str, Array]) -> None:
        """Have the critic on a gang of its own learn from the batch of `step`, without waiting. `arrays`: what Scatter.collect returns."""

    @abstractmethod
    async def learnt(self) -> dict[str, float]:
        """The metrics of the critic's update; empty: it is not done yet, ask again."""

    @abstractmethod
    async def save_gangs(self, step: int, directory: Path, alongside: bool) -> None:
        """See saving.OtherWriters.save_gangs."""

    @abstractmethod
    async def gangs_saved(self, step: int, wait: bool) -> dict[str, Any]:
        """See saving.OtherWriters.gangs_saved."""

    @abstractmethod
    async def replicas(self) -> PublishTargets:
        """Who is to get the policy of the last trained step, now that nothing is generated under the previous one any more."""

    @abstractmethod
    async def published(self, step: int, digest: str, failed: dict[str, str], seconds: float) -> None:
        """The rollouts that were to get the policy of `step` have it, except those in `failed` (pod -> reason)."""

    @abstractmethod
    async def evaluate(self, step: int) -> None:
        """Evaluate the policy of `step` if that is due, then generate what follows it. Answered at once; `next` waits for both."""

    @abstractmethod
    async def held_out(self, step: int) -> HeldOut:
        """The held-out data, if an evaluation of the policy of `step` is due."""

    @abstractmethod
    async def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of the held-out data under the policy of `step`."""

    @abstractmethod
    async def saving(self) -> dict[str, Any]:
        """The data cursor as of the last trained step, for the checkpoint that is being made."""

    @abstractmethod
    async def save_buffer(self, directory: Path) -> None:
        """Begin to write what the rollout buffer holds now into a new directory; an empty buffer makes none."""

    @abstractmethod
    async def buffer_saved(self, wait: bool) -> dict[str, Any]:
        """See saving.OtherWriters.buffer_saved, for the last `save_buffer`."""

    @abstractmethod
    async def saved(self, step: int, checkpoints: Sequence[Checkpoint], stall: float, background: float) -> None:
        """The checkpoint of `step` is complete; the loop waited `stall` seconds for it, and it was written alongside in `background` seconds."""

    @abstractmethod
    async def connected(self, transports: str) -> None:
        """How NCCL connects the ranks, in a sentence for people."""

    @abstractmethod
    async def exported(self, directory: Path) -> None:
        """A Hugging Face directory is complete."""

    @abstractmethod
    async def uploaded(self) -> bool:
        """Whether all checkpoints and exports are in spec.checkpoint.upload; not waited for in a drain."""

    @abstractmethod
    async def end(self, export: str) -> None:
        """Write the last progress and end. `export`: path of the exported model, empty without one."""


class RoleCalls(ABC):
    """Calls of rank 0 of another gang. Its first message, `hello`, is not among them: it shows who calls (driver/gangs.py)."""

    @abstractmethod
    async def next(self) -> RoleRequest:
        """The next request to the role."""

    @abstractmethod
    async def part(self, rows: Sequence[int]) -> dict[str, int]:
        """See DriverCalls.part."""

    @abstractmethod
    async def done(self, metrics: dict[str, float] | None = None, arrays: dict[str, Array] | None = None) -> None:
        """The answer to the last request: `metrics` of an update, `arrays` that were measured, or nothing."""

    @abstractmethod
    async def saved(self, step: int, layout: str, files: dict[str, Any]) -> None:
        """All files of the save that the role had begun are on the disk."""

    @abstractmethod
    async def end(self) -> None:
        """The role has heard that the job is over."""


class Caller(ABC):
    """An end that sends calls and waits for their answers."""

    @abstractmethod
    def call(self, name: str, arguments: Mapping[str, Any]) -> Any: ...


def remote[I, **P, A](declared: Callable[Concatenate[I, P], Awaitable[A]]) -> Callable[Concatenate[Any, P], A]:
    """A method of a Caller that makes the declared call."""
    signature = inspect.signature(declared)

    @wraps(declared, updated=())  # it is not abstract
    def method(caller: Caller, *arguments: P.args, **named: P.kwargs) -> A:
        bound = signature.bind(caller, *arguments, **named)
        _, *given = bound.arguments.items()
        return caller.call(declared.__name__, dict(given))

    return method


def handlers(interface: type, implementation: Any) -> tuple[dict[str, Handler], dict[str, Notice]]:
    """What answers the calls of `interface`, and what hears its notices, by name. Paths and models become what
    they are declared as."""
    calls: dict[str, Handler] = {}
    notices: dict[str, Notice] = {}
    for name in interface.__abstractmethods__:  # type: ignore[attr-defined]
        handler = _reading(getattr(interface, name), getattr(implementation, name))
        if inspect.iscoroutinefunction(getattr(interface, name)):
            calls[name] = handler
        else:
            notices[name] = handler
    return calls, notices


def _reading(declared: Callable[..., Any], handler: Callable[..., Any]) -> Callable[..., Any]:
    """The handler, of arguments as they come in a message."""
    readers = {name: TypeAdapter(hint) for name, hint in get_type_hints(declared).items() if _is_read(hint)}

    def call(**arguments: Any) -> Any:
        read = {name: readers[name].validate_python(value) for name, value in arguments.items() if name in readers}
        return handler(**arguments | read)

    return call


def _is_read(hint: Any) -> bool:
    """Whether values of this type are not what JSON gives: paths and models."""
    kinds = get_args(hint) or (hint,)
    return any(isinstance(kind, type) and issubclass(kind, (Path, BaseModel)) for kind in kinds)
