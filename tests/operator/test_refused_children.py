"""A child that the API server refuses: its author reads in the status which field is wrong, and the job starts when it is right."""

import json
from typing import Any

from rljob_api import reasons
from rljob_operator.kube.api import error
from simulator.world import World

STATUS = {
    "kind": "Status",
    "reason": "Invalid",
    "message": 'StatefulSet.apps "demo-trainer" is invalid',
    "details": {
        "causes": [
            {"field": "spec.template.spec.tolerations[0].operator", "message": 'Unsupported value: "Exist\x1b[2J"'},
            {"field": "spec.template.spec.containers[0].env[3].valueFrom", "message": "Required value"},
        ]
    },
}


async def test_a_refused_child_is_a_condition_with_field_and_rule() -> None:
    world = World(steps=10)
    create = world.cluster.create

    async def refusing(obj: dict[str, Any]) -> dict[str, Any]:
        if (obj["kind"], obj["metadata"]["name"]) == ("StatefulSet", "demo-trainer"):
            raise error(422, "POST statefulsets", json.dumps(STATUS))
        return await create(obj)

    world.cluster.create = refusing  # type: ignore[method-assign]
    world.apply()
    for _ in range(3):
        await world.turn()
    admitted = next(c for c in world.status.conditions if c.type == "Admitted")
    assert (admitted.status, admitted.reason) == ("False", reasons.CHILD_REFUSED)
    said = (
        "the API server refuses StatefulSet demo-trainer: spec.trainer.template.tolerations[0].operator: "
        'Unsupported value: "Exist"; spec.template.spec.containers[0].env[3].valueFrom: Required value'
    )
    assert admitted.message == world.status.message == said
    world.cluster.create = create  # type: ignore[method-assign]
    await world.until(state="Succeeded")


async def test_the_pending_deadline_names_what_was_refused() -> None:
    world = World(steps=10)

    async def refusing(obj: dict[str, Any]) -> dict[str, Any]:
        raise error(403, "POST", "exceeded quota: team")

    world.apply(lifecycle={"pendingDeadlineSeconds": 5})
    await world.reconcile("demo")
    world.cluster.create = refusing  # type: ignore[method-assign]
    for kind in ("StatefulSet", "Role"):
        for key in [key for key in world.cluster.objects if key[0] == kind]:
            world.cluster.remove(world.cluster.objects[key])
    world.asleep = True
    await world.until(state="Failed", turns=20)
    assert world.status.message.endswith("exceeded quota: team")
