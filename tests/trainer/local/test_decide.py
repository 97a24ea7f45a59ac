"""What becomes of a job on one machine."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.specs import raw_spec
from rljob_api.manifest import ManifestError
from rljob_api.protocol import Checkpoint, Failure, Point, Progress, Report
from rljob_api.spec import RLJobSpec
from rljob_trainer.local.decide import JobEnd, LocalState, Seen, advance
from rljob_trainer.local.manifest import MOUNTED, load, mounted
from rljob_trainer.local.progress import (
    Display,
    Wait,
    continued,
    duration,
    failures,
    left,
    restarted,
    status_line,
    summary,
)

CAUSE = Failure(kind="application", rank=1, exception="ValueError", message="the loss is a banana", time=2)
SYMPTOM = Failure(kind="collective", exception="RuntimeError", message="connection closed by peer", time=1)

HEAD = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "local"}}


def report(pod: str, boot: str = "1", **fields: Any) -> Report:
    return Report(pod=pod, pod_uid=f"uid-{pod}", boot_id=f"{pod}-{boot}", **fields)


def seen(*trainers: Report | None, rollout: Report | None = None) -> Seen:
    return Seen({f"t{i}": r for i, r in enumerate(trainers)}, {"r0": rollout}, "::1")


IDLE = seen(report("t0"), report("t1"))
FIRST = advance(LocalState(), IDLE, "run", 3)
assert isinstance(FIRST, LocalState)


def ended(pod: str, result: str, failure: Failure | None = None) -> Report:
    return report(pod, attempt=1, state="stopped", result=result, failure=failure)


def running(pod: str) -> Report:
    return report(pod, attempt=1, state="running")


def make_inputs(data: Path) -> None:
    """What the smallest spec reads."""
    (data / "model").mkdir()
    (data / "train.parquet").touch()


def write_manifest(directory: Path, spec: dict[str, Any]) -> Path:
    (directory / "m.yaml").write_text(yaml.safe_dump(HEAD | {"metadata": {"name": "demo"}, "spec": spec}))
    return directory / "m.yaml"


def test_the_first_attempt_opens_when_every_launcher_has_reported() -> None:
    assert advance(LocalState(), seen(report("t0"), None), "run", 3) == LocalState()
    assert isinstance(FIRST, LocalState)
    assert (FIRST.attempt, FIRST.command) == (1, "run")
    assert [(m.pod, m.boot_id, m.node_rank) for m in FIRST.members] == [("t0", "t0-1", 0), ("t1", "t1-1", 1)]
    assert {m.address for m in FIRST.members} == {"::1"}


def test_attempts_are_counted_on_from_those_of_earlier_runs() -> None:
    opened = advance(LocalState(before=3), seen(report("t0"), report("t1")), "run", 3)
    assert isinstance(opened, LocalState) and (opened.attempt, opened.failures) == (4, 0)
    failed = seen(*(report(pod, attempt=4, state="stopped", result="failed", failure=CAUSE) for pod in ("t0", "t1")))
    following = advance(opened, failed, "run", 3)
    assert isinstance(following, LocalState) and (following.attempt, following.failures) == (5, 1)
    assert status_line(following, IDLE).startswith("attempt 5: ") and not status_line(opened, IDLE).startswith(
        "attempt"
    )
    assert status_line(replace(following, command="drain"), IDLE).startswith("attempt 5, draining: ")


def test_the_job_has_succeeded_when_every_member_has() -> None:
    assert advance(FIRST, seen(ended("t0", "succeeded"), running("t1")), "run", 3) == FIRST
    assert advance(FIRST, seen(ended("t0", "succeeded"), ended("t1", "succeeded")), "run", 3) == JobEnd(0, "succeeded")


def test_a_failed_member_stops_the_others_and_then_the_next_attempt_opens() -> None:
    stopping = advance(FIRST, seen(ended("t0", "failed", SYMPTOM), running("t1")), "run", 3)
    assert stopping == replace(FIRST, command="stop", cause=SYMPTOM)
    following = advance(stopping, seen(ended("t0", "failed", SYMPTOM), ended("t1", "failed", CAUSE)), "run", 3)
    assert isinstance(following, LocalState)
    assert (following.attempt, following.command, following.failures) == (2, "run", 1)
    assert restarted(stopping, following, 3) == (
        "attempt 2 begins (restart 1 of at most 3), since attempt 1 failed: rank 1: ValueError: the loss is a banana"
    )


def test_more_failures_than_max_restarts_end_the_job_with_the_cause_not_the_symptom() -> None:
    end = advance(FIRST, seen(ended("t0", "failed", SYMPTOM), ended("t1", "failed", CAUSE)), "run", 0)
    message = "attempt 1 failed, and spec.lifecycle.maxRestarts is 0: rank 1: ValueError: the loss is a banana"
    assert end == JobEnd(1, message)


def test_a_mistake_of_the_users_is_not_tried_again() -> None:
    mistake = Failure(kind="configuration", exception="ConfigurationError", message="spec.x = 3: must be even; take 4")
    assert advance(FIRST, seen(ended("t0", "failed", mistake), ended("t1", "stopped")), "run", 3) == JobEnd(
        1, mistake.message
    )


def test_a_rollout_that_refuses_its_arguments_ends_the_job() -> None:
    mistake = Failure(kind="configuration", message="vLLM refused its arguments")
    state = seen(running("t0"), running("t1"), rollout=report("r0", failure=mistake))
    assert advance(FIRST, state, "run", 3) == JobEnd(1, mistake.message)


def test_servers_that_ended_are_named_until_they_are_ready_but_for_mistakes_which_end_the_job() -> None:
    full = Failure(kind="application", exception="ValueError", message="no memory for the cache", time=3)
    mistake = Failure(kind="configuration", message="vLLM refused its arguments")
    pools = {"judge": {"j0": report("j0", failure=CAUSE), "j1": report("j1", failure=mistake), "j2": None}}
    assert failures(replace(seen(rollout=report("r0", failure=full)), pools=pools)) == {"r0": full, "j0": CAUSE}
    assert failures(IDLE) == {}


def test_a_pool_that_refuses_its_arguments_ends_the_job_and_has_its_count_in_the_line() -> None:
    refused = Failure(kind="configuration", message="vLLM refused its arguments: correct spec.pools[0].vllmArgs")
    pooled = replace(IDLE, pools={"judge": {"j0": report("j0", failure=refused), "j1": report("j1", state="running")}})
    assert advance(FIRST, pooled, "run", 3) == JobEnd(1, refused.message)
    assert status_line(FIRST, pooled).endswith("rollouts 0/1, judge 1/2")


def gangs(trainer: Report | None, critic: Report | None) -> Seen:
    return Seen({"t0": trainer}, {}, "::1", gangs={"critic": {"c0": critic}})


OPENED = advance(LocalState(), gangs(report("t0"), report("c0")), "run", 3)


def test_an_attempt_opens_with_all_gangs_and_a_failure_is_said_with_its_role() -> None:
    assert advance(LocalState(), gangs(report("t0"), None), "run", 3) == LocalState()
    assert isinstance(OPENED, LocalState)
    assert [(m.pod, m.role, m.node_rank) for m in OPENED.members] == [("t0", "trainer", 0), ("c0", "critic", 0)]
    stopping = advance(OPENED, gangs(ended("t0", "failed", SYMPTOM), ended("c0", "failed", CAUSE)), "run", 0)
    assert isinstance(stopping, JobEnd) and "critic rank 1: ValueError: the loss is a banana" in stopping.message


def test_when_the_trainers_are_over_nobody_waits_for_the_other_gangs() -> None:
    assert isinstance(OPENED, LocalState)
    assert advance(OPENED, gangs(ended("t0", "succeeded"), running("c0")), "run", 3) == replace(OPENED, command="stop")
    assert advance(OPENED, gangs(ended("t0", "succeeded"), ended("c0", "stopped")), "run", 3) == JobEnd(0, "succeeded")


def test_a_launcher_that_is_gone_has_ended_its_attempt_as_the_cause_of_broken_collectives() -> None:
    stopping = advance(FIRST, seen(running("t0"), None), "run", 3)
    assert isinstance(stopping, LocalState)
    assert stopping.cause and stopping.cause.exception == "LauncherLost"
    waiting = advance(stopping, seen(ended("t0", "failed", SYMPTOM), None), "run", 3)
    assert waiting == stopping
    following = advance(stopping, seen(ended("t0", "failed", SYMPTOM), report("t1", "2")), "run", 3)
    assert isinstance(following, LocalState)
    assert [m.boot_id for m in following.members] == ["t0-1", "t1-2"]


def test_an_interrupted_job_drains_then_stops_and_ends_with_130() -> None:
    live = seen(running("t0"), running("t1"))
    draining = advance(FIRST, live, "drain", 3)
    assert draining == replace(FIRST, command="drain")
    assert advance(draining, live, "stop", 3) == replace(FIRST, command="stop")
    end = advance(draining, seen(ended("t0", "drained"), ended("t1", "drained")), "drain", 3)
    assert end == JobEnd(130, "interrupted; what was saved is complete")
    assert advance(LocalState(), IDLE, "drain", 3) == JobEnd(130, "interrupted before it began")


def test_mounts_replace_whole_beginnings_of_paths_on_volumes_only() -> None:
    spec = raw_spec(
        data={"train": ["/data/train.parquet", "/database/x", "/data/deep/y"]},
        rollout={"vllmArgs": {"x": "/data/z"}},
        trainer={"transformerConfig": {"x": "/data/z"}},
    )
    here = mounted(spec, {"/data": "/here", "/data/deep": "/there"})
    assert here["data"]["train"] == ["/here/train.parquet", "/database/x", "/there/y"]
    assert (here["model"]["path"], here["checkpoint"]["path"]) == ("/here/model", "/here/run")
    assert here["rollout"]["vllmArgs"] == {"x": "/here/z"}
    assert here["trainer"] == spec["trainer"], "no path of Megatron's lies on a volume"


@pytest.mark.parametrize(
    ("manifest", "config", "complaint"),
    [
        (b"kind: \xe9", "{}", "cannot read .*m.yaml: is not UTF-8"),
        (yaml.safe_dump(HEAD | {"spec": [1]}).encode(), "{}", "m.yaml: spec is missing or not an object"),
        (yaml.safe_dump(HEAD | {"spec": raw_spec()}).encode(), "{half", "its config.json cannot be read"),
    ],
)
def test_a_file_that_is_none_of_ours_is_told_in_one_message(
    tmp_path: Path, manifest: bytes, config: str, complaint: str
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(config)
    (tmp_path / "m.yaml").write_bytes(manifest)
    with pytest.raises(ManifestError, match=complaint):
        load(tmp_path / "m.yaml", [f"/data={tmp_path}"])


def test_values_of_the_command_line_replace_those_of_the_file(tmp_path: Path) -> None:
    write_manifest(tmp_path, raw_spec())
    make_inputs(tmp_path)
    assert load(tmp_path / "m.yaml", [f"/data={tmp_path}"], ["train.steps=3"]).spec.train.steps == 3
    with pytest.raises(ManifestError, match=r"^spec.train.stepps = 3: there is no such field; did you mean steps\?$"):
        load(tmp_path / "m.yaml", [f"/data={tmp_path}"], ["train.stepps=3"])
    with pytest.raises(ManifestError, match="^--set 3: is no path and value"):
        load(tmp_path / "m.yaml", [], ["3"])


def test_a_file_of_two_jobs_is_not_run(tmp_path: Path) -> None:
    jobs = [HEAD | {"metadata": {"name": name}, "spec": raw_spec()} for name in ("a", "b")]
    (tmp_path / "m.yaml").write_text(yaml.safe_dump_all(jobs))
    with pytest.raises(ManifestError, match=r"m.yaml: holds 2 jobs \(a, b\): keep one in a file"):
        load(tmp_path / "m.yaml", [])


def test_every_section_of_the_spec_that_names_paths_is_mounted() -> None:
    schema = RLJobSpec.model_json_schema()
    sections = {name for name, part in schema["properties"].items() if names_a_path(part, schema["$defs"])}
    assert sections - {"volumes"} == set(MOUNTED)


def names_a_path(part: dict[str, Any], definitions: dict[str, Any]) -> bool:
    """Somewhere in it is a text that has to begin with a slash."""
    inner = [*part.get("properties", {}).values(), *part.get("anyOf", []), *filter(None, [part.get("items")])]
    inner += [definitions[part["$ref"].rpartition("/")[2]]] if "$ref" in part else []
    return part.get("pattern", "").startswith("^/") or any(names_a_path(p, definitions) for p in inner)


def test_a_status_line_says_where_the_job_is() -> None:
    assert isinstance(FIRST, LocalState)
    assert status_line(LocalState(), seen(report("t0"), None)) == "starting; trainers 0/2, rollouts 0/1"
    progress = Progress(
        phase="training",
        started_from=0,
        step=3,
        steps=10,
        history=[Point(step=3, reward=0.4375, loss=0.01, seconds=1.25)],
        pace=1.25,
    )
    first = report("t0", attempt=1, state="running", progress=progress)
    live = seen(first, running("t1"), rollout=report("r0", state="running"))
    assert (
        status_line(FIRST, live) == "step 3/10, 9 s left, reward 0.438, loss 0.0100, 1.2 s; trainers 2/2, rollouts 1/1"
    )
    unrewarded = progress.model_copy(update={"history": [Point(step=3, loss=0.01, seconds=1.25)]})
    second = seen(report("t0", attempt=1, state="running", progress=unrewarded), running("t1"))
    alone = replace(second, rollouts={})
    assert status_line(FIRST, alone) == "step 3/10, 9 s left, loss 0.0100, 1.2 s; trainers 2/2"
    evaluated = progress.model_copy(update={"evaluation": {"first": 0.25, "last": 0.3}})
    third = seen(report("t0", attempt=1, state="running", progress=evaluated), running("t1"))
    assert "9 s left, reward 0.438, held-out reward 0.300, loss 0.0100, 1.2 s; " in status_line(FIRST, third)
    strange = progress.model_copy(update={"evaluation": {"first": 0.25}})  # the last was no number
    fourth = seen(report("t0", attempt=1, state="running", progress=strange), running("t1"))
    assert "9 s left, reward 0.438, loss 0.0100, 1.2 s; " in status_line(FIRST, fourth)
    loading = seen(report("t0", attempt=1, state="running", progress=Progress()), running("t1"))
    expected = "loading the model into the trainer; trainers 2/2, rollouts 0/1"
    assert status_line(FIRST, loading) == expected
    waiting = Progress(phase="waiting", started_from=0, steps=10)
    served = seen(report("t0", attempt=1, state="running", progress=waiting), running("t1"))
    said = status_line(FIRST, served)
    assert "step 0/10, waiting for vLLM to load the model and receive the weights; trainers 2/2, rollouts 0/1" in said
    stuck = waiting.model_copy(update={"awaiting": "syncing: waiting for demo-rollout-0"})
    assert ", syncing: waiting for demo-rollout-0; " in status_line(
        FIRST, seen(report("t0", attempt=1, state="running", progress=stuck), running("t1"))
    )


def test_the_time_that_is_left_is_that_of_the_last_steps() -> None:
    points = [Point(step=step, loss=1.0, seconds=900.0) for step in (1, 2, 3)]
    assert left(Progress(step=3, steps=103, history=points, pace=2.0)) == 200.0, "the history is thinned"
    assert left(Progress(step=3, steps=3, pace=2.0)) is None and left(Progress(steps=3)) is None
    assert [duration(s) for s in (9.4, 240, 3 * 3600)] == ["9 s", "4 min", "3.0 h"]


def test_an_interrupted_run_says_what_is_saved_and_how_it_goes_on() -> None:
    checkpoint = Checkpoint(step=10, attempt=1, path="/run/global_step_10")
    ended = report("t0", attempt=1, state="stopped", result="drained", progress=Progress(checkpoints=[checkpoint]))
    assert continued(seen(ended), "run x") == "step 10 is saved in /run/global_step_10; to continue: run x"
    assert continued(seen(report("t0")), "run x") == "nothing is saved yet; to begin again: run x"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_has_a_line_for_each_change_and_repeats_a_wait() -> None:
    log = io.StringIO()
    display = Display(log)
    for now in (0.0, 10.0, 29.0, 31.0, 45.0):
        display.show("loading", None, now)
    display.show("step 1/2", 0.5, 46.0)
    display.show("step 1/2", 0.5, 99.0)
    display.end()
    assert [line.split(" ", 1)[1] for line in log.getvalue().splitlines()] == [
        "loading",
        "loading (31 s)",
        "step 1/2",
    ]


def test_a_wait_goes_on_under_changing_lines_and_says_how_long_it_will_take() -> None:
    log = io.StringIO()
    display = Display(log)
    display.show("waiting for vLLM; rollouts 0/2", None, 100.0, Wait(39.6, 61.0))
    display.show("waiting for vLLM; rollouts 1/2", None, 101.0, Wait(41.0, None))
    assert [line.split(" ", 1)[1] for line in log.getvalue().splitlines()] == [
        "waiting for vLLM; rollouts 0/2 (40 s; last time 61 s)",
        "waiting for vLLM; rollouts 1/2 (41 s)",
    ]


def test_a_terminal_has_one_line_with_a_bar() -> None:
    screen = Terminal()
    display = Display(screen)
    display.show("loading", None, 0.0)
    display.show("loading", None, 12.0)
    display.show("step 1/2", 0.5, 13.0)
    display.end()
    shown = screen.getvalue().split("\r\x1b[K")
    assert shown == ["", "loading", "loading (12 s)", f"[{'#' * 5}{' ' * 5}] step 1/2\n"]


def test_a_summary_says_what_is_left() -> None:
    checkpoint = Checkpoint(step=10, attempt=1, path="/run/global_step_10")
    progress = Progress(step=10, evaluation={"first": 0.25, "last": 0.5}, checkpoints=[checkpoint], export="/run/hf")
    done = seen(report("t0", attempt=1, state="stopped", result="succeeded", progress=progress))
    assert summary(done).splitlines() == [
        "10 steps",
        "held-out reward: first 0.250, last 0.500",
        "checkpoint: /run/global_step_10",
        "Hugging Face model: /run/hf",
    ]


def test_a_summary_of_an_evaluation_says_where_all_of_it_is() -> None:
    progress = Progress(step=10, started_from=10, steps=60, evaluation={"first": 0.5, "last": 0.5})
    done = seen(report("t0", attempt=1, state="stopped", result="succeeded", progress=progress))
    assert summary(done, Path("/run/metrics.jsonl")).splitlines() == [
        "step 10 was evaluated, nothing was trained",
        "all metrics: /run/metrics.jsonl",
    ]


def test_adapters_of_other_settings_are_refused_all_at_once_before_anything_starts(tmp_path: Path) -> None:
    lora = {"path": "/data/adapter", "rank": 8, "targets": ["linear_q"]}
    found = {"peft_type": "LORA", "r": 4, "lora_alpha": 32, "use_dora": True, "modules_to_save": ["lm_head"]}
    make_inputs(tmp_path)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_model.safetensors").touch()
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(found | {"target_modules": ["v_proj"]}))
    spec = raw_spec() | {"model": {"path": "/data/model", "lora": lora}}
    write_manifest(tmp_path, spec)
    with pytest.raises(ManifestError) as error:
        load(tmp_path / "m.yaml", [f"/data={tmp_path}"])
    said = str(error.value).splitlines()
    assert [line.split(" = ")[0] for line in said] == [
        *["spec.model.lora.path"] * 2,
        "spec.model.lora.rank",
        "spec.model.lora.targets",
    ]
    assert "use_dora = True is not supported" in said[0] and "set [linear_v]" in said[3]
