"""The status page, whole."""

import json
from typing import Any

import pytest
from rich.cells import cell_len

from cli.conftest import Rljob
from cli.fake_api import FakeApi
from cli.makers import (
    NOW,
    ago,
    fine_tuning,
    make_checkpoint,
    make_event,
    make_job,
    make_spec,
    make_supervised,
    running,
)
from kubectl_rljob.job import Job
from kubectl_rljob.printers import status
from kubectl_rljob.printers.curves import BARS
from rljob_api import reasons

RUNNING = """\
Name:       demo                      State:       Running, step 120/500 (24 %), about 50m left
Namespace:  research                  Attempt:     2, 33m ago
Algorithm:  grpo, ppo loss            Restarts:    2 (1 of 3 counted)
Model:      /data/model (bfloat16)    Checkpoint:  step 100, 12m ago
Message:    training

ROLE      READY   GPUS   STATUS       INFO
trainer   2/2     16     generating   tp4-pp2-dp2, 8.0 s/step, transformer engine, nccl
rollout   4/4     8      serving      policy of step 120

REWARD 0.60 ▲0.05   LOSS 0.0123   KL 0.0040   ENTROPY 0.71   LENGTH 812   LOG-PROB DIFF 2.0e-03   (reported 9s ago)
REWARD 0.48 ▁▁▂▂▂▃▃▃▃▄▄▄▅▅▅▆▆▆▆▇▇▇██ 0.60, steps 97-120

CHECKPOINTS   60, 80, 100 in /data/run

LAST FAILURE   attempt 1, 34m ago: ApplicationFailed, rank 9 of demo-trainer-1
  OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
    File "loss.py", line 12, in logits
    return hidden @ weight.T

LAST EVENTS
12m   CheckpointSaved   step 100 saved to /data/run/global_step_100
33m   AttemptOpened     attempt 2 starts from step 60
"""

NEW = """\
Name:       demo                      State:       Pending
Namespace:  research                  Attempt:     none yet
Algorithm:  grpo, ppo loss            Restarts:    0 (0 of 3 counted)
Model:      /data/model (bfloat16)    Checkpoint:  none yet
Message:    no operator has seen this job yet: is one installed, and does it watch research?

ROLE      READY    GPUS   STATUS   INFO
trainer   <none>   16     -        tp4-pp2-dp2
rollout   <none>   8      -        -
"""

SUCCEEDED = """\
Name:       demo                      State:       Succeeded, step 500/500 (100 %)
Namespace:  research                  Attempt:     none yet
Algorithm:  grpo, ppo loss            Restarts:    0 (0 of 3 counted)
Model:      /data/model (bfloat16)    Checkpoint:  step 500, 5m ago
Message:    done

ROLE      READY   GPUS   STATUS   INFO
trainer   -       -      -        tp4-pp2-dp2
rollout   -       -      -        -

REWARD 0.40 ▁█▄ 0.60, steps 1-3   HELD-OUT 0.31 → 0.77

CHECKPOINTS   500 in /data/run
EXPORT        /data/run/global_step_500/huggingface
"""

SUSPENDED = """\
Name:       demo                      State:       Suspended, step 120/500 (24 %)
Namespace:  research                  Attempt:     2, 33m ago
Algorithm:  grpo, ppo loss            Restarts:    2 (1 of 3 counted)
Model:      /data/model (bfloat16)    Checkpoint:  step 100, 12m ago
Message:    suspended by a request

ROLE      READY   GPUS   STATUS   INFO
trainer   1/0     16     -        tp4-pp2-dp2, transformer engine, nccl
rollout   -       -      -        -

REWARD 0.60 ▲0.05   LOSS 0.0123   KL 0.0040   ENTROPY 0.71   LENGTH 812   LOG-PROB DIFF 2.0e-03   (reported 9s ago)
REWARD 0.48 ▁▁▂▂▂▃▃▃▃▄▄▄▅▅▅▆▆▆▆▇▇▇██ 0.60, steps 97-120

CHECKPOINTS   60, 80, 100 in /data/run
"""

