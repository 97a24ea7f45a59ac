"""Reports are untrusted: whatever a pod writes, the operator decides, and the status that it makes is one that the API server takes."""

import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_api import names, reasons
from rljob_api.metrics import METRICS
from rljob_api.protocol import Checkpoint
from rljob_api.status import JobStatus
from rljob_operator.cache.reports import CachedConfigMap, transform
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.decide import Decision, decide
from rljob_operator.reconcile.events import event_object
from simulator.hostile import JUNK, MARKS, REPORT
from simulator.makers import META, NOW, make_job
from simulator.world import World

MOST_BYTES = 400_000
"""Of a status: two failures with the longest messages, a full history and as many checkpoints as a report holds."""


def kept(report: Any) -> CachedConfigMap:
    """The report of demo-trainer-0 as it is cached."""
    meta = {"name": names.report("demo-trainer-0"), "namespace": META.namespace, "resourceVersion": "1", "uid": "u"}
    text = report if isinstance(report, str) else json.dumps(report)
    return transform(lambda: NOW)({"kind": "ConfigMap", "metadata": meta, "data": {names.REPORT_KEY: text}}, None)


def observed(note: CachedConfigMap) -> Snapshot:
    """An attempt that runs on two pods; the first wrote the report."""
    job = make_job().with_attempt(1).running(step=2).with_rollout()
    reports = {pod: report for pod, report in job.reports.items() if pod != "demo-trainer-0"}
    reports |= {note.report.pod: note.report} if note.report else {}
    return job.having(reports=reports, unreadable={note.pod: note.problem} if note.problem else {}).snapshot()


def check(decision: Decision) -> None:
    text = decision.status.dump_json()
    assert len(text) < MOST_BYTES
    status = json.loads(text, parse_constant=lambda constant: (_ for _ in ()).throw(AssertionError(constant)))
    for value in leaves(status):
        if isinstance(value, str):
            assert not set(value) & MARKS, value
        if isinstance(value, int):
            assert -(2**63) <= value < 2**63
    assert JobStatus.model_validate_json(text) == decision.status
    assert set(status["progress"].get("metrics", {})) <= METRICS.keys() | {"reward_metrics/acc"}
    for line in [decision.status.message, *(c.message for c in decision.status.conditions)]:
        assert "\n" not in line
    for event in decision.events:
        assert event_object(META, event, event.message, NOW)["message"].isprintable()


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in (key, *leaves(inner))]
    return [leaf for inner in value for leaf in leaves(inner)] if isinstance(value, list) else [value]


IDENTITY = {"protocol": names.PROTOCOL, "pod": "demo-trainer-0", "podUid": "pod-0", "bootId": "boot-0"}
MANY = settings(max_examples=150, suppress_health_check=list(HealthCheck))


def decide_on(report: Any) -> Decision:
    return decide(observed(kept(report)))


@MANY
@given(REPORT)
def test_whatever_a_member_reports_the_next_status_can_be_written(report: dict[str, Any]) -> None:
    check(decide_on(IDENTITY | report))


@MANY
@given(REPORT, st.data())
def test_a_report_with_a_field_of_any_other_kind_changes_nothing_about_that(report: Any, data: st.DataObject) -> None:
    target = IDENTITY | report
    while True:
        key = data.draw(st.sampled_from(sorted(target)))
        if not isinstance(target[key], dict) or not target[key] or data.draw(st.booleans()):
            break
        target[key] = dict(target[key])
        target = target[key]
    target[key] = data.draw(JUNK)
    check(decide_on(IDENTITY | report))


@MANY
@given(st.text(max_size=30) | JUNK.map(json.dumps))
def test_a_report_that_is_no_report_at_all_is_named(text: str) -> None:
    note = kept(text)
    assert note.report is None
    assert note.problem.isprintable() and len(note.problem) < 1000
    check(decide_on(text))


