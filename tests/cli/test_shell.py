"""A pod with a job's volumes: what it is, that it goes again, and what is read through it."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Rljob
from cli.fake_api import POD_UID, FakeApi
from cli.makers import make_job, make_spec, running
from kubectl_rljob import pod_access
from kubectl_rljob.cluster import ClusterClient
from kubectl_rljob.errors import UserError
from kubectl_rljob.job import Job
from rljob_api import names, reasons

Kubectl = Callable[[], list[str]]
CLAIM = {"name": "data", "mountPath": "/data", "source": {"persistentVolumeClaim": {"claimName": "data"}}}
ENDED = {"state": "Succeeded", "outcome": "Succeeded", "attempt": {"number": 2}}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_access, "POLL", 0.01)


def deleted(api: FakeApi) -> list[str]:
    return [path.rsplit("/", 1)[1] for method, path, _ in api.requests if method == "DELETE"]


def test_a_command_runs_where_the_volumes_are_and_the_pod_goes_with_it(
    api: FakeApi, rljob: Rljob, kubectl: Kubectl, tmp_path: Path
) -> None:
    api.add(make_job(**ENDED))
    screen = rljob("shell", "demo", "--context", "here", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (screen.code, screen.out, screen.err) == (7, "out\n", "err\n")
    (pod,) = deleted(api)
    assert pod.startswith("demo-shell-") and api.created == {}
    where = ["--context=here", "--namespace=research", "exec", "--stdin", "--container=shell", pod]
    assert kubectl() == where


def test_what_kubectl_does_in_a_pod_it_does_as_the_same_user(api: FakeApi, rljob: Rljob, kubectl: Kubectl) -> None:
    api.add(make_job(**ENDED))
    assert rljob("shell", "demo", "--as", "alice", "--", "true").code == 0
    assert kubectl()[:2] == ["--as=alice", "--namespace=research"]


def test_without_a_command_it_is_a_shell(api: FakeApi, rljob: Rljob, kubectl: Kubectl) -> None:
    api.add(make_job(**ENDED))
    assert rljob("shell", "demo").code == 0, "there is nothing on standard input"
    assert kubectl()[-1] in deleted(api)


def test_the_pod_has_image_volumes_and_user_of_the_job_and_nothing_that_is_refused() -> None:
    spec = make_spec(volumes=[CLAIM], podSecurity={"runAsUser": 1001}, imagePullSecrets=[{"name": "registry"}])
    job = Job(make_job(spec=spec))
    assert job.spec
    made = pod_access.manifest(job, job.spec, {})
    pod, (container,) = made["spec"], made["spec"]["containers"]
    assert (container["image"], pod["imagePullSecrets"]) == (spec["image"], [{"name": "registry"}])
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "data"}} in pod["volumes"]
    assert {"name": "data", "mountPath": "/data", "readOnly": False} in container["volumeMounts"]
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1001,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False and "limits" not in container["resources"]
    assert [(o["uid"], "controller" in o) for o in made["metadata"]["ownerReferences"]] == [(job.uid, False)]
    assert names.LABEL_JOB not in made["metadata"]["labels"], "it is no pod of the job's gang, or of its network"


def test_the_user_is_the_trainers_where_the_administrator_chose_it(
    api: FakeApi, rljob: Rljob, kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = {"runAsUser": 2000, "fsGroup": 2000}
    api.statefulsets = [{"spec": {"template": {"spec": {"securityContext": user}}}}]
    api.add(make_job(**ENDED))
    seen: list[dict] = []
    monkeypatch.setattr(
        api, "_created", lambda *_: seen.extend(api.created.values()) or {"status": {"phase": "Running"}}
    )
    rljob("shell", "demo", "--", "true")
    assert seen[0]["spec"]["securityContext"] == user


def test_a_pod_that_does_not_start_says_why_and_goes(api: FakeApi, rljob: Rljob, kubectl: Kubectl) -> None:
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    api.add(make_job(**ENDED))
    api.pod_states = [
        {"phase": "Pending"},
        {"phase": "Pending", "containerStatuses": [{"state": {"waiting": waiting}}]},
        {"phase": "Failed", "reason": "Evicted", "message": "the node is low on memory"},
    ]
    screen = rljob("shell", "demo")
    (pod,) = deleted(api)
    assert screen.code == 1
    assert f"waiting for pod {pod}: ImagePullBackOff: no such image\n" in screen.err
    assert f"error: pod {pod} in namespace research did not start: Evicted: the node is low on memory\n" in screen.err
    assert kubectl() == []


def test_a_volume_that_cannot_be_mounted_is_named_although_only_an_event_says_so(
    api: FakeApi, rljob: Rljob, kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_access, "PATIENCE", 0.05)
    why = 'MountVolume.SetUp failed for volume "reward" : configmap "my-reward" not found'
    about = {"involvedObject": {"uid": POD_UID}, "type": "Warning"}
    api.events = [
        about | {"reason": "FailedMount", "message": why, "lastTimestamp": "2026-01-01T00:00:02Z"},
        about | {"reason": "FailedScheduling", "message": "0/3 nodes", "lastTimestamp": "2026-01-01T00:00:01Z"},
    ]
    api.add(make_job(**ENDED))
    api.pod_states = [
        {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}
    ]
    screen = rljob("shell", "demo")
    (pod,) = deleted(api)
    assert f"waiting for pod {pod}: FailedMount: {why}\n" in screen.err
    assert f"did not start: FailedMount: {why}\n" in screen.err


def test_patience_has_an_end(api: FakeApi, rljob: Rljob, kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_access, "PATIENCE", 0.05)
    api.add(make_job(**ENDED))
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    api.pod_states = [{"phase": "Pending", "conditions": [scheduled]}]
    screen = rljob("shell", "demo")
    assert "did not start: Unschedulable: 0/3 nodes\n" in screen.err and len(deleted(api)) == 1


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_closed_window_takes_the_pod_along(
    api: FakeApi, rljob: Rljob, kubectl: Kubectl, number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    api.add(make_job(**ENDED))

    def close() -> None:
        while not kubectl():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=close).start()
    assert rljob("shell", "demo", "--", "sleep", "30").code == 130
    assert len(deleted(api)) == 1
    assert signal.getsignal(number) is before


def test_without_the_right_to_create_pods_it_says_so(api: FakeApi, rljob: Rljob, kubectl: Kubectl) -> None:
    api.add(make_job(**ENDED))
    job, sets = (
        api.answer("GET", f"/apis/{names.API_VERSION}/namespaces/research/rljobs/demo", {}, None),
        (200, {"items": []}),
    )
    answers = iter([job, sets, (403, {"message": "pods is forbidden"})])
    api.answer = lambda *_: next(answers)  # type: ignore[method-assign]
    screen = rljob("shell", "demo")
    assert (screen.code, kubectl()) == (1, [])
    assert "pods is forbidden" in screen.err and "kubectl auth can-i --list -n research" in screen.err


class TestLogsOfAnEarlierAttempt:
    @pytest.fixture
    def job(self, api: FakeApi, tmp_path: Path) -> dict:
        """Its volume is a directory of this machine."""
        run = tmp_path / "run"
        for attempt, rank in ((1, 0), (1, 9), (2, 0)):
            file = names.rank_log(run, attempt, rank)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"first\nrank {rank} of attempt {attempt}\n")
        return make_job(**running(), spec=make_spec(checkpoint={"path": str(run)}))

    def test_they_are_read_in_a_pod_of_the_job(self, api: FakeApi, rljob: Rljob, kubectl: Kubectl, job: dict) -> None:
        api.add(job)
        api.pod_roles = {"demo-trainer-0": "trainer", "demo-rollout-0": "rollout"}
        assert rljob("logs", "demo", "--attempt", "1").out == "first\nrank 0 of attempt 1\n"
        assert kubectl()[-2:] == ["--container=trainer", "demo-trainer-0"]
        assert rljob("logs", "demo", "--attempt", "1", "--rank", "9", "--tail", "1").out == "rank 9 of attempt 1\n"
        assert all(method == "GET" for method, _, _ in api.requests)
        assert {"fieldSelector": "status.phase=Running"}.items() <= api.requests[-1][2].items()

    def test_a_job_without_pods_gets_one_for_it(self, api: FakeApi, rljob: Rljob, kubectl: Kubectl, job: dict) -> None:
        api.add(job)
        assert rljob("logs", "demo", "--attempt", "2").out == "first\nrank 0 of attempt 2\n"
        assert kubectl()[-1] in deleted(api)

    def test_a_rank_that_wrote_nothing_is_an_error(
        self, api: FakeApi, rljob: Rljob, kubectl: Kubectl, job: dict
    ) -> None:
        api.add(job)
        screen = rljob("logs", "demo", "--attempt", "2", "--rank", "3")
        assert screen.code == 1
        assert screen.err.splitlines()[-2:] == [
            f"error: --attempt 2: rank 3 of rljob demo in namespace research wrote nothing in it: "
            f"{names.rank_log(Path(job['spec']['checkpoint']['path']), 2, 3)} is not there",
            "next:  kubectl rljob status demo -n research",
        ]
        assert len(deleted(api)) == 1

    def test_an_attempt_that_failed_before_its_ranks_began_says_where_the_cause_is(
        self, api: FakeApi, rljob: Rljob, kubectl: Kubectl, job: dict
    ) -> None:
        job["status"] |= {"lastFailure": {"attempt": 2, "reason": reasons.CONFIGURATION_ERROR}}
        api.add(job)
        screen = rljob("logs", "demo", "--attempt", "2", "--rank", "3")
        assert screen.err.endswith("next:  kubectl rljob describe-failure demo -n research\n")

    def test_an_attempt_that_was_not_yet_is_refused(self, api: FakeApi, rljob: Rljob, job: dict) -> None:
        api.add(job)
        assert rljob("logs", "demo", "--attempt", "3").err == (
            "error: --attempt 3: the last attempt of rljob demo in namespace research is 2\n"
            "next:  kubectl rljob status demo -n research\n"
        )

    @pytest.mark.parametrize("flags", [("-f",), ("-p",), ("--role", "rollout"), ("--pod", "demo-trainer-0")])
    def test_flags_about_pods_are_refused(self, rljob: Rljob, flags: tuple[str, ...]) -> None:
        assert rljob("logs", "demo", "--attempt", "1", *flags).code == 2


def test_containers_that_a_webhook_has_added_to_the_trainers_are_not_taken() -> None:
    job = Job(make_job(spec=make_spec()))
    assert job.spec
    trainer = {"containers": [{"name": "proxy", "image": "proxy"}, {"name": "trainer", "image": "mirror/trainer"}]}
    (container,) = pod_access.manifest(job, job.spec, trainer)["spec"]["containers"]
    assert container["image"] == "mirror/trainer"


def test_a_pod_that_cannot_be_deleted_is_named_with_the_cluster_that_it_is_in(
    api: FakeApi, rljob: Rljob, kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise UserError("forbidden")

    monkeypatch.setattr(ClusterClient, "delete_pod", refused)
    api.add(make_job(**ENDED))
    screen = rljob("shell", "demo", "--context", "here", "--", "true")
    assert screen.err.startswith("warning: forbidden; delete it: kubectl delete pod demo-shell-")
    assert screen.err.endswith(" -n research --context here\n")
