"""What the API server itself refuses, and what deletion leaves behind."""

import copy
import json
import urllib.error
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from api.broken import BROKEN
from api.specs import make_spec, raw_spec
from apiserver.lab import TURNS, Lab, lab
from apiserver.proxy import Faults
from e2e.control_plane import ControlPlane
from rljob_api.rules import validate
from rljob_api.rules.validator import OBJECT_RULES
from rljob_operator.kube.api import NotFound
from simulator.objects import job_object

pytestmark = pytest.mark.slow

NONSENSE: tuple[Any, ...] = (
    None,
    -1,
    0,
    10**12,
    1.5,
    "",
    "x" * 5000,
    "../..",
    "${x}",
    [],
    {},
    True,
    ["a"],
    {"a": {"b": 1}},
)


def mutations(random: Random, count: int) -> Iterator[dict[str, Any]]:
    """Valid specs in which something was replaced, removed or added."""
    for _ in range(count):
        spec = copy.deepcopy(raw_spec(trainer={"device": "cpu", "nodes": 2}, lifecycle={"maxRestarts": 1}))
        for _ in range(random.randint(1, 3)):
            where = random.choice(list(_objects(spec)))
            key = random.choice([*where, "surprise"])
            if random.random() < 0.2:
                where.pop(key, None)
            else:
                where[key] = random.choice(NONSENSE)
        yield spec


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _objects(inner)


def submit(plane: ControlPlane, spec: dict[str, Any]) -> str:
    """Empty, or why the API server refuses it. Nothing is stored."""
    where = "/apis/rljob.dev/v1alpha1/namespaces/default/rljobs?dryRun=All&fieldValidation=Strict"
    try:
        plane.call("POST", where, job_object("demo", spec, "default"))
    except urllib.error.HTTPError as error:
        assert error.code in (400, 422), error.read()
        return str(json.loads(error.read())["message"])
    return ""


@pytest.mark.parametrize("count", [60, pytest.param(250, marks=pytest.mark.extra)])
def test_every_broken_spec_is_refused_by_the_api_server_or_named_by_the_operator(
    plane: ControlPlane, count: int
) -> None:
    accepted = 0
    for spec in mutations(Random(1), count):
        refusal = submit(plane, spec)
        found = validate(spec, "demo").violations
        assert all(v.field.startswith(("spec", "metadata")) and v.rule for v in found)
        if refusal:
            assert "spec" in refusal or "surprise" in refusal, refusal
            assert found or "must be of type" in refusal, f"no rule of ours refuses it: {refusal}"
        else:
            accepted += 1
    assert accepted > count // 50, "some mutations are harmless, or only the operator can tell"


def test_quantities_may_be_whole_numbers_as_everywhere_in_kubernetes(plane: ControlPlane) -> None:
    mebi = 2**20
    for amount, accepted in (
        (mebi, True),
        (f"{mebi}", True),
        ("64Gi", True),
        (-1, False),
        (0.5, False),
        ("8 GB", False),
    ):
        template = {"resources": {"limits": {"example.com/nic": amount}}}
        spec = raw_spec(trainer={"device": "cpu", "shmSize": amount, "template": template})
        assert (submit(plane, spec) == "") == accepted == (not validate(spec, "demo").violations), amount


def test_rollouts_may_be_separate_colocated_or_none_at_all(plane: ControlPlane) -> None:
    colocated = {"placement": "colocated"}
    replay = {"train": {"steps": 1, "batches": {"replay": "/data/batches"}}, "rollout": {"replicas": 0}}
    for changes in ({}, {"rollout": colocated}, {"rollout": colocated, "trainer": {"nodes": 2}}, replay):
        assert validate(raw_spec(**changes), "demo").violations == ()
        assert submit(plane, raw_spec(**changes)) == ""
    assert "nothing would generate" in submit(plane, raw_spec(rollout={"replicas": 0, "minReplicas": 0}))