def test_good_reports_are_among_those_that_are_tried() -> None:
    """So the tests before this one show something."""
    readable = []

    @settings(max_examples=200, suppress_health_check=list(HealthCheck))
    @given(REPORT)
    def look(report: Any) -> None:
        readable.append(kept(IDENTITY | report).report is not None)

    look()
    assert sum(readable) > len(readable) / 10


def test_of_twelve_thousand_metrics_those_of_the_table_are_kept() -> None:
    """The others would be a status of 234 KB, and as many series of Prometheus."""
    metrics = {f"made/up_{i}": 1.0 for i in range(12_000)} | {"reward/mean": 0.5, "train/loss": math.nan}
    progress = {"phase": "training", "startedFrom": 0, "step": 3, "metrics": metrics}
    decision = decide_on(IDENTITY | {"attempt": 1, "state": "running", "progress": progress})
    assert decision.status.progress.metrics == {"reward/mean": 0.5}
    assert len(decision.status.dump_json()) < 10_000


def test_of_the_metrics_that_reward_functions_name_a_few_of_plain_names_are_kept() -> None:
    names_ = [*(f"m{i:05}" for i in range(12_000)), "a" * 65, "a b", "\u202e", ""]
    prefixes = ("reward_metrics/", "evaluation_metrics/")
    metrics = {prefix + name: 1.0 for prefix in prefixes for name in names_}
    metrics |= {"reward_metrics/a": math.inf, "reward/mean": 0.5}
    progress = {"phase": "training", "startedFrom": 0, "step": 3, "metrics": metrics}
    decision = decide_on(IDENTITY | {"attempt": 1, "state": "running", "progress": progress})
    own = {f"{prefix}m{i:05}": 1.0 for prefix in prefixes for i in range(16)}
    assert decision.status.progress.metrics == {"reward/mean": 0.5} | own


@pytest.mark.parametrize(
    "forged",
    [
        {"step": 3, "path": "/d\x1b[2J\n12:00 INFO research/other: step 77777 is saved"},
        {"step": 3, "path": "/data/run/global_step_2"},
        {"step": 3, "path": "/data/other/global_step_3"},
        {"step": 3, "path": "/data/run/../other/global_step_3"},
        {"step": 4, "path": "/data/run/global_step_4"},
        {"step": 77_777, "path": "/data/run/global_step_77777"},
    ],
    ids=str,
)
def test_a_checkpoint_that_the_job_cannot_have_is_not_believed(forged: dict[str, Any]) -> None:
    """Neither its place nor its step."""
    honest = {"step": 2, "attempt": 1, "path": "/data/run/global_step_2"}
    progress = {"phase": "training", "startedFrom": 0, "step": 3, "checkpoints": [honest, forged | {"attempt": 1}]}
    decision = decide_on(IDENTITY | {"attempt": 1, "state": "running", "progress": progress})
    assert [found.step for found in decision.status.checkpoint.kept] == [2]
    assert decision.status.checkpoint.latest == decision.status.checkpoint.kept[0]
    assert [e.message for e in decision.events] == ["step 2 is saved at /data/run/global_step_2"]


async def test_a_checkpoint_that_is_claimed_and_not_there_is_forgotten_with_the_next_attempt_which_says_so() -> None:
    """Only the job's pods see the volume: until then, nobody knows better."""
    world = World(steps=400)
    world.apply()
    await world.until(state="Running", step=5)
    liar = world.launcher(0)
    assert liar.progress
    step = world.checkpoints[-1].step + 1
    claimed = Checkpoint(step=step, attempt=1, path=f"/data/run/global_step_{step}")
    liar.progress = liar.progress.model_copy(update={"step": step, "checkpoints": [*world.checkpoints, claimed]})
    liar.fail("application", "ValueError", world.now)
    await world.until(state="Starting", attempt=2)
    assert world.status.checkpoint.latest == claimed, "nobody knows better"
    await world.until(state="Running", attempt=2)
    assert claimed not in world.status.checkpoint.kept
    assert world.events().count(reasons.CHECKPOINT_MISSING) == 1
    await world.until(step=12)
