"""Time from a deleted trainer pod to the next training step: ours (the other pods stay) beside a recreate of all trainer pods.

    python -m benchmarks.restart [REPEATS]

Needs what `make cluster-up` brings up. Both are measured on one job in one run, in turns; the machine's noise hits both alike.
"""

import statistics
import sys
import time

from e2e import stack
from e2e.job import Job, example
from e2e.kube import Kube, wait_for
from e2e.prepare import prepare
from rljob_api import names
from rljob_api.protocol import Progress, Report

NAMESPACE = "rljob-bench"


def main(repeats: int) -> None:
    provider = stack.up()
    kube = stack.kube(provider, NAMESPACE)
    kube.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=180s", timeout=200)
    kube.kubectl("create", "namespace", NAMESPACE)
    prepare(kube, provider, fresh=False)
    lifecycle = {"backoffSeconds": 0, "maxRestarts": 1000}
    checkpoint = {"path": "/data/runs/restart", "everySteps": 5}
    kube.apply(
        example("restart", provider.trainer_image, train={"steps": 100000}, lifecycle=lifecycle, checkpoint=checkpoint)
    )
    job = Job(kube, "restart")
    wait_for("the first steps", lambda: progress(kube, job).step >= 3, 600, describe=job.describe)
    one, everything = [], []
    for _ in range(repeats):
        one.append(measure(kube, job, [1]))
        everything.append(measure(kube, job, [0, 1]))
        print(f"one pod deleted {one[-1]:6.1f} s   all pods recreated {everything[-1]:6.1f} s", flush=True)
    ours, theirs = statistics.median(one), statistics.median(everything)
    print(f"median {ours:.1f} s against {theirs:.1f} s: ratio {ours / theirs:.2f}")
    kube.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def measure(kube: Kube, job: Job, ordinals: list[int]) -> float:
    """Seconds from the force-deletion of these trainer pods to the first step of the next attempt."""
    attempt = report(kube, job).attempt
    pods = [names.pod(job.name, names.ROLE_TRAINER, i) for i in ordinals]
    start = time.monotonic()
    kube.kubectl("delete", "pod", *pods, "--grace-period=0", "--force")

    def trained() -> bool:
        now = report(kube, job)
        done = now.progress
        return (
            now.attempt > attempt
            and done is not None
            and done.started_from is not None
            and done.step > done.started_from
        )

    wait_for("a step of the next attempt", trained, 300, interval=0.1, describe=job.describe)
    return time.monotonic() - start


def report(kube: Kube, job: Job) -> Report:
    name = names.report(names.pod(job.name, names.ROLE_TRAINER, 0))
    data = kube.get("configmap", name).get("data", {}) if kube.exists("configmap", name) else {}
    if names.REPORT_KEY not in data:
        return Report(pod="", pod_uid="", boot_id="")
    return Report.model_validate_json(data[names.REPORT_KEY])


def progress(kube: Kube, job: Job) -> Progress:
    return report(kube, job).progress or Progress()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
