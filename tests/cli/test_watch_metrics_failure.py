"""Screens of watch, metrics and describe-failure; restart and completion."""

import json
import sys
import threading
import time
from pathlib import Path

import pytest

from cli.conftest import Rljob
from cli.fake_api import FakeApi
from cli.makers import make_checkpoint, make_job, make_spec, running
from cli.test_suspend_resume import request_of
from kubectl_rljob import complete, errors
from kubectl_rljob.printers.curves import plot
from kubectl_rljob.verbs import show
from rljob_api import reasons

FAILURE = """\
Attempt:   1, 34m ago
Reason:    ApplicationFailed: a process raised an exception
Cost:      a restart that counts: 1 of 3 in a row
Where:     rank 9 of demo-trainer-1

Cause:
  OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
  GPU 1 has 139 GiB
      File "loss.py", line 12, in logits
        return hidden @ weight.T

Next:
  kubectl rljob logs demo -n research --attempt 1 --rank 9
"""

CONFIGURATION = """\
Attempt:   1
Reason:    ConfigurationError: a process found a mistake in the spec, the data or the files that it names
Cost:      the job: no restart can help
Where:     rank 0 of demo-trainer-0

Cause:
  spec.data.train[0] = /x: there is no such file; correct the path

Next:
  kubectl explain rljob.spec.data.train
  kubectl edit rljob demo -n research
  kubectl rljob resume demo -n research --from-step 0
"""

CURVE = """
            Mean reward per step
     ┌─────────────────────────────────┐
0.600┤                               ⡠⠊│
0.567┤                             ⢀⠜  │
     │                            ⡠⠃   │
0.533┤                          ⢀⠜     │
0.500┤           ⡀             ⡠⠃      │
     │         ⡠⠊⠈⠑⠢⢄⡀       ⢀⠜        │
0.467┤       ⡠⠊      ⠈⠑⠢⢄⡀  ⡠⠃         │
0.433┤    ⢀⠔⠊            ⠈⠑⠚           │
     │  ⢀⠔⠁                            │
0.400┤⣀⠔⠁                              │
     └┬──────────┬─────────┬──────────┬┘
     97         98        99        100"""


def failed_once() -> dict:
    status = running()
    status["lastFailure"] |= {"reason": reasons.APPLICATION_FAILED}
    return status


def test_a_failure_is_explained_with_its_cost_its_whole_cause_and_the_next_command(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(**failed_once()))
    assert rljob("describe-failure", "demo").out == FAILURE


def test_a_configuration_error_points_to_the_field(api: FakeApi, rljob: Rljob) -> None:
    cause = {"kind": "configuration", "rank": 0, "exception": "ConfigurationError", "field": "spec.data.train[0]"}
    cause["message"] = "spec.data.train[0] = /x: there is no such file; correct the path"
    failure = {"attempt": 1, "reason": reasons.CONFIGURATION_ERROR, "pod": "demo-trainer-0", "failure": cause}
    api.add(make_job(state="Failed", outcome="Failed", lastFailure=failure))
    assert rljob("describe-failure", "demo").out == CONFIGURATION


def test_a_job_with_a_checkpoint_resumes_from_it_once_its_spec_is_fixed(api: FakeApi, rljob: Rljob) -> None:
    status = running()
    status["lastFailure"] |= {"reason": reasons.CONFIGURATION_ERROR}
    status["lastFailure"]["failure"]["field"] = "spec.rewards[0]"
    api.add(make_job(**status | {"state": "Failed", "outcome": "Failed"}))
    assert rljob("describe-failure", "demo", "--context", "here").out.endswith(
        "Next:\n  kubectl explain rljob.spec.rewards --context here\n"
        "  kubectl edit rljob demo -n research --context here\n"
        "  kubectl rljob resume demo -n research --from-step 100 --context here\n"
    )


@pytest.mark.parametrize("field", ["spec.checkpoint.path", "resume step"])
def test_no_step_is_suggested_when_the_checkpoints_are_what_failed(api: FakeApi, rljob: Rljob, field: str) -> None:
    """Somebody has deleted the manifest of step 100: the status still lists it, and only the cause knows what is left."""
    status = running()
    status["lastFailure"] |= {"reason": reasons.CONFIGURATION_ERROR}
    status["lastFailure"]["failure"] |= {"field": field, "message": "no complete checkpoint of it; there are: 60, 80"}
    api.add(make_job(**status | {"state": "Failed", "outcome": "Failed"}))
    out = rljob("describe-failure", "demo").out
    assert out.endswith(
        "  kubectl rljob resume demo -n research --from-step N   (N: a step that the cause names, or 0 for the initial weights)\n"
    )
    assert ("kubectl explain rljob.spec.checkpoint.path" in out) == (field != "resume step")
    assert "100" not in out


