"""What Kueue's generic MultiKueue adapter does with a job (0.19.2, externalframeworks/adapter.go), on a real API server before a running operator."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from api.specs import raw_spec
from apiserver.lab import TURNS, Lab, lab
from apiserver.proxy import Faults
from apiserver.world import administrator
from e2e.cluster.steps import BIN
from e2e.control_plane import ControlPlane
from e2e.kube import CommandFailed, Kube, wait_for
from rljob_operator.kube.api import ApiError, Object
from simulator.objects import job_object

pytestmark = pytest.mark.slow

MULTIKUEUE = "kueue.x-k8s.io/multikueue"
EXAMPLE = Path(__file__).parents[2] / "examples" / "kueue" / "multikueue.yaml"
ADAPTER = "system:serviceaccount:kueue-system:kueue-controller-manager"
PLURALS = {"ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings"}


async def test_the_adapters_requests_run_a_copy_and_bring_its_status_into_a_job_that_the_operator_leaves_alone(
    plane: ControlPlane,
) -> None:
    for right in (o for o in yaml.safe_load_all(EXAMPLE.read_text()) if o["kind"] in PLURALS):
        plane.call("POST", f"/apis/{right['apiVersion']}/{PLURALS[right['kind']]}", right)
    async with lab(plane, "elsewhere", Faults()) as world:
        spec = raw_spec(train={"steps": 10**6}, trainer={"device": "cpu", "nodes": 2}, managedBy=MULTIKUEUE)
        await world._api.create(job_object("away", spec, world.namespace))
        await world.submit(**{k: v for k, v in spec.items() if k != "managedBy"})  # in another cluster
        await world.until(state="Running", attempt=1, step=1, turns=TURNS)
        away = await seen(world)
        assert away["status"] == {"observedGeneration": -1}
        sync_status(plane, world)
        for _ in range(20):
            await world.turn()
        after = await seen(world)
        assert after["status"]["state"] == "Running", "nobody else writes it"
        assert await children(world) == set()
        assert {o["involvedObject"]["name"] for o in (await world._api.listing("Event", world.namespace)).objects} == {
            "demo"
        }


@pytest.mark.parametrize(
    ("first", "then"), [(None, MULTIKUEUE), (MULTIKUEUE, None), (MULTIKUEUE, "rljob.dev/operator")]
)
async def test_no_controller_takes_a_job_from_another(plane: ControlPlane, first: str | None, then: str | None) -> None:
    api = administrator(plane)
    name = f"kept-{'a' if first else 'b'}{'a' if then else 'b'}"
    try:
        live = await api.create(job_object(name, raw_spec(**_named(first)), "default"))
        changed = {k: v for k, v in live["spec"].items() if k != "managedBy"} | _named(then)
        with pytest.raises(ApiError, match="spec.managedBy is immutable"):
            await api.replace(live | {"spec": changed})
        await api.replace(live | {"spec": live["spec"] | {"suspend": True}})
        await api.delete("RLJob", "default", name, live["metadata"]["uid"])
    finally:
        await api.close()


def _named(controller: str | None) -> dict[str, str]:
    return {"managedBy": controller} if controller else {}


async def seen(world: Lab) -> Object:
    return await world._api.get("RLJob", world.namespace, "away")


async def children(world: Lab) -> set[str]:
    """Names of objects with the label of the job."""
    kinds = ("Pod", "ConfigMap", "StatefulSet", "Service", "ServiceAccount", "Role", "RoleBinding", "NetworkPolicy")
    listed = [(await world._api.listing(kind, world.namespace, "rljob.dev/job=away")).objects for kind in kinds]
    return {obj["metadata"]["name"] for objects in listed for obj in objects}


def sync_status(plane: ControlPlane, world: Lab) -> None:
    """As the adapter does, with the rights of the example: a merge patch with the status of the copy. Rights take effect some time after they are
    written."""
    kube = Kube(plane.kubeconfig, world.namespace, str(BIN))
    patch = ("patch", "rljob", "away", "--type=merge", f"--as={ADAPTER}", "-p")

    def copied() -> bool:
        with suppress(CommandFailed):
            return bool(kube.kubectl(*patch, json.dumps({"status": world.job["status"]}), "--subresource=status"))
        return False

    wait_for("the adapter's rights", copied, 180)
    with pytest.raises(CommandFailed, match="orbidden"):
        kube.kubectl(*patch, '{"spec":{"suspend":true}}')
