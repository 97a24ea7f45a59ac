"""A rank of a model on a gang of its own: critic, reference or reward model. All ranks of the gang answer the driver's requests together."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rljob_api import names
from rljob_api.callbacks import nothing
from rljob_api.protocol import Control
from rljob_api.spec import RLJobSpec
from rljob_trainer.checkpoint.checks import prove_fence
from rljob_trainer.checkpoint.saving import CheckpointPart
from rljob_trainer.data.order import with_steps
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.megatron.roles import CriticRole, FrozenRole
from rljob_trainer.rank.driver_client import RoleClient, heartbeat_of
from rljob_trainer.rank.scatter import Scatter
from rljob_trainer.rank.tasks import objective_of
from rljob_trainer.wire import arrays
from rljob_trainer.wire.batch import SCORES
from rljob_trainer.wire.calls import Announcement, RoleRequest, TaskOutcome
from rljob_trainer.wire.collective import Ranks, StandstillError


def run(control: Control, role: str, token: str) -> TaskOutcome:
    """Answer the driver's requests until the job is over. Returns how it ended. Raises ConfigurationError, and DriverLost on rank 0."""
    ranks = Ranks(control.spec.lifecycle.stall_timeout_seconds)
    client = _connect(control, role, token) if ranks.is_first else None
    requests = Requests(ranks, client)
    spec = with_steps(control.spec, requests.next()["steps"])
    requests.done()
    with blaming(spec, role):
        objective, heartbeat = objective_of(spec), heartbeat_of(client)
        is_critic = role == names.ROLE_CRITIC
        model = CriticRole(spec, objective, heartbeat) if is_critic else FrozenRole(spec, role, objective, heartbeat)
    prove = partial(prove_fence, Path(spec.checkpoint.path), control.job_uid, control.attempt, ranks)
    outcome = RoleService(ranks, client, requests, model, prove).until_over()
    ranks.barrier()
    if client:
        client.end()
    return outcome


class Requests:
    """The driver's requests, distributed from rank 0 to all ranks of the gang. Every method is collective."""

    def __init__(self, ranks: Ranks, client: RoleClient | None):
        self._ranks, self._client = ranks, client

    def next(self, while_waiting: Callable[[], None] = nothing) -> RoleRequest:
        """Wait for the next request (RoleClient.next); `while_waiting` is called about once a second meanwhile."""
        while True:
            while_waiting()
            request = self._ranks.broadcast(self._client.next() if self._client else None)
            if request:
                return request

    def done(self, measured: arrays.Stream | None = None, metrics: dict[str, float] | None = None) -> None:
        """Answer the last request."""
        if self._client:
            self._client.done(measured, metrics)


class RoleService:
    """Serves the driver's requests to one model."""

    def __init__(
        self,
        ranks: Ranks,
        client: RoleClient | None,
        requests: Requests,
        model: CriticRole | FrozenRole,
        prove: Callable[[], None],
    ):
        """`prove` raises unless gang and trainer share a file system. It is called with the critic's first request: by then the trainer has opened
        its store, in which `prove` looks for the fence."""
        self._requests, self._model = requests, model
        self._prove: Callable[[], None] | None = prove
        self._scatter = Scatter(ranks, client, model, model.parts)
        self._saving = _Saving(ranks, client, model) if isinstance(model, CriticRole) else None

    def until_over(self) -> TaskOutcome:
        """Serve requests until the driver says that the job is over. Returns how it ended."""
        report = self._saving.report if self._saving else nothing
        request = self._requests.next(report)
        while "over" not in request:
            self._do(request)
            request = self._requests.next(report)
        return request["over"]

    def _do(self, request: RoleRequest) -> None:
        model, saving = self._model, self._saving
        if saving and self._prove:
            self._prove()
            self._prove = None
        if request["ask"] == "measure":
            return self._measure(request["batch"])
        assert isinstance(model, CriticRole) and saving, f"a frozen model was asked to {request['ask']}"
        match request:
            case {"ask": "learn", "batch": described}:
                began = time.monotonic()
                metrics = model.learn(self._scatter.receive(described))
                return self._requests.done(metrics=metrics | {"time/critic": time.monotonic() - began})
            case {"ask": "restore", "directory": directory}:
                model.load(Path(directory))
            case {"ask": "save", "step": step, "directory": directory, "alongside": alongside}:
                saving.begin(step, Path(directory) / names.ROLE_CRITIC, alongside)
            case _:
                raise AssertionError(f"the critic was asked to {request['ask']}")
        return self._requests.done()

    def _measure(self, described: Announcement) -> None:
        batch = self._scatter.receive(described)
        measured = self._model.measure(batch)
        of_tokens = self._scatter.collect(batch.columns, measured.tokens) if measured.tokens else None
        self._requests.done(of_tokens if measured.scores is None else arrays.Stream.of({SCORES: measured.scores}))


class _Saving:
    """The critic's part of a checkpoint, written by threads while further requests are served."""

    def __init__(self, ranks: Ranks, client: RoleClient | None, model: CriticRole):
        self._part, self._client, self._model = CheckpointPart(model, ranks), client, model
        self._ranks, self._timeout = ranks, ranks.timeout_seconds
        self._bytes, self._deadline, self._step = 0, 0.0, 0

    def begin(self, step: int, directory: Path, alongside: bool) -> None:
        self._part.begin(step, directory, alongside)
        self._step, self._bytes, self._deadline = step, 0, time.monotonic() + self._timeout

    def report(self) -> None:
        """Tell the driver once all ranks have written their parts. Raises StandstillError when no rank writes anything for the stall timeout."""
        if not self._part.under_way:
            return
        written = self._part.complete(wait=False)
        if written:
            if self._client:
                self._client.saved(self._step, self._model.layout, written.files)
            return
        total = sum(self._ranks.gather(self._part.tally))
        if total > self._bytes:
            self._bytes, self._deadline = total, time.monotonic() + self._timeout
            self._model.heartbeat()
        elif time.monotonic() > self._deadline:
            raise StandstillError(f"no rank has written anything for {self._timeout:g} s")


def _connect(control: Control, role: str, token: str) -> RoleClient:
    """Connect to the driver, which runs next to the trainer's rank 0."""
    address = control.gangs[names.ROLE_TRAINER].address, control.service_port
    return RoleClient.connect(address, role, control.attempt, token, control.spec.lifecycle.stall_timeout_seconds)


@contextmanager
def blaming(spec: RLJobSpec, role: str) -> Iterator[None]:
    """Rename fields of a ConfigurationError from the trainer's to the role's: the model was built from a spec in which the role's settings replace
    the trainer's."""
    try:
        yield
    except ConfigurationError as error:
        of_role = spec.field_of(role)
        field = error.field.replace("spec.trainer.", f"{of_role}.")
        field = field.replace("spec.train.tokensPerMicroBatch", f"{of_role}.tokensPerMicroBatch")
        raise ConfigurationError(field, error.value, error.rule, error.fix) from error
