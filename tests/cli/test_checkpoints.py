"""The table of checkpoints, whole."""

import json

from cli.conftest import Rljob
from cli.fake_api import FakeApi
from cli.makers import make_checkpoint, make_job

TABLE = """\
STEP   ATTEMPT   AGE   LAYOUT        PATH
60     1         40m   tp4-pp2-dp2   /data/run/global_step_60
80     2         25m   tp4-pp2-dp2   /data/run/global_step_80
"""


def test_kept_checkpoints_are_listed_oldest_first(api: FakeApi, rljob: Rljob) -> None:
    kept = [make_checkpoint(60, 40), make_checkpoint(80, 25, attempt=2)]
    api.add(make_job(checkpoint={"latest": kept[-1], "kept": kept}))
    assert rljob("checkpoints", "demo").out == TABLE
    assert [c["step"] for c in json.loads(rljob("checkpoints", "demo", "-o", "json").out)] == [60, 80]


def test_a_job_without_checkpoints_says_so_on_stderr(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job())
    screen = rljob("checkpoints", "demo")
    assert (screen.code, screen.out, screen.err) == (
        0,
        "",
        "No complete checkpoints of rljob demo in namespace research yet.\n",
    )
