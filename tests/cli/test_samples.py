"""Samples of a step, read from a job's volume, which is a directory of this machine here."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Rljob
from cli.fake_api import FakeApi
from cli.makers import make_job, make_spec, running
from kubectl_rljob import pod_access
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
    monkeypatch.setattr(pod_access, "POLL", 0.01)
    api.pod_roles = {}
    assert rljob("samples", "demo").out.startswith("STEP 10\n")
    assert [method for method, _, _ in api.requests].count("DELETE") == 1


def test_line_separators_in_a_text_end_no_sample(rljob: Rljob, kubectl: Kubectl, job: dict, tmp_path: Path) -> None:
    """The trainer writes them as they are: JSON allows it."""
    text = "one\u2028two\u2029three\x85four"
    held = json.loads(sample(0, 10)) | {"segments": [{"source": "prompt", "text": text}]}
    names.samples_file(tmp_path / "run", 10).write_text(json.dumps(held, ensure_ascii=False) + "\n" + sample(1, 10))
    screen = rljob("samples", "demo")
    assert screen.code == 0 and "prompt       one\\u2028two\\u2029three\\x85four" in screen.out
    assert "sample 1" in screen.out


@pytest.mark.parametrize("line", ["{", "[]", "{}", "7", '{"prompt_index": 1, "sample": 0, "reward": null}'])
def test_a_file_of_another_form_is_an_error_and_no_traceback(
    rljob: Rljob, kubectl: Kubectl, job: dict, tmp_path: Path, line: str
) -> None:
    names.samples_file(tmp_path / "run", 10).write_text(line)
    screen = rljob("samples", "demo")
    assert screen.code == 1 and "does not hold samples as this release writes them" in screen.err


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
def test_a_directory_that_only_root_may_read_is_passed_over(
    rljob: Rljob, kubectl: Kubectl, job: dict, tmp_path: Path
) -> None:
    """The root of a volume has a lost+found: a command that goes through all directories fails at it."""
    (tmp_path / "run" / "lost+found").mkdir(mode=0)
    assert rljob("samples", "demo").out.startswith("STEP 10\n")


def test_samples_elsewhere_on_the_volume_are_not_listed(
    rljob: Rljob, kubectl: Kubectl, job: dict, tmp_path: Path
) -> None:
    (tmp_path / "run" / "old").mkdir()
    (tmp_path / "run" / "old" / "step_99.jsonl").touch()
    assert rljob("samples", "demo").out.startswith("STEP 10\n")
