"""A pod that its kubelet evicts for what it stores: a failure that counts, in the kubelet's words. The job waits, and continues."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from e2e.conftest import Lab
from e2e.job import example
from rljob_api import names, reasons

pytestmark = pytest.mark.extra

NAME, BACKOFF = "evicted", 10
SCRATCH: dict[str, Any] = {
    "name": "scratch",
    "mountPath": "/scratch",
    "source": {"emptyDir": {"sizeLimit": "8Mi"}},
}
FILL = "open('/scratch/full', 'wb').write(bytes(32 << 20))"


def test_a_pod_that_is_evicted_for_what_it_stores_is_a_failure_that_counts_and_the_job_goes_on(empty_lab: Lab) -> None:
    job = empty_lab.start_untrained(
        NAME,
        of="sft",
        train={"steps": 100_000, "epochs": None},
        trainer={"nodes": 1, "parallelism": {"tensor": 1}},
        checkpoint={"path": f"/data/runs/{NAME}", "everySteps": 5},
        lifecycle={"backoffSeconds": BACKOFF},
        volumes=[*example(of="sft")["spec"]["volumes"], SCRATCH],
    )
    job.wait_for_step(6, timeout=400)
    pod, uid = names.pod(NAME, names.ROLE_TRAINER, 0), job.uid(names.ROLE_TRAINER, 0)
    node = job.pod(names.ROLE_TRAINER, 0)["spec"]["nodeName"]
    empty_lab.kube.execute(pod, "python", "-c", FILL)

    status = job.wait("the failure", lambda s: s.last_failure, 240)
    failure = status.last_failure
    assert failure and failure.failure and (failure.attempt, failure.pod) == (1, pod)
    assert failure.reason == reasons.POD_FAILED
    words = f'the kubelet ended pod {pod} on node {node}: Evicted: Usage of EmptyDir volume "scratch" exceeds the limit "8Mi"'
    assert failure.failure.message.startswith(words)
    assert (status.restarts.total, status.restarts.counted) == (1, 1)
    assert words in empty_lab.kube.plugin("status", NAME)

    again = job.wait_for_attempt(2, 300)
    failed_at = datetime.fromisoformat(failure.time)
    assert again.attempt and datetime.fromisoformat(again.attempt.started_at) >= failed_at + timedelta(seconds=BACKOFF)
    assert again.progress.started_from and again.progress.started_from >= 5
    assert job.uid(names.ROLE_TRAINER, 0) not in ("", uid)
    job.delete()