WRONG = """\
Name:       demo        State:       Failed
Namespace:  research    Attempt:     none yet
                        Restarts:    0 (0 counted)
                        Checkpoint:  none yet
Message:    spec.task = 'dance': must be rl; set it
            spec.trainer.nodes = 0: must be at least 1; raise it

ROLE      READY   GPUS   STATUS   INFO
trainer   -       -      -        -
rollout   -       -      -        -

LAST FAILURE   attempt 1: ConfigurationError, rank 0 of demo-trainer-0
  spec.trainer.transformerConfig.moe: 4: unknown key: take it out
"""


FINE_TUNING = """\
Name:       demo                      State:       Running, step 120/500 (24 %), about 50m left
Namespace:  research                  Attempt:     2, 33m ago
Task:       sft                       Restarts:    2 (1 of 3 counted)
Model:      /data/model (bfloat16)    Checkpoint:  step 100, 12m ago
Message:    training

ROLE      READY   GPUS   STATUS     INFO
trainer   2/2     16     training   tp4-pp2-dp2, 8.0 s/step

LOSS 0.8000 ▼0.100   PERPLEXITY 2.23   (reported 9s ago)
LOSS 1.030 ██▇▇▇▆▆▆▆▅▅▅▄▄▄▃▃▃▃▂▂▂▁▁ 0.800, steps 97-120   HELD-OUT LOSS 2.500 → 1.250

CHECKPOINTS   60, 80, 100 in /data/run
"""


def placed(stages: int, rollouts: int) -> dict[str, Any]:
    levels = [{"level": "block", "pairs": 0, "bytesPerStep": 0}, {"level": "rack", "pairs": 3, "bytesPerStep": 3.1e9}]
    domains = {"stages": [f"b0/r{i}" for i in range(stages)], "rollouts": [f"b1/r{i // 2}" for i in range(rollouts)]}
    return {"report": domains | {"levels": levels}}


def test_metrics_of_no_interest_leave_no_line(api: FakeApi, rljob: Rljob) -> None:
    progress = running()["progress"] | {"metrics": {"time/generate": 3.0}, "history": []}
    api.add(make_job(**running() | {"progress": progress}))
    assert "reported" not in rljob("status", "demo").out


def test_a_placed_job_says_where_in_one_line(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(**running(), placement=placed(2, 4)))
    line = "PLACEMENT   stages b0/r0, b0/r1; rollouts b1/r0 ×2, b1/r1 ×2; pairs across block 0, rack 3 (3.1 GB/step) of an 8 B model\n"
    assert f"policy of step 120\n{line}\nREWARD" in rljob("status", "demo").out


def test_a_job_whose_pods_exchange_nothing_across_nodes_says_so(api: FakeApi, rljob: Rljob) -> None:
    placement = placed(1, 1)
    placement["report"]["levels"] = [{"level": level, "pairs": 0, "bytesPerStep": 0} for level in ("rack", "node")]
    api.add(make_job(**running(), placement=placement))
    assert "\nPLACEMENT   stage b0/r0; rollouts b1/r0; all traffic within a node\n" in rljob("status", "demo").out


def test_nodes_that_the_job_avoids_or_needs_have_a_line_each(api: FakeApi, rljob: Rljob) -> None:
    cause = "attempt 2: ProcessKilled: demo-trainer-1 (rank 9): Signal 9 (SIGKILL)"
    failed = {"failures": ["attempt 1", "attempt 2"], "cause": cause, "until": "2026-11-21T12:40:00Z"}
    nodes = [
        {"node": "n1", "state": "excluded", **failed},
        {"node": "n2", "state": "needed", "quarantine": "cordoned, condition GpuXidError"},
        {"node": "n3", "state": "suspect", **failed},
        *({"node": f"m{i}", "state": "excluded", "quarantine": "cordoned"} for i in range(4)),
    ]
    api.add(make_job(**running(), nodes=nodes))
    lines = (
        f"EXCLUDED    n1 until 2026-11-21T12:40:00Z: 2 failures, {cause}\n"
        "NEEDED      n2: cordoned, condition GpuXidError\n"
        "EXCLUDED    m0: cordoned\n"
        "            and 3 more nodes\n"
    )
    assert f"policy of step 120\n{lines}\nREWARD" in rljob("status", "demo").out


