"""PPO whose critic, reference and reward model have gangs of their own, and whose judge is a pool: what is lost of them changes nothing that is
learnt.

The first job generates, and records its batches; its pool loses a server. The second one replays them. It loses a pod of one gang and a rank of
another, is suspended, resumed, and sent back to an earlier step: its losses are the first one's, bit by bit.
"""

import signal
from typing import Any

import pytest

from e2e.conftest import Lab
from e2e.job import Job, attempts
from e2e.test_c_rollout_failure import SIGNAL_THE_ENGINE
from e2e.test_n_pools import JUDGE, POOL
from rljob_api import names, reasons

pytestmark = pytest.mark.extra

STEPS = 40
BY_MODEL = 1
"""Place in spec.rewards."""
REWARD = names.reward_role(BY_MODEL)
GANGS = (names.ROLE_TRAINER, names.ROLE_CRITIC, names.ROLE_REFERENCE, REWARD)
CLASSIFIER = """
import sys
from pathlib import Path
sys.path.insert(0, "/prepare")
import prepare, torch
from transformers import AutoModelForSequenceClassification, Qwen2Config
torch.manual_seed(0)
directory = Path("/data/classifier")
config = Qwen2Config(**prepare.shape(prepare.make_tokenizer()), num_labels=1)
AutoModelForSequenceClassification.from_config(config).save_pretrained(directory)
prepare.make_readable(directory)
"""
"""Untrained: it likes some answers more than others, and weighs little."""
SIGNAL_RANK_0 = """
import sys, psutil
words = ((p, p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"]))
(rank,) = [p for p, found in words if " ".join(found).startswith("python -m rljob_trainer.rank.main 0")]
rank.send_signal(int(sys.argv[1]))
"""


def gang(processes: int = 1, **parallelism: int) -> dict[str, Any]:
    resources = {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "4Gi"}}
    return {"processesPerNode": processes, "parallelism": parallelism, "template": {"resources": resources}}


def signal_rank_0(lab: Lab, pod: str, number: signal.Signals) -> None:
    lab.kube.execute(pod, "python", "-c", SIGNAL_RANK_0, str(int(number)))


def changes(name: str) -> dict[str, Any]:
    """To the example: what both jobs have."""
    model = {"path": "/data/classifier", **gang()}
    return {
        "rewards": [{"rule": "exactMatch"}, {"model": model, "weight": 0.01}],
        "critic": {"offload": None, **gang(2, tensor=2)},
        "reference": {"offload": None, **gang()},
        "trainer": {"nodes": 1, **gang(pipeline=1)},
        "checkpoint": {"path": f"/data/runs/{name}", "everySteps": 4, "keepLast": 50},
    }


@pytest.fixture(scope="module")
def whole(lab: Lab) -> Job:
    """The job whose gangs nobody disturbs."""
    lab.python(CLASSIFIER)
    given = changes("roles")
    given["rewards"].append({"vllm": {"pool": "judge", "judge": JUDGE}, "weight": 0.0, "timeoutSeconds": 60})
    given["evaluation"] = {"everySteps": STEPS // 2}
    return lab.start("roles", of="ppo", pools=[POOL], train={"steps": STEPS, "batches": {"record": True}}, **given)


@pytest.fixture(scope="module")
def replayed(lab: Lab, whole: Job) -> Job:
    whole.wait_for_state("Succeeded", timeout=900)
    train = {"steps": STEPS, "batches": {"replay": f"/data/runs/{whole.name}/batches"}}
    return lab.start(
        "roles-again",
        of="ppo",
        train=train,
        rollout={"replicas": 0},
        evaluation={"everySteps": 0},
        **changes("roles-again"),
    )


def test_a_job_of_four_gangs_learns_though_the_server_of_its_judge_is_killed(lab: Lab, whole: Job) -> None:
    whole.wait_for_step(3, timeout=600)
    assert {role for role in GANGS if len(whole.pods(role)) == 1} == set(GANGS)
    pod, uid = names.pod(whole.name, "judge", 0), whole.uid("judge", 0)
    lab.kube.execute(pod, "python", "-c", SIGNAL_THE_ENGINE, "9")
    whole.wait("the pool without its server", lambda s: s.pools["judge"].ready == 0, 60)
    status = whole.wait_for_state("Succeeded", timeout=900)
    assert whole.uid("judge", 0) in (uid, ""), "the server came back in its pod"
    assert attempts(status) == (1, 0)
    assert not any(lab.series(whole.name, "reward/failed").values())
    assert status.progress.evaluation["last"] > status.progress.evaluation["first"] + 0.1


def test_a_lost_pod_and_a_killed_rank_of_two_gangs_end_the_attempt_and_are_named(lab: Lab, replayed: Job) -> None:
    replayed.wait_for_step(5, timeout=600)
    critic, reward = (names.pod(replayed.name, role, 0) for role in (names.ROLE_CRITIC, REWARD))
    lab.kube.kubectl("delete", "pod", critic, "--grace-period=0", "--force")
    lost = replayed.wait_for_attempt(2, 600).last_failure
    assert lost is not None and (lost.attempt, lost.reason, lost.pod) == (1, reasons.POD_DELETED, critic)

    signal_rank_0(lab, reward, signal.SIGKILL)
    killed = replayed.wait_for_attempt(3, 600).last_failure
    assert killed is not None and killed.failure is not None
    assert (killed.attempt, killed.pod, killed.failure.exception) == (2, reward, "Signal 9 (SIGKILL)")


def test_a_suspended_job_gives_the_pods_of_all_gangs_back_and_resumes_where_it_was(lab: Lab, replayed: Job) -> None:
    """Its trainer is held until the request is there: the steps that are left may take less than that."""
    trainer = names.pod(replayed.name, names.ROLE_TRAINER, 0)
    signal_rank_0(lab, trainer, signal.SIGSTOP)
    lab.kube.plugin("suspend", replayed.name)
    replayed.wait("the request to end", lambda s: s.attempt is not None and s.attempt.command == "drain", 120)
    signal_rank_0(lab, trainer, signal.SIGCONT)
    status = replayed.wait_for_state("Suspended")
    replayed.wait("no pods", lambda _: replayed.pods() == [], 180)
    assert status.checkpoint.latest is not None
    assert status.checkpoint.latest.step == status.progress.step < STEPS, "it is suspended before its last step"
    lab.kube.plugin("resume", replayed.name)
    assert replayed.wait_for_attempt(4, 600).progress.started_from == status.progress.step


def test_after_all_that_and_a_step_back_the_losses_are_those_of_the_undisturbed_job(
    lab: Lab, whole: Job, replayed: Job
) -> None:
    back = replayed.status().checkpoint.kept[0].step
    lab.kube.plugin("resume", replayed.name, "--from-step", str(back))
    assert replayed.wait_for_attempt(5, 600).progress.started_from == back
    status = replayed.wait_for_state("Succeeded", timeout=900)
    assert (status.progress.step, status.restarts.total) == (STEPS, 2)
    for metric in ("train/loss", "critic/loss", "train/kl", "reward/with_models"):
        expected = lab.series(whole.name, metric)
        assert len(expected) == STEPS, metric
        assert lab.series(replayed.name, metric) == expected, metric
