"""Whether a job can leave its nodes without losing a step, on the pages of plan and status."""

import json
from pathlib import Path
from typing import Any

from cli.conftest import Rljob
from cli.fake_api import FakeApi
from cli.makers import make_job, make_spec, running
from cli.test_plan import write
from cli.test_plan_placement import SCHEDULING, model
from kubectl_rljob.leaving import Leaving, too_short
from placement.makers import make_racks
from rljob_api.spec import RLJobSpec

__all__ = ["model"]  # the fixture

GRACE = "spec.trainer.template.terminationGracePeriodSeconds"
DRAIN = "spec.lifecycle.drainTimeoutSeconds"


def broken(step: float | None, save: float | None, **changes: Any) -> dict[str, str]:
    spec = RLJobSpec.model_validate(make_spec(**changes))
    return {v.field: v.fix for v in too_short(spec, Leaving(step, save))}


def test_what_does_not_fit_a_step_and_a_checkpoint_is_named_with_a_time_that_does() -> None:
    assert broken(20.0, 39.0) == {}
    assert broken(40.0, 39.0)[GRACE] == "set it to 99"
    assert broken(61.0, None).keys() >= {GRACE}
    assert DRAIN not in broken(590.0, 10.0) and broken(590.0, 11.0)[DRAIN] == "set it to 752"
    longer = {"nodes": 2, "processesPerNode": 8, "template": {"terminationGracePeriodSeconds": 700}}
    assert GRACE not in broken(590.0, 11.0, trainer=longer)
    assert broken(None, 1000.0) == {}, "nothing is said of steps that nobody has measured"


def measured(api: FakeApi, **progress: float) -> None:
    job = running()
    api.add(make_job(**job | {"progress": job["progress"] | progress}))


def test_plan_warns_by_what_the_job_of_this_name_has_measured(api: FakeApi, rljob: Rljob, tmp_path: Path) -> None:
    api.nodes = make_racks([4, 4])
    job = write(tmp_path, make_spec(scheduling=SCHEDULING))
    assert "Loses the step" not in rljob("plan", "-f", job).out, "nothing is measured yet"
    measured(api, pace=95.0, saving=31.0)
    screen = rljob("plan", "-f", job)
    said = "a step takes 95 s and a checkpoint 31 s (measured); set it to 158"
    assert (screen.code, f"    {GRACE} = 60 cuts off" in screen.out, said in screen.out) == (0, True, True)
    (found,) = json.loads(rljob("plan", "-f", job, "-o", "json").out)
    assert found["leaving"] == {"step": 95.0, "save": 31.0, "source": "measured"}
    measured(api, pace=20.0, saving=31.0)
    assert "Loses the step" not in rljob("plan", "-f", job).out
    assert "Loses the step" not in rljob("plan", "-f", job, "--offline").out


def test_plan_warns_by_the_model_of_a_step_where_nothing_is_measured(
    api: FakeApi, rljob: Rljob, tmp_path: Path, model: str
) -> None:
    api.nodes = make_racks([4, 4])
    train = {"steps": 10, "promptsPerStep": 4096, "samplesPerPrompt": 16, "tokensPerMicroBatch": 8192}
    job = write(tmp_path, make_spec(scheduling=SCHEDULING, train=train))
    screen = rljob("plan", "-f", job, "--model", model, "--gpu", "h100", "--network", "8x400g")
    assert "(by the model of --suggest, without the checkpoint)" in screen.out


def test_status_says_it_in_one_line_of_a_running_job(api: FakeApi, rljob: Rljob) -> None:
    measured(api, pace=8.0, saving=9.0)
    assert "GRACE" not in rljob("status", "demo").out
    measured(api, pace=95.0, saving=31.0)
    assert f"GRACE       {GRACE} = 60 cuts off" in rljob("status", "demo").out
