"""The status page, whole."""

import json

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
from kubectl_rljob.printers import status
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
    api.add(make_job(observedGeneration=-1))  # as the API server fills it in
    assert rljob("status", "demo").out == NEW


def test_a_job_that_another_controller_runs_waits_for_no_operator(api: FakeApi, rljob: Rljob) -> None:
    api.add(make_job(spec=make_spec(managedBy="kueue.x-k8s.io/multikueue")))
    said = "kueue.x-k8s.io/multikueue runs this job (spec.managedBy), and has written no status yet"
    assert said in rljob("status", "demo").out


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