def test_a_job_without_a_failure_says_so(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(state="Running"))
    assert rljob("describe-failure", "demo").out == "rljob demo in namespace research has not failed (state: Running)\n"


def test_a_curve_has_a_frame_with_labelled_axes() -> None:
    assert "\n" + plot("Mean reward per step", [97, 98, 99, 100], [0.4, 0.5, 0.45, 0.6], width=40) == CURVE


def test_a_task_without_rewards_has_no_curve_of_them(api: FakeApi, rljob: Rljob) -> None:
    status = running()
    status["progress"]["history"] = [{"step": s, "loss": 2.0 / s, "seconds": 8.0} for s in range(1, 9)]
    api.add(make_job(**status))
    out = rljob("metrics", "demo").out
    titles = [line.strip() for line in out.split("\n") if line.endswith("per step")]
    assert titles == ["Loss per step", "Seconds per step"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_a_value_that_cannot_be_drawn_is_left_out(value: float) -> None:
    assert plot("Loss", [1, 2], [0.5, value]) == plot("Loss", [1], [0.5])
    assert plot("Loss", [10**400], [value]) == "Loss\n(no finite values)"


def test_metrics_draws_every_curve_and_names_the_steps(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(**running()))
    out = rljob("metrics", "demo").out
    assert [line.strip() for line in out.split("\n") if line.endswith("per step")] == [
        "Mean reward per step",
        "Loss per step",
        "Seconds per step",
    ]
    assert out.endswith("steps 97-120\n")
    assert [p["step"] for p in json.loads(rljob("metrics", "demo", "-o", "json").out)] == list(range(97, 121))


def test_an_image_needs_matplotlib_and_says_so(
    api: FakeApi, rljob: Rljob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    api.add(make_job(**running()))
    screen = rljob("metrics", "demo", "-o", "png", "--file", str(tmp_path / "demo.png"))
    assert (screen.code, screen.out) == (1, "")
    assert screen.err == "error: -o png needs matplotlib, which is not installed\nnext:  pip install matplotlib\n"


def test_an_image_of_the_curves_is_a_png(api: FakeApi, rljob: Rljob, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    api.add(make_job(**running()))
    path = tmp_path / "demo.png"
    assert rljob("metrics", "demo", "-o", "png", "--file", str(path)).out == f"{path} written\n"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_metrics_of_a_job_before_its_first_step_is_an_error_with_a_way_on(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(state="Starting"))
    assert rljob("metrics", "demo").err == (
        "error: rljob demo in namespace research has not finished a step yet\nnext:  kubectl rljob status demo -n research\n"
    )


def test_watch_prints_a_line_per_change_until_the_end(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(state="Starting", message="attempt 1 is starting"))

    def change() -> None:
        while len(api.requests) < 2:  # the first was answered
            time.sleep(0.01)
        api.add(make_job(state="Failed", outcome="Failed", message="rank 3 ran out of memory"))

    threading.Thread(target=change, daemon=True).start()
    screen = rljob("watch", "demo", "--interval", "0.05")
    assert (screen.code, screen.out) == (3, "Starting   attempt 1 is starting\nFailed   rank 3 ran out of memory\n")


def test_watch_survives_an_api_server_that_is_away_for_a_moment(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(state="Succeeded", outcome="Succeeded", message="done"))
    api.refusals = [(503, "etcd is away")] * 3
    screen = rljob("watch", "demo", "--interval", "0.05")
    assert (screen.code, screen.out) == (0, "Succeeded   done\n")
    assert screen.err == "warning: rljob demo in namespace research: etcd is away (HTTP 503); trying again\n"


def test_watch_tells_an_api_error_from_a_failed_job_by_its_exit_code(
    api: FakeApi, rljob: Rljob, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.refuse = (403, "rljobs is forbidden")
    assert rljob("watch", "demo").code == errors.REFUSED
    api.refuse = (503, "etcd is away")
    monkeypatch.setattr(show, "PATIENCE_SECONDS", 0.1)
    screen = rljob("watch", "demo", "--interval", "0.05")
    assert screen.code == errors.REFUSED
    assert screen.err.endswith("error: rljob demo in namespace research: etcd is away (HTTP 503)\n")
    api.refuse = None
    api.add(make_job(state="Failed", outcome="Failed"))
    assert rljob("watch", "demo").code == errors.JOB_FAILED == 3


@pytest.mark.parametrize("wrong", ["-1", "0", "nan", "inf", "soon"])
def test_watch_refuses_an_interval_that_it_cannot_wait_for(api: FakeApi, rljob: Rljob, wrong: str) -> None:
    api.add(make_job(state="Starting"))
    assert rljob("watch", "demo", f"--interval={wrong}").code == 2


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("bash", "source <(kubectl completion bash)"),
        ("zsh", "source <(kubectl completion zsh)"),
        ("fish", "kubectl completion fish | source"),
    ],
)
def test_completion_is_switched_on_by_a_line_of_that_shell(rljob: Rljob, shell: str, line: str) -> None:
    assert rljob("completion", shell).out.endswith(f"\n\n    {line}\n")


def test_restart_asks_for_the_next_attempt(api: FakeApi, rljob: Rljob) -> None:
    job = make_job(**running())
    api.add(job)
    assert rljob("restart", "demo").out == "rljob.rljob.dev/demo restart requested\n"
    assert request_of(job).action == "restart"


def test_what_does_not_run_cannot_be_restarted(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(state="Pending"))
    assert rljob("restart", "demo").err.startswith("error: rljob demo in namespace research has no running attempt")
    api.add(make_job(state="Succeeded", outcome="Succeeded"))
    assert rljob("restart", "demo").err.endswith("next:  kubectl rljob resume demo -n research --from-step N\n")


def proposed(*words: str) -> list[str]:
    items, directive = complete.propose([*words])
    assert directive == complete.NO_FILES
    return [item.value for item in items]


def test_completion_proposes_verbs_flags_choices_and_jobs(api: FakeApi, tmp_path: Path) -> None:
    api.add(make_job("demo", spec=make_spec()))
    api.add(make_job("other", spec=make_spec()))
    kubeconfig = ["--kubeconfig", str(tmp_path / "kubeconfig")]
    assert proposed("de") == ["describe-failure"]
    assert proposed("resume", "demo", "--f") == ["--from-step"]
    assert proposed("logs", "demo", "--role", "") == ["trainer", "rollout", "critic", "reference", "worker", "gateway"]
    assert proposed("completion", "") == ["bash", "zsh", "fish"]
    assert proposed("-n", "") == []
    assert proposed("get", "") == proposed("dance", "")
    assert "--context" in proposed("--")
    assert proposed(*kubeconfig, "status", "") == ["demo", "other"]
    assert proposed("status", *kubeconfig, "d") == ["demo"]
    assert proposed("status", *kubeconfig, "-n", "teaching", "") == []
    assert proposed("--kubeconfig", "/nowhere", "status", "") == []
    for files in (("plan", "-f", ""), ("--kubeconfig", "")):
        assert complete.propose([*files]) == ([], complete.FILES)


def test_completion_speaks_cobras_protocol(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-rljob", "sta"])
    assert complete.main() == 0
    assert capsys.readouterr().out.split("\n") == [
        "status\tShow one job on one page.",
        ":4",
        "",
    ]


def test_a_command_for_another_cluster_stands_before_the_note_about_it(api: FakeApi, rljob: Rljob) -> None:
    failure = {"kind": "configuration", "message": "no such step", "field": "resume step"}
    last = {"attempt": 1, "reason": reasons.CONFIGURATION_ERROR, "failure": failure}
    api.add(make_job(state="Failed", outcome="Failed", lastFailure=last))
    out = rljob("describe-failure", "demo", "-n", "research", "--context", "elsewhere").out
    assert "resume demo -n research --from-step N --context elsewhere   (N: a step that the cause names" in out


def test_watch_does_not_end_before_the_operator_has_taken_up_a_request_to_resume(
    api: FakeApi, rljob: Rljob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`resume --from-step 60 && watch` on a job that has failed."""
    failed = make_job(state="Failed", outcome="Failed", checkpoint={"kept": [make_checkpoint(60, 5)]})
    api.add(failed)
    assert rljob("resume", "demo", "--from-step", "60").code == 0
    looks = []

    def operator(_: float) -> None:
        looks.append(1)
        job = api.jobs["research", "demo"]
        job["status"] |= {"state": "Succeeded", "request": request_of(job).nonce}

    monkeypatch.setattr(show.time, "sleep", operator)
    assert (rljob("watch", "demo").code, len(looks)) == (errors.DONE, 1)
