"""A failed rollout is replaced on its own: no new attempt, no lost or doubled sample, current weights before traffic. Then suspend and resume."""

import json
import signal

import pytest

from e2e.conftest import Lab
from e2e.job import Job, attempts
from e2e.kube import Object, wait_for
from rljob_api import names, reasons
from rljob_api.protocol import Report

LEFT = 15
"""Steps that are left to the job when it is resumed: what is to be seen of it is over."""


@pytest.fixture(scope="module")
def job(lab: Lab) -> Job:
    return lab.start(
        "faults",
        train={"steps": 100_000, "batches": {"record": True}},
        checkpoint={"path": "/data/runs/faults", "everySteps": 5, "keepLast": 50},
    )


def rollout_steps(lab: Lab, job: Job) -> dict[str, int | None]:
    """Step of the policy that each rollout serves, as rank 0 knows it, once it has said so."""
    said = lab.report(names.pod(job.name, names.ROLE_TRAINER, 0)).get(names.REPORT_KEY)
    progress = Report.model_validate_json(said).progress if said else None
    return {r.pod: r.policy_step for r in progress.rollouts} if progress else {}


def both_current(lab: Lab, job: Job) -> bool:
    """Both rollouts serve a policy."""
    steps = rollout_steps(lab, job)
    return len(steps) == 2 and None not in steps.values()


def test_a_deleted_rollout_starts_no_new_attempt_and_gets_current_weights_before_traffic(lab: Lab, job: Job) -> None:
    job.wait_for_step(3, timeout=400)
    victim = names.pod(job.name, names.ROLE_ROLLOUT, 1)
    old = job.uid(names.ROLE_ROLLOUT, 1)
    lab.kube.kubectl("delete", "pod", victim, "--grace-period=0", "--force")
    job.wait(
        "the pool whole again",
        lambda s: s.rollout.ready == 2 and job.uid(names.ROLE_ROLLOUT, 1) not in ("", old),
        300,
    )
    status = job.wait(
        "both rollouts current",
        lambda s: both_current(lab, job),
        300,
    )
    assert attempts(status) == (1, 0)


SIGNAL_THE_ENGINE = """
import sys, psutil
words = ((p, p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"]))
(engine,) = [p for p, found in words if " ".join(found).startswith("VLLM::EngineCore")]
engine.send_signal(int(sys.argv[1]))
"""


@pytest.mark.extra
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_rollout_whose_engine_is_killed_or_stopped_is_started_again_in_its_pod(
    lab: Lab, job: Job, number: signal.Signals
) -> None:
    """vLLM's API server answers on without its engine; with SIGSTOP nothing even ends."""
    job.wait_for_step(3, timeout=400)
    step, pod = job.status().progress.step, names.pod(job.name, names.ROLE_ROLLOUT, 0)
    before = failures_of_rollouts(lab, job)
    job.wait("both rollouts current", lambda _: both_current(lab, job), 300)
    job.wait("its server", lambda _: answers(lab, pod), 300)
    lab.kube.execute(pod, "python", "-c", SIGNAL_THE_ENGINE, str(int(number)))
    seconds = 300  # an engine that is stopped during an update may take 150
    (event,) = wait_for("the event", lambda: failures_of_rollouts(lab, job)[len(before) :], seconds)
    assert event["type"] == "Warning" and event["message"].startswith(f"{pod}: ServerLost: the server was killed")
    job.wait("its server again", lambda _: answers(lab, pod), 300)
    job.wait("both rollouts ready", lambda s: s.rollout.ready == 2, 300)
    status = job.wait("more steps", lambda s: s.progress.step > step + 2, 300)
    assert attempts(status) == (1, 0)
    assert failures_of_rollouts(lab, job)[len(before) + 1 :] == [], "one failure is one event"


def answers(lab: Lab, pod: str) -> bool:
    """Whether its server has answered since it last failed. Readiness, and what rank 0 knows, may still be those of the server that failed."""
    said = lab.report(pod).get(names.REPORT_KEY)
    report = Report.model_validate_json(said) if said else None
    return report is not None and report.state == "running" and report.failure is None