def test_a_narrow_page_loses_the_share_before_the_time_that_is_left() -> None:
    job = Job(make_job(**running()))
    assert status.page(job, [], NOW, 95).split("\n")[0].endswith("Running, step 120/500 (24 %), about 50m left")
    assert status.page(job, [], NOW, 89).split("\n")[0].endswith("Running, step 120/500, about 50m left")
    assert status.page(job, [], NOW, 82).split("\n")[0].endswith("Running, step 120/500, 50m left")
    assert status.page(job, [], NOW, 78).split("\n")[0].endswith("Running, 120/500, 50m left")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_course_and_the_held_out_score_share_one_line_of_the_page(width: int) -> None:
    given = running()
    given["progress"] |= {
        "evaluation": {"first": 0.25, "last": 0.94},
        "history": [{"step": s, "reward": s / 1e4, "loss": 0.0, "seconds": 1.0} for s in range(9000, 9064)],
    }
    (line,) = [line for line in status.page(Job(make_job(**given)), [], NOW, width).split("\n") if "HELD-OUT" in line]
    assert line.endswith("-9063   HELD-OUT 0.25 → 0.94")
    assert len(line) == min(width, 121)
    bars = sum(line.count(bar) for bar in BARS)
    assert f"steps {9064 - bars}-9063" in line


def test_a_running_job_that_failed_once_fits_one_page(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(**running()))
    api.events = [
        make_event(reasons.ATTEMPT_OPENED, "attempt 2 starts from step 60", minutes=33),
        make_event(reasons.CHECKPOINT_SAVED, "step 100 saved to /data/run/global_step_100", minutes=12),
        make_event(reasons.CHECKPOINT_SAVED, "of another job", name="other", minutes=1),
    ]
    screen = rljob("status", "demo")
    assert (screen.code, screen.out, screen.err) == (0, RUNNING, "")


def test_a_job_without_rewards_speaks_of_its_loss_and_of_no_rollouts(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(spec=make_supervised(), **fine_tuning()))
    assert rljob("status", "demo").out == FINE_TUNING
    api.add(make_job(spec=make_supervised("dpo", dpo={"loss": "ipo"}), **fine_tuning()))
    assert "Task:       dpo, ipo loss " in rljob("status", "demo").out


def test_a_job_that_no_operator_has_seen_says_so(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job())
    assert rljob("status", "demo").out == NEW


def test_a_finished_job_shows_what_it_learned_and_where_the_model_is(api: FakeApi, rljob: Rljob) -> None:
    history = [{"step": s, "reward": r, "loss": 0.1, "seconds": 1.0} for s, r in ((1, 0.4), (2, 0.8), (3, 0.6))]
    last = make_checkpoint(500, 5)
    progress = {
        "step": 500,
        "steps": 500,
        "history": history,
        "evaluation": {"first": 0.31, "last": 0.77},
        "export": "/data/run/global_step_500/huggingface",
    }
    roles = {"trainer": {"text": "-"}, "rollout": {"text": "-"}}
    kept = {"latest": last, "kept": [last]}
    api.add(
        make_job(state="Succeeded", message="done", outcome="Succeeded", progress=progress, checkpoint=kept, **roles)
    )
    assert rljob("status", "demo").out == SUCCEEDED


