"""Lines of a status page: which there are, and what they say."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.cells import cell_len

from cli.conftest import Rljob
from cli.fake_api import FakeApi
from cli.makers import (
    NOW,
    ago,
    make_checkpoint,
    make_event,
    make_job,
    make_spec,
    running,
)
from kubectl_rljob.job import Job
from kubectl_rljob.printers import status
from kubectl_rljob.printers.curves import BARS
from rljob_api import reasons


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


@pytest.mark.parametrize("most", [25, 20])
def test_the_page_never_has_more_than_25_lines_or_those_of_the_terminal(most: int) -> None:
    everything: dict[str, Any] = running() | {"message": "word " * 400, "placement": placed(64, 200)}
    everything["progress"] |= {"export": "/data/run/hf", "evaluation": {"first": 0.1, "last": 0.2}}
    everything["checkpoint"]["kept"] = [make_checkpoint(step, 1) for step in range(40)]
    events = [make_event(reasons.CHECKPOINT_SAVED, "x" * 500, minutes=m) for m in range(30)]
    page = status.page(Job(make_job(**everything)), events, NOW, height=most + 5 * (most == 25)).split("\n")
    assert len(page) <= most <= status.LINES == 25
    assert max(map(len, page)) < 200


@pytest.mark.parametrize("step", [0, 40])
def test_a_job_that_was_sent_back_does_not_claim_the_step_where_it_was(step: int) -> None:
    progress = {"step": 60, "steps": 60}
    page = status.page(Job(make_job(state="Restarting", progress=progress, resumeStep=step)), [], NOW, 100)
    assert page.split("\n")[0].endswith(f"Restarting, goes back to step {step}/60")


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
    agent["workers"] |= {"autoscaling": {"minReplicas": 2}}
    spec = make_spec(rollout={"agent": agent, "sampling": {"maxTokens": 8}})
    api.add(make_job(spec=spec, **running() | {"workers": counted}))
    assert "worker    3/4     -      serving      agents, 2 to 4 pods" in rljob("status", "demo").out.split("\n")
    status = running()
    status["progress"] |= {"workerCalls": {"worker": 37}}
    api.add(make_job(spec=spec, **status | {"workers": counted}))
    assert "agents, 2 to 4 pods, 37 calls" in rljob("status", "demo").out
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


def test_parts_of_a_job_that_are_stranded_or_have_released_their_nodes_have_a_line_each() -> None:
    def lines(**fields: Any) -> list[str]:
        page = status.page(Job(make_job(**running() | fields)), [], NOW)
        return [line for line in page.split("\n") if line.startswith("STRANDED")]

    server = {"role": "rollout", "index": 1, "ordinals": [2, 3]}
    assert lines(servers=[server]) == []
    assert lines(strandedSince=ago(minutes=5)) == ["STRANDED    the gang, for 5m"]
    assert lines(releasedUntil=ago(minutes=-5)) == [f"STRANDED    the gang, released until {ago(minutes=-5)}"]
    assert lines(servers=[server | {"strandedSince": ago(minutes=5)}]) == ["STRANDED    demo-rollout-1, for 5m"]
    many = [server | {"index": i, "strandedSince": ago(minutes=5)} for i in range(5)]
    assert lines(servers=many)[-1] == "STRANDED    and 2 more"


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


def test_unusual_values_of_a_running_job_are_said_with_the_command_that_shows_all(
    api: FakeApi, rljob: Rljob, tmp_path: Path
) -> None:
    """Who applies by GitOps never sees the plan. The command takes what the API server has."""
    spec = make_spec(algorithm={"clip": {"high": 1.28}}, evaluation={"everySteps": 900})
    job = make_job(spec=spec, **running())
    api.add(job)
    page = rljob("status", "demo").out
    assert "\nUNUSUAL     spec.algorithm.clip.high = 1.28: is above 0.99: it is a distance of the ratio from 1" in page
    assert "\n            and 1 more: kubectl get rljob demo -n research -o yaml | kubectl rljob plan -f -\n" in page
    narrow = status.page(Job(job), [], NOW, 100).splitlines()
    assert any(line.startswith("UNUSUAL ") for line in narrow) and all(cell_len(line) <= 100 for line in narrow)
    live = tmp_path / "live.yaml"
    live.write_text(yaml.safe_dump(job))
    planned = rljob("plan", "-f", str(live), "--offline").out
    assert "spec.algorithm.clip.high = 1.28" in planned and "spec.evaluation.everySteps = 900" in planned


@pytest.mark.parametrize("state", ["Succeeded", "Failed"])
def test_nothing_is_advised_of_a_job_that_has_ended_or_is_in_order(state: str, api: FakeApi, rljob: Rljob) -> None:
    unusual = make_spec(algorithm={"clip": {"high": 1.28}})
    api.add(make_job(spec=unusual, **running() | {"state": state}))
    api.add(make_job("other", **running()))
    assert "UNUSUAL" not in rljob("status", "demo").out + rljob("status", "other").out
