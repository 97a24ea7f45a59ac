"""Requests: what is written, what is said, what is refused."""

from typing import Any

from cli.conftest import Rljob
from cli.fake_api import FakeApi
from cli.makers import ago, make_checkpoint, make_job, make_spec, running
from rljob_api import names
from rljob_api.protocol import Request

ARGO_WARNING = (
    "warning: Argo CD owns this object, so spec.suspend was not edited (it would be put back). The request "
    "holds until spec.suspend changes or you ask again; to make it permanent, set spec.suspend: true in Git.\n"
)


def request_of(job: dict[str, Any]) -> Request:
    return Request.model_validate_json(job["metadata"]["annotations"][names.ANNOTATION_REQUEST])


def suspended(**more: Any) -> dict[str, Any]:
    override = {"suspend": True, "specSuspend": False}
    return make_job(**running() | {"state": "Suspended", "suspended": True, "override": override} | more)


def test_suspend_writes_a_request_for_this_object_and_leaves_the_spec(api: FakeApi, rljob: Rljob) -> None:
    job = make_job(**running())
    spec = dict(job["spec"])
    api.add(job)
    screen = rljob("suspend", "demo")
    assert (screen.code, screen.out, screen.err) == (0, "rljob.rljob.dev/demo suspend requested\n", "")
    assert request_of(job).model_dump(exclude={"nonce"}) == {
        "job_uid": "uid-demo",
        "action": "suspend",
        "from_step": None,
    }
    assert job["spec"] == spec


def test_no_request_is_written_into_a_job_that_another_controller_runs(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(spec=make_spec(managedBy="kueue.x-k8s.io/multikueue"), **running()))
    for verb in ("suspend", "restart"):
        screen = rljob(verb, "demo")
        assert screen.code == 1 and "kueue.x-k8s.io/multikueue (spec.managedBy), which reads no requests" in screen.err
    assert "PATCH" not in [method for method, *_ in api.requests]


def test_every_request_has_a_fresh_nonce(api: FakeApi, rljob: Rljob) -> None:
    job = make_job(**running())
    api.add(job)
    nonces = set()
    for verb in ("suspend", "resume", "suspend"):
        rljob(verb, "demo")
        nonces.add(request_of(job).nonce)
    assert len(nonces) == 3


def test_suspending_what_is_held_or_going_to_be_changes_nothing(api: FakeApi, rljob: Rljob) -> None:
    api.add(suspended())
    assert rljob("suspend", "demo").out == "rljob.rljob.dev/demo unchanged (already suspended)\n"
    api.add(make_job(**running()))
    rljob("suspend", "demo")
    assert rljob("suspend", "demo").out == "rljob.rljob.dev/demo unchanged (already suspending)\n"
    assert [method for method, *_ in api.requests].count("PATCH") == 1


def test_a_finished_job_cannot_be_suspended(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(outcome="Succeeded", state="Succeeded"))
    screen = rljob("suspend", "demo")
    assert (screen.code, screen.out) == (1, "")
    assert screen.err == (
        "error: rljob demo in namespace research has succeeded: there is nothing to suspend\n"
        "next:  kubectl rljob status demo -n research\n"
    )


def test_resume_lets_a_suspended_job_go_on(api: FakeApi, rljob: Rljob) -> None:
    job = suspended()
    api.add(job)
    assert rljob("resume", "demo").out == "rljob.rljob.dev/demo resume requested\n"
    assert request_of(job).action == "resume"


def test_resume_overrides_a_suspend_of_the_spec(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(spec=make_spec(suspend=True), suspended=True, state="Suspended"))
    assert rljob("resume", "demo").out == "rljob.rljob.dev/demo resume requested\n"


def test_an_override_is_forgotten_when_the_spec_was_edited_after_it(api: FakeApi, rljob: Rljob) -> None:
    override = {"suspend": False, "specSuspend": False}
    api.add(make_job(spec=make_spec(suspend=True), suspended=True, state="Suspended", override=override))
    assert rljob("resume", "demo").out == "rljob.rljob.dev/demo resume requested\n"


def test_resuming_a_running_job_changes_nothing(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(**running()))
    screen = rljob("resume", "demo")
    assert (screen.code, screen.out) == (0, "rljob.rljob.dev/demo unchanged (not suspended)\n")


def test_resume_from_a_step_names_the_step(api: FakeApi, rljob: Rljob) -> None:
    job = make_job(outcome="Failed", state="Failed", checkpoint={"kept": [make_checkpoint(80, 9)]})
    api.add(job)
    assert rljob("resume", "demo", "--from-step", "80").out == "rljob.rljob.dev/demo resume requested from step 80\n"
    assert request_of(job).from_step == 80


def test_step_0_starts_over_from_the_initial_weights_also_without_checkpoints(api: FakeApi, rljob: Rljob) -> None:
    job = make_job(outcome="Failed", state="Failed")
    api.add(job)
    assert rljob("resume", "demo", "--from-step", "0").out == "rljob.rljob.dev/demo resume requested from step 0\n"
    assert request_of(job).from_step == 0
    assert rljob("resume", "demo", "--from-step", "-1").code == 2


def test_resume_from_a_step_without_a_checkpoint_lists_those_there_are(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(**running()))
    screen = rljob("resume", "demo", "--from-step", "90")
    assert (screen.code, screen.out) == (1, "")
    assert screen.err == (
        "error: --from-step: rljob demo in namespace research has no complete checkpoint of step 90. "
        "Available steps: 60, 80, 100; step 0 starts over from the initial weights.\n"
        "next:  kubectl rljob checkpoints demo -n research\n"
    )


def test_a_finished_job_resumes_only_from_a_given_step(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(outcome="Failed", state="Failed"))
    assert rljob("resume", "demo").err == (
        "error: rljob demo in namespace research has failed: it resumes only from a given step. "
        "It has no complete checkpoints; step 0 starts over from the initial weights.\n"
        "next:  kubectl rljob resume demo -n research --from-step N\n"
    )


def test_a_job_owned_by_git_is_warned_about(api: FakeApi, rljob: Rljob) -> None:
    job = make_job(**running())
    job["metadata"]["annotations"]["argocd.argoproj.io/tracking-id"] = "app:rljob.dev/RLJob:research/demo"
    api.add(job)
    screen = rljob("suspend", "demo")
    assert (screen.code, screen.out, screen.err) == (0, "rljob.rljob.dev/demo suspend requested\n", ARGO_WARNING)
    job["metadata"] |= {"labels": {"kustomize.toolkit.fluxcd.io/name": "apps"}}
    del job["metadata"]["annotations"]["argocd.argoproj.io/tracking-id"]
    assert rljob("resume", "demo").err.startswith("warning: Flux owns this object")


def test_a_job_that_is_being_deleted_takes_no_request(api: FakeApi, rljob: Rljob) -> None:
    job = make_job(**running())
    job["metadata"]["deletionTimestamp"] = ago(seconds=3)
    api.add(job)
    assert "rljob demo in namespace research is being deleted" in rljob("suspend", "demo").err