def test_a_spec_that_cannot_be_read_still_has_a_page_with_the_operators_words(api: FakeApi, rljob: Rljob) -> None:
    words = "spec.task = 'dance': must be rl; set it\nspec.trainer.nodes = 0: must be at least 1; raise it"
    cause = {"kind": "configuration", "rank": 0, "exception": "ConfigurationError"}
    cause["message"] = "spec.trainer.transformerConfig.moe: 4: unknown key: take it out"
    failure = {"attempt": 1, "reason": reasons.CONFIGURATION_ERROR, "pod": "demo-trainer-0", "failure": cause}
    api.add(make_job(spec=make_spec(task="dance"), state="Failed", message=words, lastFailure=failure))
    assert rljob("status", "demo").out == WRONG


def test_a_suspended_job_shows_only_the_pods_that_still_end(api: FakeApi, rljob: Rljob) -> None:
    ending = {"trainer": {"ready": 1, "text": "1/0"}, "rollout": {"text": "-"}, "lastFailure": None}
    words = {"state": "Suspended", "suspended": True, "message": "suspended by a request"}
    api.add(make_job(**running() | ending | words))
    assert rljob("status", "demo").out == SUSPENDED


def test_the_time_left_is_at_the_pace_of_the_last_steps_and_not_that_of_the_thinned_history(
    api: FakeApi, rljob: Rljob
) -> None:
    history = [{"step": s, "loss": 0.1, "seconds": 9000.0} for s in range(64, 121, 8)]
    job = running()
    api.add(make_job(**job | {"progress": job["progress"] | {"history": history, "pace": 17.0}}))
    # 380 times 17 s
    assert "step 120/500 (24 %), about 107m left\n" in rljob("status", "demo").out


def test_a_checkpoint_without_a_time_has_no_age(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(checkpoint={"latest": make_checkpoint(80, 5) | {"time": 0}}))
    assert "Checkpoint:  step 80\n" in rljob("status", "demo").out


def test_a_request_that_waits_for_the_operator_is_shown(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(state="Suspended", suspended=True, checkpoint={"kept": [make_checkpoint(80, 5)]}))
    rljob("resume", "demo", "--from-step", "80")
    assert "\nRequest:    resume from step 80, not yet processed by the operator\n" in rljob("status", "demo").out


@pytest.mark.parametrize("most", [25, 20])
def test_the_page_never_has_more_than_25_lines_or_those_of_the_terminal(most: int) -> None:
    everything: dict[str, Any] = running() | {"message": "word " * 400, "placement": placed(64, 200)}
    everything["progress"] |= {"export": "/data/run/hf", "evaluation": {"first": 0.1, "last": 0.2}}
    everything["checkpoint"]["kept"] = [make_checkpoint(step, 1) for step in range(40)]
    events = [make_event(reasons.CHECKPOINT_SAVED, "x" * 500, minutes=m) for m in range(30)]
    page = status.page(Job(make_job(**everything)), events, NOW, height=most + 5 * (most == 25)).split("\n")
    assert len(page) <= most <= status.LINES == 25
    assert max(map(len, page)) < 200


def test_events_fill_the_page_newest_first_whatever_clock_field_they_carry() -> None:
    series = make_event("Repeated", "again", days=1) | {
        "series": {"lastObservedTime": ago(seconds=5).replace("Z", ".000001Z")}
    }
    micro = make_event("Micro", "one", days=1) | {"lastTimestamp": None, "eventTime": ago(seconds=30)}
    lines = status.last_events([make_event("Old", "three", minutes=5), micro, series], 4, NOW, 150)
    assert lines == ["LAST EVENTS", "4s    Repeated   again", "30s   Micro      one", "5m    Old        three"]
    assert status.last_events([micro], 1, NOW, 150) == []


