"""Which trajectory has which sandbox. The driver hands them out and relays what agents ask of them (sandbox.py): no agent has the token of one,
and whatever becomes of its process, what it had claimed ends with its trajectory. Bytes are base64, since questions are lines of JSON."""

import asyncio
import logging
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, NamedTuple

from rljob_api.callbacks import nothing
from rljob_api.protocol import SandboxAddress
from rljob_api.spec.agent import EnvironmentPool
from rljob_trainer.sandboxes.directory import DirectorySandbox
from rljob_trainer.sandboxes.helper import token_of
from rljob_trainer.sandboxes.pod import PodSandbox
from rljob_trainer.sandboxes.sandbox import ClaimedSandbox, SandboxError
from rljob_trainer.workers.places import Places

MOST_CLAIMS = 8
"""Of one trajectory at a time."""
RETRY_SECONDS = 5.0
"""After which a sandbox is tried again that is listed as free and did not answer."""

log = logging.getLogger(__name__)


class Free(NamedTuple):
    """A sandbox that nobody has."""

    uid: str
    """Of its pod, or a number of the local run."""
    address: str
    """Of its pod; empty: it is a directory of this machine."""


class ClaimedPool:
    """The sandboxes of one entry of spec.environments. Each pod is handed out once."""

    def __init__(self, pool: EnvironmentPool, secret: str, changed: Callable[[], None]):
        """`secret`: the job's token. `changed` is called when `ready` may be another."""
        self.pool = pool
        self._secret, self._changed = secret, changed
        self._listed = set[Free]()
        """Those that are free by the operator's last word, which may be old."""
        self._places: Places[Free] = Places(_one)
        """Those of them that were not handed out."""
        self._used, self._held = set[Free](), set[Free]()
        """Those that were handed out, and those that have not been given back since."""

    @property
    def ready(self) -> bool:
        """Whether there is any sandbox."""
        return bool(len(self._places) or self._held)

    def follow(self, free: Iterable[SandboxAddress] | None) -> None:
        """None: there are no pods."""
        here = (Free(str(i), "") for i in range(self.pool.replicas))
        self._listed = set(here if free is None else (Free(one.pod_uid, one.address) for one in free))
        self._used &= self._listed | self._held
        for gone in set(self._places) - self._listed:
            self._places.remove(gone)
        for new in self._listed - self._used - set(self._places):
            self._places.add(new)

    async def claimed(self) -> tuple[Free, ClaimedSandbox]:
        """The next one that is free, once there is one."""
        while True:
            one = await self._next()
            try:
                return one, await self._opened(one)
            except BaseException as error:
                self._held.discard(one)
                asyncio.get_running_loop().call_later(RETRY_SECONDS, self._again, one)
                if not isinstance(error, SandboxError):
                    raise
                log.warning("environment %s: %s", self.pool.name, error)

    async def _next(self) -> Free:
        async with self._places.one() as one:
            if one in self._places:  # the operator may have taken it off its list meanwhile
                self._places.remove(one)
        self._used.add(one)
        self._held.add(one)
        return one

    async def _opened(self, one: Free) -> ClaimedSandbox:
        if not one.address:
            return DirectorySandbox()
        return await PodSandbox.claimed(one.address, token_of(self._secret, one.uid))

    async def returned(self, one: Free, sandbox: ClaimedSandbox) -> None:
        await sandbox.close()
        self._held.discard(one)
        if not one.address:
            self._again(one)
        self._changed()

    def _again(self, one: Free) -> None:
        if one in self._listed and one in self._used - self._held:
            self._used.discard(one)
            self._places.add(one)


def _one(_: Free) -> int:
    return 1


class Sandboxes:
    """Of all environments of a job."""

    def __init__(self, environments: Iterable[EnvironmentPool] = (), secret: str = ""):
        """`secret`: the job's token."""
        self.changed: Callable[[], None] = nothing
        """Called when `ready` may be another."""
        self._known = {pool.name: ClaimedPool(pool, secret, self._tell) for pool in environments}

    def _tell(self) -> None:
        self.changed()

    @property
    def ready(self) -> bool:
        return all(one.ready for one in self._known.values())

    def follow(self, free: Mapping[str, Iterable[SandboxAddress]] | None) -> None:
        """`free`: as Control.sandboxes."""
        for name, one in self._known.items():
            one.follow(None if free is None else free.get(name, ()))
        self.changed()

    @asynccontextmanager
    async def claims(self) -> AsyncIterator["Claims"]:
        """Those of one trajectory, which end with it."""
        claims = Claims(self._known)
        try:
            yield claims
        finally:
            await claims.close()


