"""Samples of a step, read from a job's volume, which is a directory of this machine here."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Rljob
from cli.fake_api import FakeApi
from cli.makers import make_job, make_spec, running
from kubectl_rljob import volume_pod
from rljob_api import names

Kubectl = Callable[[], list[str]]


def sample(number: int, step: int) -> str:
    segments = [
        {"source": "prompt", "text": "37+48+12="},
        {"source": "policy", "policy_step": step - 1, "text": "add(37,48)"},
        {"source": "environment", "text": "85;"},
        {"source": "policy", "policy_step": step, "text": "first\nsecond\x1b[2J"},
    ]
    about = {"prompt_index": 7, "sample": number, "reward": 0.5, "truncated": number == 1, "metrics": {"acc": 1.0}}
    return json.dumps(about | {"segments": segments})


@pytest.fixture
def job(api: FakeApi, tmp_path: Path) -> dict:
    run = tmp_path / "run"
    for step in (2, 9, 10):
        file = names.samples_file(run, step)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(sample(number, step) for number in range(3)) + "\n")
    found = make_job(**running(), spec=make_spec(checkpoint={"path": str(run)}))
    api.add(found)
    api.pod_roles = {"demo-trainer-0": "trainer"}
    return found


PAGE = """STEP 10

prompt 7, sample 0, reward 0.5, acc 1
  prompt       37+48+12=
  policy 9     add(37,48)
  environment  85;
  policy 10    first
               second\\x1b[2J

prompt 7, sample 1, reward 0.5, acc 1, cut off
"""


def test_the_last_step_is_shown_with_who_wrote_each_text(rljob: Rljob, kubectl: Kubectl, job: dict) -> None:
    screen = rljob("samples", "demo", "--count", "2")
    assert screen.out.startswith(PAGE) and "sample 2" not in screen.out
    assert kubectl()[-2:] == ["--container=trainer", "demo-trainer-0"]


def test_a_step_may_be_chosen_among_those_that_are_kept(rljob: Rljob, kubectl: Kubectl, job: dict) -> None:
    assert rljob("samples", "demo", "--step", "2").out.startswith("STEP 2\n")
    assert (
        "--step 3: rljob demo in namespace research has samples of steps 2 to 10"
        in rljob("samples", "demo", "--step", "3").err
    )


def test_a_job_that_has_no_samples_yet_says_so(api: FakeApi, rljob: Rljob, kubectl: Kubectl, tmp_path: Path) -> None:
    run = tmp_path / "new"
    api.add(make_job(**running(), spec=make_spec(checkpoint={"path": str(run)})))
    api.pod_roles = {"demo-trainer-0": "trainer"}
    for directory in (tmp_path, run, names.samples_file(run, 1).parent):
        directory.mkdir(exist_ok=True)
        screen = rljob("samples", "demo")
        assert screen.code == 1
        assert screen.err.splitlines() == [
            "error: rljob demo in namespace research has no samples yet, or its volume was emptied",
            "next:  kubectl rljob status demo -n research",
        ]


def test_a_job_without_pods_gets_one_for_it(
    api: FakeApi, rljob: Rljob, kubectl: Kubectl, job: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume_pod, "POLL", 0.01)
    api.pod_roles = {}
    assert rljob("samples", "demo").out.startswith("STEP 10\n")
    assert [method for method, _, _ in api.requests].count("DELETE") == 1
