"""Colocated rollout servers: children of the launcher on the GPUs of its ranks, started and stopped with the attempt.

They start before the ranks use the GPUs, because vLLM measures free memory. The ranks put them to sleep before they load the policy.
"""

import asyncio
import os
from collections.abc import Mapping

from rljob_api import names
from rljob_api.protocol import Control, Failure, RolloutEndpoint
from rljob_api.text import http_url
from rljob_trainer.machine import VISIBLE, free_port, gpus
from rljob_trainer.pod.arguments import server_arguments, server_environment
from rljob_trainer.pod.server_process import ServerProcess
from rljob_trainer.wire.rollout_client import answers

POLL_SECONDS = 0.5


def visible(ranks: int, size: int, present: list[str], sharing: int = 1) -> list[str]:
    """CUDA_VISIBLE_DEVICES of each server: its own GPUs, then those from which it only reads weight updates (CUDA IPC). `size`: GPUs of a server;
    `sharing`: servers on the same ones, which stand next to each other."""
    groups = [present[i : i + size] for i in range(0, ranks, size) for _ in range(sharing)]
    return [",".join([*group, *(g for g in present if g not in group)]) for group in groups]


class ColocatedServers:
    """The colocated servers of one attempt on this pod; none when rollouts have pods of their own."""

    def __init__(self, control: Control, environment: Mapping[str, str]) -> None:
        spec = control.spec
        self._control, self._inherited = control, environment
        gpu = spec.trainer.device == "gpu"
        ranks, size = spec.trainer.processes_per_node, spec.rollout.gpus
        present = gpus(environment) if gpu else [str(i) for i in range(ranks)]
        shares = visible(ranks, size, present, spec.rollout.servers_per_gpu)
        colocated = spec.rollout.placement == "colocated"
        self._shares = [{VISIBLE: share} if gpu else {} for share in shares] if colocated else []
        self.count = len(self._shares)
        self._running: list[ServerProcess] = []
        self.endpoints: list[RolloutEndpoint] = []
        """Endpoints of all servers; empty until all of them answer."""
        self.answering = asyncio.Event()

    @property
    def pids(self) -> set[int]:
        """Of the servers that were started. They are children of the launcher, and waited for here."""
        return {server.pid for server in self._running}

    async def run(self) -> Failure:
        """Run the servers until one ends. Returns why; call `stop` then."""
        ports = [free_port() for _ in self._shares]
        for share, port in zip(self._shares, ports, strict=True):
            arguments, environment = server_arguments(self._control.spec, port), self._environment(share)
            self._running.append(await ServerProcess.start(arguments, environment, self._url(port), "spec.rollout"))
        ended = [asyncio.create_task(server.end()) for server in self._running]
        try:
            return await self._first_end(ended, [self._endpoint(i, port) for i, port in enumerate(ports)])
        finally:
            for task in ended:
                task.cancel()

    async def stop(self) -> None:
        await asyncio.gather(*(server.stop() for server in self._running))

    async def _first_end(self, ended: list[asyncio.Task[Failure]], endpoints: list[RolloutEndpoint]) -> Failure:
        answering = asyncio.create_task(self._wait(endpoints))
        try:
            await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
        finally:
            answering.cancel()
        return next(task.result() for task in ended if task.done())

    async def _wait(self, endpoints: list[RolloutEndpoint]) -> None:
        token = self._inherited[names.ENV_ROLLOUT_TOKEN]
        for server, endpoint in zip(self._running, endpoints, strict=True):
            while True:
                if await answers(endpoint, token, self._control.attempt):
                    break
                await asyncio.sleep(POLL_SECONDS)
            server.answered()
        self.endpoints = endpoints
        self.answering.set()

    def _endpoint(self, index: int, port: int) -> RolloutEndpoint:
        pod = f"{self._inherited[names.ENV_POD_NAME]}-server-{index}"
        uid = f"{self._inherited[names.ENV_POD_UID]}-{self._control.attempt}-{index}"
        return RolloutEndpoint(pod=pod, pod_uid=uid, url=self._url(port))

    def _url(self, port: int) -> str:
        return http_url(self._inherited[names.ENV_POD_IP], port)

    def _environment(self, share: Mapping[str, str]) -> dict[str, str]:
        inherited = dict(os.environ) | dict(self._inherited)
        return server_environment(
            self._control.spec,
            self._control.spec.rollout.gpus,
            inherited | dict(share) | {names.ENV_ATTEMPT: str(self._control.attempt)},
        )
