"""Where the job's other pods connect to the driver: each shows the job's token and the attempt's number, and says whose pod it is. Worker pods
are those of the job's agent, and those of its reward functions."""

import asyncio
import hmac
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, Self

from rljob_api import names, quantity
from rljob_api.protocol import Control, WorkerLoad
from rljob_api.spec import RLJobSpec
from rljob_trainer.agents.python_file import AgentPods, AgentProcess
from rljob_trainer.driver.server import read
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.machine import most_open_files
from rljob_trainer.rewards.python_file import RewardPods, RewardProcess
from rljob_trainer.wire.channel import write
from rljob_trainer.workers.process import processes_on

HELLO_BYTES, HELLO_SECONDS = 4096, 10.0
"""Limits of the first message of a connection, whose sender is not authenticated yet."""

log = logging.getLogger(__name__)


class Host(Protocol):
    """Who talks with the pods of a role."""

    @property
    def is_awaited(self) -> bool:
        """Whether another pod may connect."""
        ...

    async def welcome(self, pod: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A pod has connected. The connection is closed when this returns."""
        ...


class PodListener:
    """Of one attempt."""

    def __init__(self, attempt: int, token: str) -> None:
        """`token`: of the job."""
        self._attempt, self._token = attempt, token
        self._hosts: dict[str, Host] = {}
        self._server: asyncio.Server | None = None
        self._connected: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._refused: set[str] = set()
        """Addresses whose connections were refused: they try again for ever."""

    def admit(self, role: str, host: Host) -> None:
        """Let pods of this role in from now on."""
        self._hosts[role] = host

    async def listen(self, address: str, port: int) -> None:
        """Called early, so that pods can connect and say that they are there while the driver still reads its data."""
        self._server = await asyncio.start_server(self._accept, address, port)

    async def close(self) -> None:
        """Returns once nobody is connected."""
        if self._server:
            self._server.close()
        for writer in self._connected.values():
            writer.transport.abort()
        if self._connected:
            await asyncio.wait(self._connected)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Let in who has the token and is of this attempt; close the connection of everybody else."""
        task = asyncio.current_task()
        assert task
        self._connected[task] = writer
        try:
            hello = await self._greeted(reader)
            host = self._hosts.get(str(hello.get("role")))
            if host is None or not host.is_awaited:
                self._warn(str(writer.get_extra_info("peername", ["?"])[0]))
                return
            await write(writer, {})
            await host.welcome(str(hello.get("pod", "")), reader, writer)
        except ConnectionError as error:
            log.info("a connection from %s ended: %s", writer.get_extra_info("peername"), error)
        finally:
            writer.close()
            del self._connected[task]

    def _warn(self, address: str) -> None:
        if address not in self._refused:
            self._refused.add(address)
            log.warning("refused a connection from %s; further ones from there are not reported", address)

    async def _greeted(self, reader: asyncio.StreamReader) -> dict[str, Any]:
        """The first message; empty: it is none of our pods'."""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                hello = await read(reader, HELLO_BYTES)
            known = hmac.compare_digest(str(hello["token"]).encode(), self._token.encode())
            return hello if known and hello["attempt"] == self._attempt else {}
        except (OSError, EOFError, ValueError, LookupError, TypeError):
            return {}


@asynccontextmanager
async def listening(control: Control, token: str) -> AsyncIterator[PodListener]:
    """For the pods of an attempt that connect to its driver, if there are any. `token`: of the job."""
    listener = PodListener(control.attempt, token)
    if control.service_port:
        await listener.listen(os.environ[names.ENV_POD_IP], control.service_port)
    try:
        yield listener
    finally:
        await listener.close()


OTHER_FILES = 256
"""That a driver has open besides the connections of its workers, at least."""


def require_open_files(spec: RLJobSpec) -> None:
    """Raises ConfigurationError if the machine allows fewer files than all of the spec's workers have connections."""
    connections = {role: pods.replicas * _processes(spec, role) for role, pods in spec.workers.items()}
    total, most = sum(connections.values()), most_open_files()
    if connections and total + OTHER_FILES > most:
        largest = max(connections, key=connections.__getitem__)
        rule = (
            f"the driver has a connection for each of {total} worker processes and {OTHER_FILES} other files, and its "
            f"machine lets it open {most:g}"
        )
        fix = "lower replicas or processes, or raise the limit of open files where the trainer runs (LimitNOFILE)"
        raise ConfigurationError(f"{spec.field_of(largest)}.replicas", spec.workers[largest].replicas, rule, fix)


def _processes(spec: RLJobSpec, role: str) -> int:
    """Of each pod of a role of workers, as the pod counts them where the spec does not (pod/worker_life.py): one for each CPU of its limit. Without a
    limit they follow the CPUs of its node, which nobody knows here: at least one."""
    limit = spec.container_resources(role).get("limits", {}).get("cpu")
    return spec.workers[role].processes or processes_on(quantity.parse(limit) // 1000 if limit else 1)


@dataclass(frozen=True, slots=True)
class PodsOfWorkers:
    """Where what has pods of its own runs. All else runs next to the driver."""

    of_agent: AgentPods | None
    of_rewards: Mapping[int, RewardPods]
    """By their index in spec.rewards."""

    @classmethod
    def of(cls, spec: RLJobSpec, listener: PodListener) -> Self:
        """Must be called inside the event loop. Raises ConfigurationError."""
        require_open_files(spec)
        agent, own = spec.rollout.agent, None
        if agent and agent.workers:
            own = AgentPods(AgentProcess, agent.timeout_seconds, agent.workers)
            listener.admit(names.ROLE_WORKER, own)
        rewards = {
            i: RewardPods(RewardProcess, reward.timeout_seconds, reward.workers)
            for i, reward in enumerate(spec.rewards)
            if reward.workers
        }
        for i, pods in rewards.items():
            listener.admit(names.scorer_role(i), pods)
        return cls(own, rewards)

    def load(self) -> dict[str, WorkerLoad]:
        """By role, of those whose pods come and go with their calls."""
        agent = {names.ROLE_WORKER: self.of_agent.load} if self.of_agent else {}
        loads = agent | {names.scorer_role(i): pods.load for i, pods in self.of_rewards.items()}
        return {role: load for role, load in loads.items() if load}

    def follow(self, changed: Callable[[], None]) -> None:
        """`changed` is called when there is a first process anywhere, or none any more."""
        if self.of_agent:
            self.of_agent.changed = changed
        for pods in self.of_rewards.values():
            pods.changed = changed