def test_a_service_needs_neither_data_nor_steps(plane: ControlPlane) -> None:
    for service in ({}, {"idleSeconds": 600, "keys": "/keys", "template": {"resources": {"requests": {"cpu": 1}}}}):
        assert validate(raw_spec(task="service", service=service), "demo").violations == ()
        assert submit(plane, raw_spec(task="service", service=service)) == ""
    assert "spec.service.idleSeconds" in submit(plane, raw_spec(task="service", service={"idleSeconds": 5}))


@pytest.mark.parametrize(("changes", "field"), BROKEN)
def test_the_api_server_refuses_what_a_rule_refuses_and_says_the_same(
    plane: ControlPlane, changes: dict[str, Any], field: str
) -> None:
    (broken,) = [rule for rule in OBJECT_RULES if list(rule(make_spec(**changes)))]
    assert broken.kubernetes()["message"] in submit(plane, raw_spec(**changes))


async def test_what_a_run_stands_on_is_immutable_and_the_rest_is_not(plane: ControlPlane) -> None:
    async with lab(plane, "immutable", Faults()) as world:
        await world.submit()
        for change, field in (
            ({"checkpoint": {"path": "/data/elsewhere"}}, "spec.checkpoint.path is immutable"),
            ({"model": {"path": "/data/other"}}, "spec.model.path is immutable"),
            ({"task": "sft", "rewards": None}, "spec.task is immutable"),
        ):
            with pytest.raises(Exception, match=field):
                await world.edit_child("RLJob", "demo", {"spec": change})
        await world.edit_child("RLJob", "demo", {"spec": {"suspend": True}})


async def test_children_that_are_deleted_or_edited_come_back_and_the_attempt_goes_on(plane: ControlPlane) -> None:
    async with lab(plane, "children", Faults()) as world:
        await world.submit()
        await world.until(state="Running", attempt=1, turns=TURNS)
        before = {
            kind: (await world._api.listing(kind, "children")).objects
            for kind in ("Role", "NetworkPolicy", "ConfigMap")
        }
        for kind, name in (
            ("NetworkPolicy", "demo-pods"),
            ("ConfigMap", "demo-control"),
            ("ConfigMap", "demo-trainer-1-report"),
        ):
            await world.remove_child(kind, name)
        await world.edit_child("Role", "demo-pods", {"rules": []})
        await world.turn_until(lambda: are_there(world, before), "what was deleted or edited is as before")
        await world.turn()
        assert world.control and world.control.attempt == 1
        world.finish = True
        await world.until(state="Succeeded", turns=TURNS)
        assert world.status.attempt and world.status.attempt.number == 1


async def are_there(world: Lab, before: dict[str, list[dict[str, Any]]]) -> bool:
    after = {kind: (await world._api.listing(kind, world.namespace)).objects for kind in before}
    return all([_content(o) for o in after[kind]] == [_content(o) for o in objects] for kind, objects in before.items())


def _content(obj: dict[str, Any]) -> tuple[Any, ...]:
    return obj["metadata"]["name"], obj["metadata"]["labels"], obj.get("rules"), obj.get("spec")


async def test_a_job_that_is_deleted_while_the_operator_is_down_is_gone_at_once(plane: ControlPlane) -> None:
    async with lab(plane, "deleted", Faults()) as world:
        await world.submit()
        await world.until(state="Running", attempt=1, turns=TURNS)
        operator = world.operator_process
        assert operator
        operator.wanted = False
        operator.kill()
        for kind in ("ConfigMap", "NetworkPolicy", "StatefulSet", "Role", "RoleBinding", "ServiceAccount"):
            for child in (await world._api.listing(kind, "deleted", "rljob.dev/job=demo")).objects:
                assert "finalizers" not in child["metadata"]
                assert child["metadata"]["ownerReferences"][0]["uid"] == world.job["metadata"]["uid"]
        await world.remove_child("RLJob", "demo")
        with pytest.raises(NotFound):
            await world._api.get("RLJob", "deleted", "demo")
