"""`export`: what runs where the volumes are, and what is refused before a pod is made."""

from typing import Any

import pytest

from cli.conftest import Rljob
from cli.fake_api import FakeApi
from cli.makers import make_job, make_spec
from kubectl_rljob import pod_access

KEPT = [{"step": step, "attempt": 1, "path": f"/data/run/global_step_{step}"} for step in (10, 20)]
ENDED = {"state": "Succeeded", "outcome": "Succeeded", "checkpoint": {"latest": KEPT[-1], "kept": KEPT}}


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What ran in pods."""
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(pod_access, "POLL", 0.01)
    monkeypatch.setattr(pod_access, "interact", lambda *given: ran.append(tuple(given[2])) or 0)
    return ran


def job(**changes: Any) -> dict[str, Any]:
    spec = make_spec(checkpoint={"path": "/data/run"}, model={"path": "/data/model", "dtype": "float32"} | changes)
    return make_job(spec=spec, **ENDED)


EXPORT = ("python", "-m", "rljob_trainer", "export", "--model", "/data/model", "--dtype", "float32")


def test_the_newest_checkpoint_is_exported_next_to_the_run(
    api: FakeApi, rljob: Rljob, commands: list[tuple[str, ...]]
) -> None:
    api.add(job())
    assert rljob("export", "demo").code == 0
    assert commands == [(*EXPORT, "/data/run/global_step_20", "/data/run/exports/step_20")]
    assert api.created == {}, "the pod has gone"


def test_another_step_and_another_place_are_taken(api: FakeApi, rljob: Rljob, commands: list[tuple[str, ...]]) -> None:
    api.add(job())
    rljob("export", "demo", "--step", "10", "--out", "/data/models/mine")
    assert commands == [(*EXPORT, "/data/run/global_step_10", "/data/models/mine")]


@pytest.mark.parametrize("out", ["mine", "/tmp/mine", "../tmp/mine", "/data/../tmp/mine"])
def test_a_place_that_goes_with_the_pod_is_refused(
    api: FakeApi, rljob: Rljob, commands: list[tuple[str, ...]], out: str
) -> None:
    api.add(job())
    screen = rljob("export", "demo", "--out", out)
    assert screen.code == 1 and commands == []
    assert f"--out {out}: is deleted with the pod that writes it" in screen.err and "/data/mine" in screen.err


def test_a_run_below_tmp_is_exported_nowhere_but_to_a_volume(
    api: FakeApi, rljob: Rljob, commands: list[tuple[str, ...]]
) -> None:
    made = job()
    made["spec"]["checkpoint"]["path"] = "/tmp/run"
    api.add(made)
    screen = rljob("export", "demo")
    assert screen.code == 1 and commands == []
    assert "spec.checkpoint.path = /tmp/run: is deleted with the pod" in screen.err and "with --out" in screen.err


def test_a_step_without_a_checkpoint_is_refused_with_those_that_have_one(
    api: FakeApi, rljob: Rljob, commands: list[tuple[str, ...]]
) -> None:
    api.add(job())
    screen = rljob("export", "demo", "--step", "15")
    assert screen.code == 1 and "checkpoints of steps 10, 20" in screen.err and commands == []


def test_adapters_are_left_to_the_job(api: FakeApi, rljob: Rljob, commands: list[tuple[str, ...]]) -> None:
    api.add(job(lora={}))
    screen = rljob("export", "demo")
    assert screen.code == 1 and "trains adapters" in screen.err and commands == []