def failures_of_rollouts(lab: Lab, job: Job) -> list[Object]:
    """Events, oldest first."""
    selector = f"involvedObject.name={job.name},reason={reasons.ROLLOUT_FAILED}"
    found = json.loads(lab.kube.kubectl("get", "events", "--field-selector", selector, "-o", "json"))["items"]
    return sorted(found, key=lambda event: event["firstTimestamp"])


def test_no_sample_was_lost_doubled_or_drawn_from_an_old_policy(lab: Lab, job: Job) -> None:
    check_samples(lab, job)


def check_samples(lab: Lab, job: Job) -> None:
    """Each recorded batch has every sample once, of the policy before its step."""
    program = f"""
import json, pathlib
from safetensors import safe_open
for path in sorted(pathlib.Path("/data/runs/{job.name}/batches").glob("step_*.safetensors")):
    batch = safe_open(path, "np")
    samples = [[int(i) for i in pair] for pair in zip(batch.get_tensor("group"), batch.get_tensor("sample"))]
    policies = sorted({{int(step) for step in batch.get_tensor("policy_steps")}} - {{-1}})
    print(json.dumps([json.loads(batch.metadata()["step"]), samples, policies]))
"""
    lines = [json.loads(line) for line in lab.python(program).splitlines()]
    assert sorted(step for step, _, _ in lines) == [*range(1, len(lines) + 1)] != []
    everything = [[group, sample] for group in range(16) for sample in range(16)]
    for step, samples, policies in lines:
        assert samples == everything
        assert policies == [step - 1]


def open_weights(lab: Lab, job: Job, rollout: Object, attempt: int) -> int:
    """The HTTP status of an attempt that wants to send weights to this pod; 0 while no server answers."""
    address, uid = rollout["status"]["podIP"], job.object()["metadata"]["uid"]
    token = lab.kube.get("secret", names.token(job.name, uid))["data"][names.TOKEN_KEY]
    program = f"""
import base64, urllib.error, urllib.request
headers = {{"Authorization": "Bearer " + base64.b64decode("{token}").decode(), "X-RLJob-Attempt": "{attempt}"}}
request = urllib.request.Request("http://{address}:{names.ROLLOUT_PORT}/rljob/weights/open", method="POST", headers=headers)
try:
    print(urllib.request.urlopen(request, timeout=10).status)
except urllib.error.HTTPError as error:
    print(error.code)
except OSError:
    print(0)
"""
    return int(lab.python(program))


def test_weights_of_an_old_attempt_are_refused(lab: Lab, job: Job) -> None:
    """The tests before may have ended this server, which is then started again."""
    status = wait_for(
        "an answer of the server", lambda: open_weights(lab, job, job.pod(names.ROLE_ROLLOUT, 0), attempt=0), 300
    )
    assert status == 409


def test_suspend_drains_to_a_checkpoint_and_frees_the_pods(lab: Lab, job: Job) -> None:
    job.wait_for_step(11)  # two checkpoints before that of the drain: the last test goes back to the first of them
    lab.kube.plugin("suspend", job.name)
    status = job.wait_for_state("Suspended")
    job.wait("no pods", lambda _: job.pods() == [], 180)
    assert status.checkpoint.latest is not None
    assert status.checkpoint.latest.step == status.progress.step


def test_resume_goes_on_from_the_drained_step(lab: Lab, job: Job) -> None:
    step = job.status().progress.step
    steps = json.dumps({"spec": {"train": {"steps": step + LEFT}}})
    lab.kube.kubectl("patch", "rljob", job.name, "--type=merge", "-p", steps)
    lab.kube.plugin("resume", job.name)
    status = job.wait("a step after the resume", lambda s: attempts(s)[0] == 2 and s.progress.step > step, 400)
    assert (status.progress.started_from, status.restarts.counted) == (step, 0)


def test_resume_from_a_step_goes_back_to_it(lab: Lab, job: Job) -> None:
    status = job.status()
    assert status.progress.started_from is not None
    back = [c.step for c in status.checkpoint.kept if c.step < status.progress.started_from][-2]
    lab.kube.plugin("resume", job.name, "--from-step", str(back))
    job.wait("an attempt from there", lambda s: attempts(s)[0] == 3 and s.progress.started_from == back, 400)
    status = job.wait_for_state("Succeeded", timeout=600)
    assert status.progress.step == status.progress.steps < 100_000
