"""A rollout server of two pods: a job learns with it, and each kind of loss takes this server down and up as a whole, and nothing else.

One job for each way to cut a model: tensor-parallel workers, pipeline stages, and data-parallel copies that share experts.
"""

from collections.abc import Iterator
from functools import partial

import pytest

from e2e.conftest import Lab, enforce
from e2e.job import Job, attempts
from e2e.kube import Object, wait_for
from e2e.nodes import drain
from e2e.prepare import run_preparation
from e2e.test_c_rollout_failure import check_samples, rollout_steps
from rljob_api import names
from rljob_api.protocol import Control
from rljob_api.status import JobStatus

pytestmark = pytest.mark.extra
SECONDS = 600
STEPS_TO_LEARN = 60
CUTS: dict[str, tuple[str, dict[str, object]]] = {
    "tensor": ("arithmetic", {"tensorParallel": 2}),
    "stages": ("arithmetic", {"pipelineParallel": 2}),
    "copies": ("moe", {"dataParallel": 2, "expertParallel": True}),
}
"""By the job's name: its example, and how a model is cut for its servers."""
KILL_AN_ENGINE = """
import psutil
from rljob_trainer.pod.health import ENGINE
titles = {p: " ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])}
engines = [p for p, title in titles.items() if ENGINE.search(title) and "Coordinator" not in title]
engine = min(engines, key=titles.get)
engine.kill()
print(titles[engine])
"""
"""Of a pod: its engine core where it has one, otherwise a worker."""


@pytest.fixture(scope="module", params=CUTS)
def job(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Job]:
    """Its pods start under the restricted standard."""
    of, cut = CUTS[request.param]
    if of != "arithmetic":
        run_preparation(lab.kube, lab.provider, of)
    enforce(lab.kube, "restricted")
    job = None
    try:
        job = lab.start(
            request.param,
            of,
            train={"steps": 100_000, "batches": {"record": True}},
            rollout={"replicas": 1, "nodes": 2} | cut,
            evaluation={"everySteps": 0},
            checkpoint={"path": f"/data/runs/{request.param}", "everySteps": 10},
        )
        job.wait_for_step(1, timeout=SECONDS)
        yield job
    finally:
        if job:
            job.delete()
        enforce(lab.kube, "baseline")


def generations(status: JobStatus) -> list[int]:
    return [server.generation for server in status.servers]


def serving(lab: Lab, job: Job, count: int) -> JobStatus:
    """Once so many servers answer and have the policy, with one endpoint each."""

    def serve(status: JobStatus) -> bool:
        policies = rollout_steps(lab, job)
        return status.rollout.ready == count == len(policies) and None not in policies.values()

    return job.wait(f"{count} servers with the policy", serve, SECONDS)


def control(job: Job) -> Control:
    found = job.kube.get("configmap", names.control(job.name))
    return Control.model_validate_json(found["data"][names.CONTROL_KEY])


def trains_on(job: Job, steps: int = 3) -> JobStatus:
    """The attempt that began first makes so many steps more."""
    status = job.wait_for_step(job.status().progress.step + steps, timeout=SECONDS)
    assert attempts(status) == (1, 0)
    return status


def is_ready(pod: Object) -> bool:
    """For the kubelet."""
    return any((c["type"], c["status"]) == ("Ready", "True") for c in pod["status"].get("conditions", []))


def test_the_head_alone_is_asked_and_its_follower_is_ready_without_an_address(lab: Lab, job: Job) -> None:
    serving(lab, job, 1)
    published = control(job)
    assert [endpoint.pod for endpoint in published.rollouts] == [names.pod(job.name, names.ROLE_ROLLOUT, 0)]
    (group,) = published.servers
    assert [part.pod for part in group.parts] == [names.pod(job.name, names.ROLE_ROLLOUT, i) for i in range(2)]
    heads = job.kube.list("pod", names.heads(job.name, names.ROLE_ROLLOUT))
    assert [pod["metadata"]["name"] for pod in heads] == [names.pod(job.name, names.ROLE_ROLLOUT, 0)]
    wait_for("both pods ready", lambda: [is_ready(pod) for pod in job.pods(names.ROLE_ROLLOUT)] == [True, True], 60)


