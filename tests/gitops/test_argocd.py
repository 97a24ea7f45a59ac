"""Argo CD shows the health of a job and can ask for what `kubectl rljob` can. The Lua runs as it does there."""

import json
from typing import Any

import pytest
import yaml

from gitops import argocd
from gitops.argocd import ROOT, SCRIPTS, act, enabled, health
from gitops.lives import documents
from rljob_api import names
from rljob_api.protocol import Request
from rljob_api.status import JobStatus
from script import loaded
from simulator.world import World

ACTIONS = ("restart", "resume", "suspend")
HEALTH = {
    "Pending": "Progressing",
    "Starting": "Progressing",
    "Restarting": "Progressing",
    "Suspending": "Progressing",
    "Running": "Healthy",
    "Suspended": "Suspended",
    "Succeeded": "Healthy",
    "Failed": "Degraded",
}


def test_health_follows_the_state() -> None:
    for what, job in documents():
        observed = job["status"].get("observedGeneration") == job["metadata"]["generation"]
        expected = HEALTH[job["status"]["state"]] if observed else "Progressing"
        if what == "spoilt while it runs" and observed:
            expected = "Degraded"
        word, message = health(job)
        assert (word, bool(message)) == (expected, True), what


def test_a_job_in_a_sync_wave_is_healthy_when_it_has_succeeded_because_the_next_wave_waits_for_that() -> None:
    runs = next(
        job for _, job in documents() if job["status"].get("state") == "Running" and health(job)[0] == "Healthy"
    )
    ended = next(
        job for _, job in documents() if job["status"].get("state") == "Succeeded" and health(job)[0] == "Healthy"
    )
    failed = next(job for _, job in documents() if health(job)[0] == "Degraded")
    assert [health(in_a_wave(job))[0] for job in (runs, ended, failed)] == ["Progressing", "Healthy", "Degraded"]


def in_a_wave(job: dict[str, Any]) -> dict[str, Any]:
    return job | {"metadata": job["metadata"] | {"annotations": {"argocd.argoproj.io/sync-wave": "1"}}}


def test_a_message_says_what_is_wrong() -> None:
    spoilt = [job for what, job in documents() if what == "spoilt while it runs"][-1]
    assert "InvalidSpec" in health(spoilt)[1]
    failed = [job for what, job in documents() if what == "raised"][-1]
    assert "ValueError" in health(failed)[1]


def test_a_job_that_nobody_has_looked_at_is_progressing() -> None:
    assert health({"metadata": {"generation": 1}, "spec": {}})[0] == "Progressing"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("Pending", {"suspend"}),
        ("Running", {"suspend", "restart"}),
        ("Suspended", {"resume"}),
        ("Succeeded", set()),
        ("Failed", set()),
    ],
)
def test_only_actions_that_the_operator_would_follow_are_offered(state: str, expected: set[str]) -> None:
    found = [job for what, job in documents() if not what.endswith("unobserved") and is_(job, state)]
    assert found
    for job in found:
        assert enabled(job) == expected


def is_(job: dict[str, Any], state: str) -> bool:
    """A job that waits for its first pods, and one that failed for good: a mistake in the spec can be mended."""
    status = job["status"]
    first, final = "attempt" not in status, bool(status.get("outcome"))
    return status["state"] == state and {"Pending": first, "Failed": final}.get(state, True)


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_writes_a_request_into_the_annotation_and_changes_nothing_else(action: str) -> None:
    job: dict[str, Any] = {"metadata": {"name": "demo", "uid": "uid-1", "generation": 3}, "spec": {"suspend": True}}
    changed = act(action, job)
    request = Request.model_validate_json(changed["metadata"].pop("annotations")[names.ANNOTATION_REQUEST])
    assert (request.job_uid, request.action, request.from_step) == ("uid-1", action, None)
    assert request.nonce.startswith(f"{action}-20")
    assert changed == job


def test_other_annotations_stay() -> None:
    job = {"metadata": {"uid": "uid-1", "annotations": {"note": "a"}}, "spec": {"suspend": False}}
    assert act("suspend", job)["metadata"]["annotations"]["note"] == "a"


async def test_the_operator_does_what_an_action_asks() -> None:
    world = World(steps=40)
    world.apply()
    await world.until(state="Running", step=2)
    for action, state, attempt in (("suspend", "Suspended", 1), ("resume", "Running", 2), ("restart", "Running", 3)):
        _click(world, action)
        await world.until(state=state, attempt=attempt)
        assert world.status.request.startswith(action)


def _click(world: World, action: str) -> None:
    annotations = act(action, world.job)["metadata"]["annotations"]
    world.cluster.edit("RLJob", "research", "demo")["metadata"]["annotations"] = annotations


def test_scripts_read_fields_that_exist() -> None:
    known = {field.alias for field in JobStatus.model_fields.values()}
    for script in SCRIPTS.rglob("*.lua"):
        assert argocd.fields(script.read_text()) <= known, script


def test_the_config_map_holds_these_very_scripts() -> None:
    generator = loaded(ROOT / "gitops/argocd/config_map.py")
    text = (ROOT / "gitops/argocd/argocd-cm.yaml").read_text()
    assert generator.render() == text, "run `make generate`"
    data = yaml.safe_load(text)["data"]
    actions = yaml.safe_load(data["resource.customizations.actions.rljob.dev_RLJob"])
    assert [d["name"] for d in actions["definitions"]] == list(ACTIONS)
    assert json.loads(json.dumps(actions))["discovery.lua"] == (SCRIPTS / "actions/discovery.lua").read_text()
