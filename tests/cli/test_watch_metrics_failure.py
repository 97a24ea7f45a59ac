"""Screens of watch, metrics and describe-failure; restart and completion."""

import json
import sys
import threading
import time
from pathlib import Path

import pytest

from cli.conftest import Rljob
from cli.fake_api import FakeApi
from cli.makers import make_job, make_spec, running
from cli.test_suspend_resume import request_of
from kubectl_rljob import complete
from kubectl_rljob.printers.curves import plot

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
  ls /data/run/logs/attempt-1   (on the job's volume)
"""

CONFIGURATION = """\
Attempt:   1
Reason:    ConfigurationError: a process found a mistake in the spec, the data or the files that it names
Cost:      the job: no restart can help
Where:     rank 0 of demo-trainer-0

Cause:
  ConfigurationError: spec.data.train[0]: /x: there is no such file: correct the path

Next:
  kubectl explain rljob.spec.data.train
  correct the manifest; without a checkpoint the job begins anew:
  kubectl delete rljob demo -n research
  kubectl apply -f FILE
"""

CURVES = """\
Mean reward per step
    0.6 │ •
    0.5 │
    0.4 │•"""


def failed_once() -> dict:
    status = running()
    status["lastFailure"] |= {"reason": "ApplicationFailed"}
    return status


def test_a_failure_is_explained_with_its_cost_its_whole_cause_and_the_next_command(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(**failed_once()))
    assert rljob("describe-failure", "demo").out == FAILURE


def test_a_configuration_error_points_to_the_field(api: FakeApi, rljob: Rljob) -> None:
    cause = {"kind": "configuration", "rank": 0, "exception": "ConfigurationError", "field": "spec.data.train[0]"}
    cause["message"] = "spec.data.train[0]: /x: there is no such file: correct the path"
    failure = {"attempt": 1, "reason": "ConfigurationError", "pod": "demo-trainer-0", "failure": cause}
    api.add(make_job(state="Failed", outcome="Failed", lastFailure=failure))
    assert rljob("describe-failure", "demo").out == CONFIGURATION


def test_a_job_with_a_checkpoint_goes_on_from_it_once_its_spec_is_mended(api: FakeApi, rljob: Rljob) -> None:
    status = running()
    status["lastFailure"] |= {"reason": "ConfigurationError"}
    status["lastFailure"]["failure"]["field"] = "spec.rewards[0]"
    api.add(make_job(**status | {"state": "Failed", "outcome": "Failed"}))
    assert rljob("describe-failure", "demo", "--context", "here").out.endswith(
        "Next:\n  kubectl explain rljob.spec.rewards --context here\n"
        "  kubectl edit rljob demo -n research --context here\n"
        "  kubectl rljob resume demo -n research --from-step 100 --context here\n"
    )


def test_a_job_without_a_failure_says_so(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(state="Running"))
    assert rljob("describe-failure", "demo").out == "rljob demo in namespace research has not failed (state: Running)\n"


def test_a_curve_has_a_labelled_axis_and_one_mark_per_column() -> None:
    assert "Mean reward per step\n" + plot([0.4, 0.6], height=3) == CURVES


def test_metrics_draws_every_curve_and_names_the_steps(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(**running()))
    out = rljob("metrics", "demo").out
    assert [line for line in out.split("\n") if line.endswith("per step")] == [
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
        time.sleep(0.3)
        api.add(make_job(state="Failed", outcome="Failed", message="rank 3 ran out of memory"))

    threading.Thread(target=change, daemon=True).start()
    screen = rljob("watch", "demo", "--interval", "0.05")
    assert (screen.code, screen.out) == (1, "Starting   attempt 1 is starting\nFailed   rank 3 ran out of memory\n")


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
    assert rljob("restart", "demo").err.startswith("error: rljob demo in namespace research has no attempt that runs")
    api.add(make_job(state="Succeeded", outcome="Succeeded"))
    assert rljob("restart", "demo").err.endswith("next:  kubectl rljob resume demo -n research --from-step N\n")


def test_completion_proposes_verbs_flags_choices_and_jobs(api: FakeApi, tmp_path: Path) -> None:
    api.add(make_job("demo", spec=make_spec()))
    kubeconfig = ["--kubeconfig", str(tmp_path / "kubeconfig")]
    assert "describe-failure" in complete.propose(["de"])[0]
    assert "--from-step" in complete.propose(["resume", "demo", "--f"])[0]
    assert complete.propose(["logs", "demo", "--role", ""])[0] == ["trainer", "rollout"]
    assert complete.propose(["completion", ""])[0] == ["bash", "zsh", "fish"]
    assert complete.propose(["plan", "-f", ""])[1] == complete.FILES
    assert complete.propose(["-n", ""]) == ([], complete.NO_FILES)
    assert complete.propose(["--kubeconfig", ""])[1] == complete.FILES
    assert "--context" in complete.propose(["--"])[0]
    assert complete.propose([*kubeconfig, "status", ""]) == (["demo"], complete.NO_FILES)
    assert complete.propose(["--kubeconfig", "/nowhere", "status", ""]) == ([], complete.NO_FILES)
