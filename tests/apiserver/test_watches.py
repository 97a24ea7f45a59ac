"""Watches that end, are forgotten or refused, by a real API server and a proxy before it: the operator learns what it missed."""

import asyncio
import time
import urllib.error
from functools import partial
from pathlib import Path

import pytest

from api.specs import raw_spec
from apiserver.lab import TURNS, Lab, Operator, lab, until
from apiserver.proxy import Faults
from apiserver.test_faults import END, live
from apiserver.world import administrator
from e2e.control_plane import ControlPlane, available
from rljob_operator.watch.events import EVERYWHERE, SERVED
from simulator.objects import job_object

pytestmark = pytest.mark.slow
NEIGHBOURS = 12


async def settled(world: Lab, names: set[str], turns: int = TURNS) -> None:
    """Until all these jobs, and no others, have their StatefulSets."""
    for _ in range(turns):
        await world.turn()
        sets = (await world._api.listing("StatefulSet", world.namespace)).objects
        found = {s["metadata"]["labels"]["rljob.dev/job"] for s in sets}
        if names <= found:
            return
    raise AssertionError(f"{names - found} have no StatefulSets")


async def test_every_watch_may_forget_at_any_time_while_jobs_come_and_go(plane: ControlPlane) -> None:
    faults = Faults(watch_seconds=0.7, gone=True)
    async with lab(plane, "gone-all", faults) as world:
        for i in range(NEIGHBOURS):
            await world._api.create(job_object(f"neighbour-{i}", raw_spec(), world.namespace))
        assert await live(world) == END
        await settled(world, {f"neighbour-{i}" for i in range(NEIGHBOURS)})


async def test_what_vanished_in_a_gap_that_is_forgotten_is_made_again_and_a_job_that_vanished_stays_away(
    plane: ControlPlane,
) -> None:
    faults = Faults(watch_seconds=1.0)
    async with lab(plane, "gap", faults) as world:
        await world.submit()
        await world._api.create(job_object("vanishes", raw_spec(), world.namespace))
        await world.until(state="Running", attempt=1, turns=TURNS)
        await settled(world, {"demo", "vanishes"})
        faults.refused, faults.gone = {503: 1.0}, True
        await asyncio.sleep(2.0)  # the watches of 1 s end, so that there is a gap
        for kind, name in (("ConfigMap", "demo-control"), ("RoleBinding", "demo-pods"), ("RLJob", "vanishes")):
            await world.remove_child(kind, name)
        for kind in ("StatefulSet", "Role"):
            for child in (await world._api.listing(kind, world.namespace)).objects:
                if child["metadata"]["labels"]["rljob.dev/job"] == "vanishes":
                    await world.remove_child(kind, child["metadata"]["name"])
        faults.refused, faults.gone = None, False
        log = world.process.log
        before = len(log.read_text())
        for kind, name in (("ConfigMap", "demo-control"), ("RoleBinding", "demo-pods")):
            await world.turn_until(partial(world.exists, kind, name), f"{kind} {name} is made again")
        await asyncio.sleep(3.0)  # for a child that would be made again
        assert not await world.exists("StatefulSet", "vanishes-trainer")
        assert "vanishes: " not in log.read_text()[before:]


async def test_a_watch_that_ends_at_once_is_not_begun_again_without_a_pause(plane: ControlPlane) -> None:
    faults = Faults(watch_seconds=0.0)
    async with lab(plane, "spin", faults) as world:
        await world.submit()
        await world.until(state="Running", attempt=1, turns=TURNS)
        kinds = len(EVERYWHERE) + len(SERVED)
        await until(lambda: faults.watches > kinds)
        before, began = faults.watches, time.monotonic()
        await asyncio.sleep(5.0)  # a rate is measured
        assert faults.watches - before <= 3 * kinds * (time.monotonic() - began)


async def test_the_crd_may_be_installed_after_the_operator_and_be_deleted_and_installed_again(tmp_path: Path) -> None:
    if not available():
        pytest.skip("etcd and kube-apiserver are not built: `make cluster-up` builds them")
    with ControlPlane(tmp_path / "plane") as bare:
        operator = Operator(bare.kubeconfig, "late", tmp_path / "operator.log")
        bare.call("POST", "/api/v1/namespaces", {"metadata": {"name": "late"}})
        api = administrator(bare)
        try:
            operator.keep_alive()
            await until(lambda: operator.tells("is not installed yet"))
            bare.install_crd()
            await api.create(job_object("demo", raw_spec(), "late"))
            await until(lambda: "state" in status(bare))
            bare.call("DELETE", CRD)
            await until(lambda: operator.tells("404: "))
            await asyncio.sleep(5.0)  # a rate is measured
            assert operator.log.read_text().count("404: ") < 5 * (len(SERVED) + 5), "a busy loop"
            await until(lambda: not is_served(bare))
            bare.install_crd()
            await api.create(job_object("demo", raw_spec(), "late"))
            await until(lambda: "state" in status(bare))
            operator.keep_alive()
            assert operator.deaths == 0
        finally:
            operator.kill()
            await api.close()


CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/rljobs.rljob.dev"


def is_served(plane: ControlPlane) -> bool:
    try:
        plane.call("GET", CRD)
    except urllib.error.HTTPError as error:
        assert error.code == 404, error.read()
        return False
    return True


def status(plane: ControlPlane) -> dict[str, object]:
    found: dict[str, object] = plane.call("GET", "/apis/rljob.dev/v1alpha1/namespaces/late/rljobs/demo").get(
        "status", {}
    )
    return found