def test_o_json_prints_the_object_without_managed_fields(api: FakeApi, rljob: Rljob) -> None:
    job = make_job(**running())
    job["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    api.add(job)
    printed = json.loads(rljob("status", "demo", "-o", "json").out)
    assert printed["status"] == job["status"]
    assert "managedFields" not in printed["metadata"]


def test_a_pool_has_a_line_of_its_own(api: FakeApi, rljob: Rljob) -> None:
    pool = {"name": "judge", "model": "/data/judge", "replicas": 2, "tensorParallel": 4}
    spec = make_spec(pools=[pool], rewards=[{"vllm": {"pool": "judge"}}])
    counted = {"judge": {"ready": 1, "desired": 2, "text": "1/2"}}
    api.add(make_job(spec=spec, **running() | {"pools": counted}))
    lines = rljob("status", "demo").out.split("\n")
    assert "judge     1/2     8      serving      /data/judge" in lines
    api.add(make_job(spec=spec))
    assert "judge     <none>   8      -        /data/judge" in rljob("status", "demo").out.split("\n")


def test_workers_have_a_line_of_their_own_and_jobs_without_them_have_none(api: FakeApi, rljob: Rljob) -> None:
    agent = {"python": {"path": "/data/agent.py"}, "maxTurns": 2, "maxTokens": 16, "workers": {"replicas": 4}}
    counted = {"ready": 3, "desired": 4, "text": "3/4"}
    spec = make_spec(rollout={"agent": agent, "sampling": {"maxTokens": 8}})
    api.add(make_job(spec=spec, **running() | {"workers": counted}))
    assert "worker    3/4     -      serving      agents" in rljob("status", "demo").out.split("\n")
    api.add(make_job(**running()))
    assert "worker" not in rljob("status", "demo").out
    spec = make_spec(rewards=[{"rule": "exactMatch", "dataSource": "a"}, {"rule": "math", "workers": {"replicas": 4}}])
    api.add(make_job(spec=spec, **running() | {"scorers": {"scorer1": counted}}))
    assert "scorer1   3/4     -      serving      rewards" in rljob("status", "demo").out.split("\n")


def test_sandboxes_that_are_free_have_a_line_with_the_name_of_their_environment(api: FakeApi, rljob: Rljob) -> None:
    agent = {"python": {"path": "/data/agent.py"}, "maxTurns": 2, "maxTokens": 16}
    environments = [{"name": "python-3", "replicas": 8}]
    spec = make_spec(rollout={"agent": agent, "sampling": {"maxTokens": 8}}, environments=environments)
    counted = {"python-3": {"ready": 5, "desired": 8, "text": "5/8"}}
    api.add(make_job(spec=spec, **running() | {"environments": counted}))
    assert "sandbox0   5/8     -      -            python-3" in rljob("status", "demo").out.split("\n")


def test_a_gang_has_a_line_of_its_own(api: FakeApi, rljob: Rljob) -> None:
    gang = {"processesPerNode": 4, "parallelism": {"tensor": 4}}
    spec = make_spec(reference=gang, algorithm={"kl": {"coefficient": 0.01}})
    counted = {"reference": {"ready": 1, "desired": 1, "text": "1/1"}}
    api.add(make_job(spec=spec, **running() | {"gangs": counted}))
    lines = rljob("status", "demo").out.split("\n")
    assert "reference   1/1     4      serving      tp4-pp1-dp1" in lines
    api.add(make_job(spec=spec))
    assert "reference   <none>   4      -        tp4-pp1-dp1" in rljob("status", "demo").out.split("\n")


def test_no_line_of_a_page_is_wider_than_the_terminal() -> None:
    history = [{"step": s, "reward": 0.3, "loss": 1.0, "seconds": 8.0} for s in range(100_057, 100_121)]
    evaluated = running()["progress"] | {"history": history, "evaluation": {"first": 0.3, "last": 0.8}}
    huge = evaluated | {"history": [{**history[0], "reward": -1e299}, *history[1:]], "metrics": {}}
    jobs = [make_job(**running() | {"progress": p}) for p in (evaluated, huge)]
    for job in [*jobs, make_job(), make_job(**running() | {"message": "word " * 50})]:
        for width in range(1, 151):
            page = status.page(Job(job), [make_event("Reason", "said " * 40, minutes=3)], NOW, width)
            if width >= 40:  # below, a table cannot be
                assert max(cell_len(line) for line in page.split("\n")) <= width
    assert "HELD-OUT 0.30 → 0.80" in status.page(Job(jobs[0]), [], NOW, 80)


def test_servers_of_several_pods_that_do_not_answer_are_named_with_the_pod_they_wait_for() -> None:
    def lines(*unready: str) -> list[str]:
        rollout = {"ready": 1, "desired": 2, "text": "1/2", "unready": list(unready)}
        return status.roles(Job(make_job(rollout=rollout)), NOW, 80)

    assert "UNREADY     rollout server 1: demo-rollout-3 has no node" in lines(
        "rollout server 1: demo-rollout-3 has no node"
    )
    many = lines(*(f"rollout server {i}: demo-rollout-{4 * i} has no node" for i in range(4)))
    assert [line for line in many if line.startswith("UNREADY")][-1] == "UNREADY     and 1 more"
    assert not any(line.startswith("UNREADY") for line in lines())


def test_spares_are_below_the_roles_while_the_job_has_any() -> None:
    def lines(**fields: Any) -> list[str]:
        return status.page(Job(make_job(**running() | fields)), [], NOW).split("\n")

    spares = {"desired": 2, "warm": 1}
    assert "SPARES      1/2 warm" in lines(spares=spares)
    assert "SPARES      1/2 warm; demo-trainer-2 stands in" in lines(spares=spares | {"standingIn": ["demo-trainer-2"]})
    many = [f"demo-trainer-{i}" for i in range(4, 10)]
    assert (
        "SPARES      1/2 warm; demo-trainer-4, demo-trainer-5, demo-trainer-6, demo-trainer-7 and 2 more stand in"
        in lines(spares=spares | {"standingIn": many})
    )
    assert not any(line.startswith("SPARES") for line in [*lines(), *lines(spares=spares, state="Succeeded")])


def test_pods_that_do_not_end_are_below_the_roles() -> None:
    stuck = [{"pod": "demo-trainer-1", "uid": "u", "node": "n1", "since": ago(minutes=12), "why": "hangs"}]
    page = status.page(Job(make_job(**running() | {"stuckPods": stuck})), [], NOW)
    assert "STUCK         demo-trainer-1 on n1, should have ended 12m ago" in page.split("\n")


def test_gpu_hours_are_below_the_roles_with_what_they_were_held_for() -> None:
    held = {"generate": 36_000.0, "train": 54_000.0, "lost": 9_000.0}
    job = Job(make_job(accounting={"until": ago(minutes=60), "gpus": 24, "phase": "train", "gpuSeconds": held}))
    (line,) = (text for text in status.page(job, [], NOW).split("\n") if text.startswith("GPU-HOURS"))
    assert line == "GPU-HOURS   51.5, goodput 95 %: train 76 %, generate 19 %, lost 5 %", "an hour more of 24 GPUs"
    assert "GPU-HOURS" not in status.page(Job(make_job()), [], NOW), "it has held no GPU"


def test_a_service_shows_its_gateway_what_clients_have_and_what_waits() -> None:
    counts = {"clients": 2, "models": 3, "waiting": 4, "trainedTokens": 5000, "sampledTokens": 600}
    fields = {
        "gateway": {"ready": 1, "desired": 1, "text": "1/1"},
        "service": counts | {"address": "http://demo-gateway.research:8470"},
    }
    spec = make_spec(task="service", train={})
    for shown in (running() | {"progress": {}}, {"state": "Suspended", "asleep": True}):
        lines = status.page(Job(make_job(spec=spec, **shown | fields)), [], NOW).split("\n")
        (gateway,) = [line for line in lines if line.startswith("gateway")]
        assert gateway.split() == ["gateway", "1/1", "-", "serving", "http://demo-gateway.research:8470"]
        assert "SERVICE     2 clients, 3 models, 4 requests wait; tokens: 5000 trained, 600 sampled" in lines
