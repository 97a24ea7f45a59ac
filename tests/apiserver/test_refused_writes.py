"""Writes that a real API server refuses for a reason that lasts, in its own words."""

from functools import partial

import pytest

from apiserver.lab import TURNS, Lab, lab
from apiserver.proxy import Faults
from e2e.control_plane import ControlPlane
from rljob_api import names, reasons

pytestmark = pytest.mark.slow
NAMESPACE = "refused"


async def says(world: Lab, words: str) -> bool:
    admitted = [c for c in world.status.conditions if c.type == "Admitted"]
    return [c.reason for c in admitted] == [reasons.CHILD_REFUSED] and words in admitted[0].message


async def test_a_control_message_that_is_immutable_is_made_again_and_a_namespace_that_ends_is_named(
    plane: ControlPlane,
) -> None:
    async with lab(plane, NAMESPACE, Faults()) as world:
        await world.submit()
        await world.until(state="Running", attempt=1, turns=TURNS)
        control = names.control("demo")
        await world.edit_child("ConfigMap", control, {"immutable": True})
        await world.edit_child("RLJob", "demo", {"spec": {"suspend": True}})
        await world.until(state="Suspended", turns=TURNS)
        assert not (await world._api.get("ConfigMap", NAMESPACE, control)).get("immutable")
        plane.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}")  # nobody empties it: there is no such controller
        await world.remove_child("ConfigMap", control)
        said = f"ConfigMap {control}: namespace {NAMESPACE} is being deleted, and the job with it"
        await world.turn_until(partial(says, world, said), "the namespace is named")
