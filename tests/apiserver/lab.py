"""A world, a proxy with faults, and an operator process that is started again whenever it is dead."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from apiserver.proxy import Faults, proxy
from apiserver.world import RealWorld, administrator
from e2e.control_plane import ControlPlane


@dataclass
class Operator:
    """`kill` may be called at any time; `keep_alive` starts it again."""

    kubeconfig: Path
    namespace: str
    log: Path
    identity: str = "one"
    kills: int = 0
    deaths: int = 0
    """By itself."""
    wanted: bool = True
    _process: subprocess.Popen[bytes] | None = field(default=None)

    def keep_alive(self) -> None:
        if not self.wanted or (self._process and self._process.poll() is None):
            return
        self.deaths += self._process is not None
        command = [sys.executable, "-m", "rljob_operator", "--namespace", self.namespace]
        command += ["--lease-namespace", self.namespace, "--identity", self.identity, "--progress-interval", "0.3"]
        with self.log.open("ab") as log:
            env = os.environ | {"KUBECONFIG": str(self.kubeconfig)}
            self._process = subprocess.Popen([*command, "--health-port", "0"], env=env, stdout=log, stderr=log)

    def end(self) -> int:
        """As the kubelet asks for it; the exit code."""
        assert self._process
        process, self._process = self._process, None
        process.terminate()
        return process.wait(timeout=20)

    def kill(self) -> None:
        if self._process and self._process.poll() is None:
            self._process.kill()
            self._process.wait(timeout=20)
            self._process = None
            self.kills += 1


@dataclass
class Lab(RealWorld):
    """A world with an operator."""

    operator_process: Operator | None = None

    async def turn(self) -> None:
        assert self.operator_process
        self.operator_process.keep_alive()
        await super().turn()


@asynccontextmanager
async def lab(plane: ControlPlane, namespace: str, faults: Faults) -> AsyncIterator[Lab]:
    api = administrator(plane)
    async with proxy(plane.url, faults, Random(0)) as address:
        config = plane.write_kubeconfig(plane.directory / f"{namespace}.kubeconfig", address)
        operator = Operator(config, namespace, plane.directory / f"operator-{namespace}.log")
        world = Lab(api=api, namespace=namespace, save_every=1000, operator_process=operator)
        try:
            await world.prepare()
            yield world
            assert operator.deaths == 0, operator.log.read_text()[-4000:]
        finally:
            operator.kill()
            await api.close()
