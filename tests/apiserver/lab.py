"""A world, a proxy with faults, and an operator process that is started again whenever it is dead."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import yaml

from apiserver.proxy import Faults, proxy
from apiserver.world import RealWorld, administrator
from e2e.control_plane import ControlPlane

TURNS = 3000
"""Many more than anything takes, also where an operator starts again after each write on a busy machine."""


@dataclass
class Operator:
    """`kill` may be called at any time; `keep_alive` starts it again."""

    kubeconfig: Path
    namespace: str
    log: Path
    identity: str = "one"
    others: tuple[str, ...] = ()
    """Namespaces that it serves as well."""
    options: tuple[str, ...] = ()
    """Further ones of its command line."""
    lease_namespace: str = ""
    """If not the first that it serves."""
    health_port: int = 0
    kills: int = 0
    deaths: int = 0
    """By itself."""
    wanted: bool = True
    _process: subprocess.Popen[bytes] | None = field(default=None)

    def keep_alive(self) -> None:
        if not self.wanted or (self._process and self._process.poll() is None):
            return
        self.deaths += self._process is not None
        command = [sys.executable, "-m", "rljob_operator"]
        command += [f"--namespace={namespace}" for namespace in (self.namespace, *self.others)]
        command += [
            "--lease-namespace",
            self.lease_namespace or self.namespace,
            "--identity",
            self.identity,
            "--progress-interval",
            "0.3",
        ]
        with self.log.open("ab") as log:
            env = os.environ | {"KUBECONFIG": str(self.kubeconfig)}
            self._process = subprocess.Popen(
                [*command, *self.options, "--health-port", str(self.health_port)], env=env, stdout=log, stderr=log
            )

    def end(self) -> int:
        """As the kubelet asks for it; the exit code."""
        assert self._process
        process, self._process = self._process, None
        process.terminate()
        return process.wait(timeout=120)

    async def wait(self) -> int:
        """Until it has ended; the exit code. Meanwhile the proxy, which is in our event loop, serves it."""
        assert self._process
        process, self._process = self._process, None
        return await asyncio.to_thread(process.wait, timeout=120)

    def use_token(self, token: str) -> None:
        config = yaml.safe_load(self.kubeconfig.read_text())
        config["users"][0]["user"]["token"] = token
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def tells(self, words: str) -> bool:
        return self.log.exists() and words in self.log.read_text()

    def last_words(self) -> str:
        return self.log.read_text()[-6000:] if self.log.exists() else ""

    def kill(self) -> None:
        if self._process and self._process.poll() is None:
            self._process.kill()
            self._process.wait(timeout=120)
            self._process = None
            self.kills += 1


@dataclass
class Lab(RealWorld):
    """A world with an operator."""

    operator_process: Operator | None = None

    @property
    def process(self) -> Operator:
        assert self.operator_process
        return self.operator_process

    async def turn(self) -> None:
        assert self.operator_process
        self.operator_process.keep_alive()
        await super().turn()

    async def turn_until(self, holds: Callable[[], Awaitable[bool]], what: str) -> None:
        for _ in range(TURNS):
            await self.turn()
            if await holds():
                return
        raise AssertionError(f"never: {what}")


async def until(ready: Callable[[], bool], seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end
        await asyncio.sleep(0.2)


@asynccontextmanager
async def lab[L: Lab](
    plane: ControlPlane,
    namespace: str,
    faults: Faults,
    deaths: int = 0,
    options: tuple[str, ...] = (),
    kind: type[L] = Lab,  # type: ignore[assignment]
) -> AsyncIterator[L]:
    """`deaths`: how often the operator may end without being asked to; `options`: of the operator, further ones; `kind`: of the world."""
    api = administrator(plane)
    async with proxy(plane.url, faults, Random(0)) as address:
        config = plane.write_kubeconfig(plane.directory / f"{namespace}.kubeconfig", address)
        operator = Operator(config, namespace, plane.directory / f"operator-{namespace}.log", options=options)
        world = kind(api=api, namespace=namespace, save_every=1000, operator_process=operator)
        try:
            await world.prepare()
            yield world
            assert operator.deaths <= deaths
            await world.bears_no_marks()
        except BaseException as error:
            error.add_note(f"the operator's last words:\n{operator.last_words()}")
            raise
        finally:
            operator.kill()
            await api.close()