class Held(NamedTuple):
    """One claim."""

    environment: ClaimedPool
    place: Free
    sandbox: ClaimedSandbox
    timer: asyncio.TimerHandle
    """That takes it away."""


class Claims:
    """Sandboxes of one trajectory, by numbers that it knows."""

    def __init__(self, environments: Mapping[str, ClaimedPool]):
        self._environments = environments
        self._held: dict[int, Held] = {}
        self._asked = Counter[str]()
        """Claims that wait, by environment."""
        self._numbers = count()
        self._ending = set[asyncio.Task[None]]()

    @property
    def in_use(self) -> bool:
        """Whether there is a claim, or one waits."""
        return bool(self._held or self._asked.total())

    async def claim(self, environment: str) -> int:
        """The number of another sandbox, once there is one. Raises SandboxError."""
        if environment not in self._environments:
            known = ", ".join(self._environments) or "none"
            raise SandboxError(f"spec.environments has no {environment!r:.100}, only {known}")
        if len(self._held) + self._asked.total() >= MOST_CLAIMS:
            raise SandboxError(f"a trajectory may have {MOST_CLAIMS} sandboxes at a time: give one back")
        one = self._environments[environment]
        mine = self._asked[environment] + sum(held.environment is one for held in self._held.values())
        if mine >= one.pool.replicas:
            raise SandboxError(
                f"environment {environment} has replicas: {one.pool.replicas}, and this trajectory has claimed as many: give one back"
            )
        self._asked[environment] += 1
        try:
            place, sandbox = await one.claimed()
        finally:
            self._asked[environment] -= 1
        number, loop = next(self._numbers), asyncio.get_running_loop()
        timer = loop.call_later(one.pool.claim_seconds, self.end, number)
        self._held[number] = Held(one, place, sandbox, timer)
        return number

    def of(self, number: int) -> ClaimedSandbox:
        """Raises SandboxError."""
        if number not in self._held:
            raise SandboxError(
                "this sandbox was given back, ended with a request that was given up, or taken away after spec.environments[].claimSeconds"
            )
        return self._held[number].sandbox

    async def give_back(self, number: int) -> None:
        """It continues where whoever waits for it is cancelled."""
        ending = self.end(number)
        if ending:
            await asyncio.shield(ending)

    async def close(self) -> None:
        for number in list(self._held):
            self.end(number)
        if self._ending:
            await asyncio.wait(self._ending)

    def end(self, number: int) -> asyncio.Task[None] | None:
        """What gives it back; None: the trajectory does not have it."""
        held = self._held.pop(number, None)
        if held is None:
            return None
        held.timer.cancel()
        task = asyncio.create_task(held.environment.returned(held.place, held.sandbox))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task


async def claimed(claims: Claims, environment: str) -> int:
    return await claims.claim(environment)


async def asked(claims: Claims, number: int, method: str, arguments: dict[str, Any]) -> Any:
    """Where the agent gives up, its program would run on, and keep the next request waiting: that ends the sandbox."""
    try:
        return await METHODS[method](claims.of(number), **arguments)
    except asyncio.CancelledError:
        if method != "http":
            claims.end(number)
        raise


async def given_back(claims: Claims, number: int) -> None:
    await claims.give_back(number)


async def _run(sandbox: ClaimedSandbox, command: list[str], stdin: str, seconds: float, most: int) -> list[Any]:
    ended = await sandbox.run(command, seconds, b64decode(stdin), most)
    return [ended.code, ended.reason, _text(ended.output), _text(ended.errors)]


async def _write(sandbox: ClaimedSandbox, path: str, content: str) -> None:
    await sandbox.write(path, b64decode(content))


async def _read(sandbox: ClaimedSandbox, path: str) -> str:
    return _text(await sandbox.read(path))


async def _http(
    sandbox: ClaimedSandbox, method: str, port: int, path: str, body: str, headers: dict[str, str], seconds: float
) -> list[Any]:
    status, content = await sandbox.http(method, port, path, b64decode(body), headers, seconds)
    return [status, _text(content)]


def _text(content: bytes) -> str:
    return b64encode(content).decode()


METHODS: dict[str, Callable[..., Awaitable[Any]]] = {"run": _run, "write": _write, "read": _read, "http": _http}
QUESTIONS: dict[str, Callable[..., Awaitable[Any]]] = {"claim": claimed, "sandbox": asked, "give_back": given_back}
