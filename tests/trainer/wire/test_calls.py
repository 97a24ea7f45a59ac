"""Calls of ranks to the driver: declared once, for both ends."""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rljob_api.protocol import Checkpoint
from rljob_trainer.rank.driver_client import DriverClient, RoleClient
from rljob_trainer.wire.calls import Caller, DriverCalls, RoleCalls, handlers, remote
from rljob_trainer.wire.channel import LENGTH, encode

CHECKPOINT = Checkpoint(step=3, attempt=1, path="/runs/global_step_3", digest="d")


class Shelf(ABC):
    @abstractmethod
    async def put(
        self, where: Path, what: Sequence[Checkpoint], metrics: Mapping[str, float], under: Path | None = None
    ) -> int:
        """How many there are."""

    @abstractmethod
    def noticed(self, count: int) -> None: ...


class RealShelf(Shelf):
    def __init__(self) -> None:
        self.given: list[Any] = []

    async def put(
        self, where: Path, what: Sequence[Checkpoint], metrics: Mapping[str, float], under: Path | None = None
    ) -> int:
        self.given.append((where, what, metrics, under))
        return len(self.given)

    def noticed(self, count: int) -> None:
        self.given.append(count)


class Far(Caller):
    """What it sends goes through the bytes of the channel."""

    put = remote(Shelf.put)

    def __init__(self, shelf: Shelf):
        self._calls, self.notices = handlers(Shelf, shelf)

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        return asyncio.run(self._calls[name](**json.loads(encode(arguments)[LENGTH.size :])))


def test_paths_and_models_arrive_as_what_they_were() -> None:
    far = Far(shelf := RealShelf())
    assert far.put(Path("/a"), (CHECKPOINT,), metrics={"train/loss": 1.5}) == 1
    assert far.put(Path("/b"), [], {}, under=Path("/c")) == 2
    assert shelf.given == [
        (Path("/a"), [CHECKPOINT], {"train/loss": 1.5}, None),
        (Path("/b"), [], {}, Path("/c")),
    ]


def test_a_notice_has_no_answer() -> None:
    far = Far(shelf := RealShelf())
    far.notices["noticed"](count=2)
    assert shelf.given == [2]


def test_an_argument_that_is_not_declared_is_refused_where_it_is_given() -> None:
    with pytest.raises(TypeError, match="colour"):
        Far(RealShelf()).put(Path("/a"), [], {}, colour="red")  # type: ignore[call-arg]


@pytest.mark.parametrize(("client", "interface"), [(DriverClient, DriverCalls), (RoleClient, RoleCalls)])
def test_a_client_makes_every_call_that_is_declared_for_it(client: type, interface: type) -> None:
    assert {name for name in interface.__abstractmethods__ if not hasattr(client, name)} == set()  # type: ignore[attr-defined]