@pytest.mark.parametrize("lost", [1, 0], ids=["follower", "head"])
def test_a_lost_pod_takes_its_server_down_and_up_and_no_attempt_with_it(lab: Lab, job: Job, lost: int) -> None:
    (generation,) = generations(serving(lab, job, 1))
    victim, other = job.uid(names.ROLE_ROLLOUT, lost), job.uid(names.ROLE_ROLLOUT, 1 - lost)
    lab.kube.kubectl("delete", "pod", names.pod(job.name, names.ROLE_ROLLOUT, lost), "--grace-period=0", "--force")
    job.wait("the next generation", lambda s: generations(s) == [generation + 1], SECONDS)
    serving(lab, job, 1)
    assert job.uid(names.ROLE_ROLLOUT, 1 - lost) == other and job.uid(names.ROLE_ROLLOUT, lost) != victim
    trains_on(job)


@pytest.mark.parametrize("rank", [0, 1], ids=["head", "follower"])
def test_an_engine_that_is_killed_ends_the_generation_and_no_pod(lab: Lab, job: Job, rank: int) -> None:
    (generation,) = generations(serving(lab, job, 1))
    uids = [job.uid(names.ROLE_ROLLOUT, i) for i in range(2)]
    killed = lab.kube.execute(names.pod(job.name, names.ROLE_ROLLOUT, rank), "python", "-c", KILL_AN_ENGINE)
    assert ("EngineCore" in killed) == (rank == 0 or job.name == "copies")
    job.wait("the next generation", lambda s: generations(s)[0] > generation, SECONDS)
    serving(lab, job, 1)
    assert [job.uid(names.ROLE_ROLLOUT, i) for i in range(2)] == uids
    trains_on(job)


def has_pods(job: Job, count: int, _: JobStatus) -> bool:
    return len(job.pods(names.ROLE_ROLLOUT)) == count


def test_kubectl_scale_adds_and_removes_whole_servers(lab: Lab, job: Job) -> None:
    for servers in (2, 1):
        lab.kube.kubectl("scale", f"rljob/{job.name}", f"--replicas={servers}")
        serving(lab, job, servers)
        job.wait("the pods of whole servers", partial(has_pods, job, 2 * servers), SECONDS)
        trains_on(job)


def test_it_learns_as_with_servers_of_one_pod(lab: Lab, job: Job) -> None:
    job.wait_for_step(STEPS_TO_LEARN, timeout=SECONDS)
    rewards = list(lab.series(job.name, "reward/mean").values())[:STEPS_TO_LEARN]
    assert sum(rewards[-10:]) / 10 >= sum(rewards[:10]) / 10 + 0.1
    assert max(lab.series(job.name, "train_rollout/log_prob_diff_max").values()) < 1e-3


def test_no_sample_of_a_server_was_lost_doubled_or_drawn_from_an_old_policy(lab: Lab, job: Job) -> None:
    check_samples(lab, job)


def test_a_drained_node_takes_the_server_elsewhere_as_a_whole_and_costs_no_step(lab: Lab, job: Job) -> None:
    """Trainers on this node leave it at the end of a step, in another attempt."""
    if lab.provider.name == "existing":
        pytest.skip("its nodes are left alone")
    before = serving(lab, job, 1)
    node = job.pod(names.ROLE_ROLLOUT, 1)["spec"]["nodeName"]
    drain(lab, node, names.selector(job.name, names.ROLE_ROLLOUT))
    try:
        job.wait("the next generation", lambda s: generations(s) > generations(before), SECONDS)
        status = serving(lab, job, 1)
        assert node not in {pod["spec"]["nodeName"] for pod in job.pods(names.ROLE_ROLLOUT)}
        assert (status.lost_steps, status.restarts.counted) == (before.lost_steps, 0)
    finally:
        lab.kube.kubectl("uncordon", node)


def test_suspend_frees_all_pods_and_resume_starts_the_server_again(lab: Lab, job: Job) -> None:
    before = job.status().attempt
    lab.kube.plugin("suspend", job.name)
    step = job.wait_for_state("Suspended", timeout=SECONDS).progress.step
    job.wait("no pods", lambda _: job.pods() == [], 180)
    assert job.status().servers == []
    lab.kube.plugin("resume", job.name)
    status = job.wait_for_step(step + 2, timeout=SECONDS)
    assert before and status.attempt
    assert (status.attempt.number, status.restarts.counted) == (before.number + 1, 0)
    assert generations(status) == [1]
