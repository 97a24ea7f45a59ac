"""Specs that a real API server takes, and that no operator should have to read, beside a job that trains."""

import asyncio
import json
import urllib.error
import urllib.request

import pytest

from api.specs import raw_spec
from apiserver.lab import TURNS, lab
from apiserver.proxy import Faults
from e2e.control_plane import TOKEN, ControlPlane, unverified
from kubectl_rljob.__main__ import main
from rljob_api import names

pytestmark = pytest.mark.slow
NAMESPACE = "hostile"
LONG = [f"/data/{i:04}" + "x" * 990 for i in range(1_000)]
"""A megabyte of paths, and a valid spec."""
SPECS = {
    "deep-object": '{"a":' * 9_000 + "1" + "}" * 9_000,
    "deep-list": '{"a":' + "[" * 9_000 + "]" * 9_000 + "}",
    "many-values": json.dumps({"a": [0] * 500_000}),
    "wrong-keys": json.dumps({f"moe_router_topk_scaling_{i}": 1 for i in range(512)}),
}
"""transformerConfig, by the job's name."""


def create(plane: ControlPlane, name: str, config: str) -> None:
    """As text: Python can write no deep JSON either."""
    job = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": name}, "spec": raw_spec()}
    body = json.dumps(job).replace('"device": "cpu"', f'"device": "cpu", "transformerConfig": {config}')
    where = f"{plane.url}/apis/{names.API_VERSION}/namespaces/{NAMESPACE}/{names.PLURAL}"
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(where, data=body.encode(), method="POST", headers=headers)
    with urllib.request.urlopen(request, context=unverified(), timeout=60) as answer:
        assert answer.status == 201


async def test_hostile_specs_end_no_operator_and_stop_no_other_job(
    plane: ControlPlane, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab(plane, NAMESPACE, Faults()) as world:
        await world.submit()
        await world.until(state="Running", step=1, turns=TURNS)
        for name, config in SPECS.items():
            create(plane, name, config)
        create(plane, "long-paths", "{}")
        await world.edit_child(names.KIND, "long-paths", {"spec": {"data": {"train": LONG}}})

        async def all_refused() -> bool:
            jobs = [await world._api.get(names.KIND, NAMESPACE, name) for name in SPECS]
            return all((job.get("status") or {}).get("state") == "Failed" for job in jobs)

        await world.turn_until(all_refused, "all hostile specs refused")
        assert world.process.end() == 0
        step = world.status.progress.step
        await world.until(state="Running", step=step + 3, turns=TURNS)
        assert await all_refused()
        deep = await world._api.get(names.KIND, NAMESPACE, "deep-object")
        assert "is nested deeper than 40 objects and lists" in deep["status"]["message"]
        monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
        assert await asyncio.to_thread(main, ["list", "-n", NAMESPACE]) == 0
        shown = capsys.readouterr().out
        assert all(name in shown for name in (*SPECS, "long-paths", "demo"))


def test_the_api_server_refuses_long_maps_and_large_numbers(plane: ControlPlane) -> None:
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": "large"}})
    where = f"/apis/{names.API_VERSION}/namespaces/large/{names.PLURAL}"
    job = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "demo"}}
    keys = {f"key{i}": 1 for i in range(2_500)}
    for trainer in ({"transformerConfig": keys}, {"nodes": 100_000}, {"processesPerNode": 65}):
        with pytest.raises(urllib.error.HTTPError) as refused:
            plane.call("POST", where, job | {"spec": raw_spec(trainer={"device": "cpu"} | trainer)})
        assert refused.value.code == 422
