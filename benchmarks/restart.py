"""Time from deleted pods to the next training step: of one trainer (all others stay), of the trainers, and of every pod, as a recreate does it.

    python -m benchmarks.restart [REPEATS]

Needs what `make cluster-up` brings up. All are measured on one job in one run, in turns; the machine's noise hits all alike.
"""

import re
import statistics
import sys
from dataclasses import astuple, dataclass
from datetime import UTC, datetime

from e2e import stack
from e2e.job import Job, example
from e2e.kube import Kube, log_lines, wait_for
from e2e.prepare import prepare
from rljob_api import names

NAMESPACE = "rljob-bench"
TRAINERS = (names.pod("restart", names.ROLE_TRAINER, 0), names.pod("restart", names.ROLE_TRAINER, 1))
ROLLOUTS = (names.pod("restart", names.ROLE_ROLLOUT, 0), names.pod("restart", names.ROLE_ROLLOUT, 1))
KINDS = {"one trainer": TRAINERS[1:], "all trainers": TRAINERS, "every pod": TRAINERS + ROLLOUTS}


@dataclass(frozen=True)
class Restart:
    """Seconds from the forced deletion until ..."""

    begun: float
    """every trainer's launcher has begun the next attempt: Kubernetes and we,"""
    loaded: float
    """its ranks have imported torch and megatron, met and loaded the checkpoint,"""
    trained: float
    """rollouts have the weights and the first step is done."""


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
    found: dict[str, list[Restart]] = {kind: [] for kind in KINDS}
    print("| deleted | attempt begins | loaded | first step |\n| --- | --- | --- | --- |", flush=True)
    for _ in range(repeats):
        for kind, pods in KINDS.items():
            found[kind].append(measure(kube, job, pods))
            print(row(kind, found[kind][-1]), flush=True)
    medians = {
        kind: Restart(*map(statistics.median, zip(*map(astuple, all_), strict=True))) for kind, all_ in found.items()
    }
    for kind, median in medians.items():
        print(row(f"{kind}, median", median))
    for kind in ("all trainers", "every pod"):
        print(f"one trainer to {kind}: {medians['one trainer'].trained / medians[kind].trained:.2f}")
    kube.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def row(kind: str, found: Restart) -> str:
    return f"| {kind} | " + " | ".join(f"{seconds:.1f} s" for seconds in astuple(found)) + " |"


def measure(kube: Kube, job: Job, pods: tuple[str, ...]) -> Restart:
    wait_for("a job in full swing", lambda: in_full_swing(kube, job), 600, describe=job.describe)
    status = job.status()
    assert status.attempt, "it is in full swing"
    attempt = status.attempt.number + 1
    start = datetime.now(UTC)
    kube.kubectl("delete", "pod", *pods, "--grace-period=0", "--force")
    return wait_for("its first step", lambda: moments(kube, start, attempt), 300, describe=job.describe)


def moments(kube: Kube, start: datetime, attempt: int) -> Restart | None:
    """By the trainers' logs, which are more exact than their reports; None before the first step."""
    begins = f"attempt {attempt} begins"
    lines = sorted(line for pod in TRAINERS for line in log_lines(kube, pod, start))
    begun = [time for time, text in lines if begins in text]
    later = [(time, text) for time, text in lines if begun and time > begun[0]]
    loaded = [time for time, text in later if "COMPUTES WITH" in text]
    trained = [time for time, text in later if re.search(r"driver step \d+/", text)]
    if not trained:
        return None
    return Restart(*((time - start).total_seconds() for time in (max(begun), loaded[0], trained[0])))


def in_full_swing(kube: Kube, job: Job) -> bool:
    """Some steps after the last restart, with all rollouts."""
    status = job.status()
    done, attempt = status.progress, status.attempt
    newest = attempt is not None and done.attempt == attempt.number
    return newest and done.step > (done.started_from or 0) + 3 and status.rollout.ready == len(ROLLOUTS)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
