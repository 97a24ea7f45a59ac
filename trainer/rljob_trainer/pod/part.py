"""A pod's part of a server that consists of several pods: vLLM's rendezvous between them, and the check of the pods that answer no requests."""

import asyncio
from dataclasses import dataclass
from typing import Any

from rljob_api.protocol import Control
from rljob_api.server_group import ServerGroup
from rljob_api.spec.processes import Servers
from rljob_trainer.machine import interface_of
from rljob_trainer.pod import health
from rljob_trainer.pod.health import HealthCheck, Lost


@dataclass(frozen=True, slots=True)
class PodPart:
    """One pod's part, in one generation of its server. Rank 0 is the head: the API server, the engine, and the first workers. The others run
    workers only."""

    group: ServerGroup
    rank: int

    @staticmethod
    def of(control: Control, boot_id: str) -> "PodPart | None":
        """Of the pod with this boot, if the control lists it."""
        group = control.server_of(boot_id)
        ranks = {part.boot_id: part.node_rank for part in group.parts} if group else {}
        return PodPart(group, ranks[boot_id]) if group else None

    @property
    def follows(self) -> bool:
        """Whether another pod is the head."""
        return self.rank > 0

    @property
    def meeting(self) -> tuple[str, int]:
        """Where all parts meet: at the head, as long as that lives (server/readiness.py)."""
        return self.group.parts[0].address, self.group.master_port

    def arguments(self, servers: Servers) -> dict[str, Any]:
        """Those of vLLM that differ between parts, or between generations."""
        place = self._of_copies(servers) if servers.data_parallel > 1 else self._of_workers
        return place | ({"headless": True} if self.follows else {})

    @property
    def _of_workers(self) -> dict[str, Any]:
        """Of a server whose workers are one group over all pods."""
        address, port = self.meeting
        return {"nnodes": len(self.group.parts), "node-rank": self.rank, "master-addr": address, "master-port": port}

    def _of_copies(self, servers: Servers) -> dict[str, Any]:
        """Of a server with whole data-parallel copies in each pod."""
        (address, port), local = self.meeting, servers.data_parallel // len(self.group.parts)
        place = {"data-parallel-size-local": local, "data-parallel-address": address}
        place |= {"data-parallel-rpc-port": self.group.rpc_port, "master-port": port}
        return place | ({"data-parallel-start-rank": self.rank * local} if self.follows else {})

    @property
    def environment(self) -> dict[str, str]:
        """Workers of other pods connect to this one's address."""
        own = self.group.parts[self.rank].address
        interface = interface_of(own)
        return {"VLLM_HOST_IP": own} | ({"GLOO_SOCKET_IFNAME": interface} if interface else {})


class FollowerCheck(HealthCheck):
    """The check of a part without an API server: its workers have to run, and their head has to exist. vLLM's workers outlive their head (0.32), and
    would keep their GPUs. That they compute, the head finds out, whose engine waits for them."""

    def __init__(self, pid: int, part: PodPart) -> None:
        super().__init__(pid, "", "", is_part=True)
        self._meeting = part.meeting

    async def _frozen(self) -> Lost:
        while True:
            await asyncio.sleep(health.POLL_SECONDS)
            if self._answered is None:
                continue  # it has not met its head yet
            reason = self._engine.halted(health.STILL_SECONDS)
            if reason:
                return Lost(reason)
            if await _refuses(*self._meeting):
                return Lost(f"the server's head at {self._meeting[0]} ended", elsewhere=True)


async def _refuses(host: str, port: int) -> bool:
    """Whether nobody listens there. False when that cannot be known: that a whole node is gone, the operator finds out."""
    try:
        async with asyncio.timeout(health.ANSWER_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return True
    except OSError:  # TimeoutError, too
        return False
    writer.close()
    return False
