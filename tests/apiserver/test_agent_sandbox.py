"""Claims of agent-sandbox before a real API server with its own CRDs, an operator process and its death."""

import json
from pathlib import Path
from typing import Any

import pytest

from apiserver.agent_sandbox import AVAILABLE, SandboxLab, install
from apiserver.lab import lab
from apiserver.proxy import Faults
from e2e.control_plane import ControlPlane
from rljob_api import names
from rljob_operator.cache.cluster import SANDBOX_KINDS
from rljob_operator.kube.api import Object
from rljob_operator.policies.pods import LEAST_SECONDS
from simulator.world import NAMESPACE

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not AVAILABLE, reason="a Go module holds the CRDs")]
AGENT = {"python": {"path": "/data/agent.py"}, "maxTurns": 2, "maxTokens": 16}
ROLLOUT = {"replicas": 1, "sampling": {"maxTokens": 8}, "agent": AGENT}
ENVIRONMENTS: list[dict[str, Any]] = [{"name": "python", "replicas": 2}]


def held(world: SandboxLab) -> dict[str, Object]:
    """Pods that claims have, by the ordinal of the claim."""
    pods = [p for p in world.cluster.pods(NAMESPACE) if names.ANNOTATION_CLAIM in p["metadata"].get("annotations", {})]
    return {pod["metadata"]["annotations"][names.ANNOTATION_CLAIM]: pod for pod in pods}


def uids(world: SandboxLab) -> dict[str, str]:
    return {ordinal: pod["metadata"]["uid"] for ordinal, pod in held(world).items()}


async def end_helper(world: SandboxLab, ordinal: str) -> None:
    """An agent has given it back."""
    name = held(world)[ordinal]["metadata"]["name"]
    last = {"terminated": {"exitCode": 0}}
    more = {"ready": True, "image": "", "imageID": "", "restartCount": 1}
    status = {"containerStatuses": [{"name": "sandbox", "state": {"running": {}}, "lastState": last} | more]}
    where = f"/api/v1/namespaces/{world.namespace}/pods/{name}/status"
    await world._request("PATCH", "Pod", where, {"status": status}, "application/merge-patch+json")


async def test_claims_are_made_used_given_back_and_none_is_left_whoever_died(
    plane: ControlPlane, tmp_path: Path
) -> None:
    install(plane, tmp_path)
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"agentSandbox": True}))
    faults = Faults(watch_seconds=2.0, doubled=True)
    async with lab(plane, "claims", faults, options=("--job-policy", str(policy)), kind=SandboxLab) as world:
        await world.submit(rollout=ROLLOUT, environments=ENVIRONMENTS)
        await world.until(state="Running", attempt=1)

        async def free(count: int = 2) -> bool:
            return bool(world.control) and len((world.control.sandboxes if world.control else {})["python"]) == count

        await world.turn_until(free, "two free sandboxes")
        (template,) = (await world._api.listing("SandboxTemplate", world.namespace)).objects
        pod = template["spec"]["podTemplate"]["spec"]
        assert pod["automountServiceAccountToken"] is False and pod["serviceAccountName"] == "demo-sandboxes"
        assert pod["containers"][0]["resources"]["limits"].keys() == {"cpu", "memory", "ephemeral-storage"}
        assert template["spec"]["networkPolicyManagement"] == "Unmanaged"
        await _is_replaced(world, "0", dies=False)
        await _is_replaced(world, "1", dies=True)
        await world.turn_until(free, "two free sandboxes again")
        assert world.status.attempt and (world.status.attempt.number, world.status.restarts.total) == (1, 0)
        world.process.kill()
        await world.ask("n1", "suspend")

        async def none() -> bool:
            lists = [(await world._api.listing(kind, world.namespace)).objects for kind in SANDBOX_KINDS]
            return not any(lists) and not held(world)

        await world.turn_until(none, "nothing of agent-sandbox's")


async def _is_replaced(world: SandboxLab, ordinal: str, dies: bool) -> None:
    """`dies`: whether the operator does before it hears of it."""
    before = uids(world)
    await _waits(world)
    await end_helper(world, ordinal)
    if dies:
        world.process.kill()

    async def replaced() -> bool:
        return uids(world).keys() == before.keys() and uids(world)[ordinal] != before[ordinal]

    await world.turn_until(replaced, f"another pod for claim {ordinal}")
    other = "1" if ordinal == "0" else "0"
    assert uids(world)[other] == before[other]


async def _waits(world: SandboxLab) -> None:
    """Until a claim is old enough that its pod is replaced at once."""
    for _ in range(int(LEAST_SECONDS * 2)):
        await world.turn()
