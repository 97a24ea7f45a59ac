"""A service (`task: service`) on a real API server: its gateway's objects, and a sleep from which a request wakes it."""

from typing import Any

import pytest

from apiserver.lab import TURNS, Lab, lab
from apiserver.proxy import Faults
from e2e.control_plane import ControlPlane
from rljob_api import names
from rljob_api.protocol import ServiceReport
from simulator.site import NAMESPACE

pytestmark = pytest.mark.slow


def say(world: Lab, **report: Any) -> None:
    attempt = world.status.attempt.number if world.status.attempt else 0
    for gateway in world.gateways.values():
        gateway.service = ServiceReport(attempt=attempt, **report)


def roles(world: Lab) -> set[str]:
    return {pod["metadata"]["labels"][names.LABEL_ROLE] for pod in world.cluster.pods(NAMESPACE)}


async def test_a_service_has_one_address_for_clients_and_sleeps_until_they_ask(plane: ControlPlane) -> None:
    async with lab(plane, "services", Faults()) as world:
        settings = {"trainer": {"device": "cpu", "nodes": 1}, "service": {"idleSeconds": 10}}
        world.steps = 10**6  # the simulated trainer has a loop
        await world.submit(task="service", train={}, **settings)
        await world.until(state="Running", attempt=1, turns=TURNS)
        service = await world._api.get("Service", "services", "demo-gateway")
        (port,) = service["spec"]["ports"]
        assert service["spec"]["clusterIP"] and port["port"] == port["targetPort"] == names.GATEWAY_PORT
        (gateway,) = (p for p in world.cluster.pods(NAMESPACE) if p["metadata"]["name"] == "demo-gateway-0")
        assert service["spec"]["selector"].items() <= gateway["metadata"]["labels"].items()
        for kind in ("Service", "NetworkPolicy"):
            await world.remove_child(kind, "demo-gateway")

        async def again() -> bool:
            return await world.exists("Service", "demo-gateway") and await world.exists("NetworkPolicy", "demo-gateway")

        await world.turn_until(again, "both are there again")
        await world.turn()
        version = (await world._api.get("Service", "services", "demo-gateway"))["metadata"]["resourceVersion"]
        say(world, clients=1, idle=True)
        await world.until(state="Suspended", turns=TURNS)

        async def asleep() -> bool:
            return roles(world) == {names.ROLE_GATEWAY}

        await world.turn_until(asleep, "only the gateway is left")
        say(world, clients=1, waiting=1)
        await world.until(state="Running", attempt=2, turns=TURNS)
        assert world.status.service.waiting == 1 and not world.status.asleep
        now = await world._api.get("Service", "services", "demo-gateway")
        assert now["metadata"]["resourceVersion"] == version, "nobody writes it again and again"
