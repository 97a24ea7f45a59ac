"""The life of a rank of a role that has ranks of its own: critic, reference, or a reward model. All ranks of the gang run it together."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rljob_api import names
from rljob_api.protocol import Control
from rljob_api.spec import RLJobSpec
from rljob_trainer import arrays
from rljob_trainer.checkpoint.checks import prove_fence
from rljob_trainer.checkpoint.saving import Part
from rljob_trainer.collective import Ranks, StandstillError
from rljob_trainer.data.order import with_steps
from rljob_trainer.driver.client import RoleClient, heartbeat_of
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.megatron.roles import CriticRole, FrozenRole
from rljob_trainer.scatter import Scatter
from rljob_trainer.tasks import Outcome
from rljob_trainer.tasks.choice import objective_of

Asked = dict[str, Any]


def run(control: Control, role: str, token: str) -> Outcome:
    """Do what the driver asks, until it says that all is done. Raises ConfigurationError, and DriverLost on rank 0."""
    ranks = Ranks(control.spec.lifecycle.stall_timeout_seconds)
    client = _connect(control, role, token) if ranks.is_first else None
    asked = Requests(ranks, client)
    spec = with_steps(control.spec, asked.next()["steps"])
    asked.done()
    with blaming(spec, role):
        objective, heartbeat = objective_of(spec), heartbeat_of(client)
        is_critic = role == names.ROLE_CRITIC
        model = CriticRole(spec, objective, heartbeat) if is_critic else FrozenRole(spec, role, objective, heartbeat)
    prove = partial(prove_fence, Path(spec.checkpoint.path), control.job_uid, control.attempt, ranks)
    outcome = RoleService(ranks, client, asked, model, prove).until_over()
    ranks.barrier()
    if client:
        client.end()
    return outcome


class Requests:
    """What the driver asks, on every rank. Every method is collective."""

    def __init__(self, ranks: Ranks, client: RoleClient | None):
        self._ranks, self._client = ranks, client

    def next(self, while_waiting: Callable[[], None] = lambda: None) -> Asked:
        """The next request; `while_waiting` is called about every second of waiting."""
        while True:
            while_waiting()
            if found := self._ranks.broadcast(self._client.next() if self._client else None):
                return found

    def read(self, described: list[list[Any]]) -> dict[str, arrays.Array]:
        """The arrays behind a request, whole on every rank."""
        found = self._client.read(described) if self._client else arrays.allocated(described)
        self._ranks.broadcast_arrays(found)
        return found

    def done(self, found: dict[str, arrays.Array] | None = None, **message: Any) -> None:
        """What was asked is done, with this result."""
        if self._client:
            self._client.done(found, **message)


class RoleService:
    """Answers for one model."""

    def __init__(
        self,
        ranks: Ranks,
        client: RoleClient | None,
        asked: Requests,
        model: CriticRole | FrozenRole,
        prove: Callable[[], None],
    ):
        """`prove`: that what is written is seen by the trainer, whose store is open when it asks for anything but to open."""
        self._asked, self._model = asked, model
        self._prove: Callable[[], None] | None = prove
        self._scatter = Scatter(ranks, client, model.data_rank, model.parts)
        self._saving = _Saving(ranks, client, model) if isinstance(model, CriticRole) else None

    def until_over(self) -> Outcome:
        """Until the driver says that nothing more will be asked; how the job ended."""
        while "over" not in (asked := self._asked.next(self._saving.report if self._saving else lambda: None)):
            self._do(asked)
        return asked["over"]

    def _do(self, asked: Asked) -> None:
        model, saving = self._model, self._saving
        if saving and self._prove:
            self._prove()
            self._prove = None
        if asked["ask"] == "measure":
            return self._asked.done(model.measure(self._scatter.receive(asked["batch"])))
        assert isinstance(model, CriticRole) and saving, f"a frozen model was asked to {asked['ask']}"
        match asked:
            case {"ask": "learn", "arrays": described}:
                began = time.monotonic()
                metrics = model.learn(self._asked.read(described))
                return self._asked.done(metrics=metrics | {"time/critic": time.monotonic() - began})
            case {"ask": "restore", "directory": directory}:
                model.load(Path(directory))
            case {"ask": "save", "step": step, "directory": directory, "reshardable": reshardable}:
                saving.begin(step, Path(directory) / names.ROLE_CRITIC, reshardable)
            case _:
                raise AssertionError(f"the critic was asked to {asked['ask']}")
        return self._asked.done()


class _Saving:
    """Its part of a checkpoint, written while it is asked further things."""

    def __init__(self, ranks: Ranks, client: RoleClient | None, model: CriticRole):
        self._part, self._client, self._model = Part(model, ranks), client, model
        self._ranks, self._timeout = ranks, ranks.timeout_seconds
        self._bytes, self._deadline, self._step = 0, 0.0, 0

    def begin(self, step: int, directory: Path, reshardable: bool) -> None:
        self._part.begin(step, directory, reshardable)
        self._step, self._bytes, self._deadline = step, 0, time.monotonic() + self._timeout

    def report(self) -> None:
        """Say what was written once all of it was. Raises StandstillError when no rank writes anything for as long as ranks wait for each other."""
        if not self._part.under_way:
            return
        if written := self._part.complete(wait=False):
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
    """To the driver, alongside the trainer's rank 0."""
    address = control.gangs[names.ROLE_TRAINER].address, control.service_port
    return RoleClient.connect(address, role, control.attempt, token, control.spec.lifecycle.stall_timeout_seconds)


@contextmanager
def blaming(spec: RLJobSpec, role: str) -> Iterator[None]:
    """What is wrong inside with settings of the trainer is wrong with those of the role, which it was given in their place."""
    try:
        yield
    except ConfigurationError as error:
        of_role = spec.field_of(role)
        field = error.field.replace("spec.trainer.", f"{of_role}.")
        field = field.replace("spec.train.tokensPerMicroBatch", f"{of_role}.tokensPerMicroBatch")
        raise ConfigurationError(field, error.value, error.rule, error.fix) from error
