"""`make demo`: from nothing to a trained model, and what came of it.

Brings up the cluster, images and operator; makes the example's model and data; applies examples/arithmetic/rljob.yaml; shows it live.
Fails when the model did not learn. A machine that can have no cluster runs the same job without one.
"""

import os
import shutil
import subprocess
import sys
import time

from e2e import stack
from e2e.cluster.steps import StepFailed
from e2e.job import EXAMPLES, Job, example, series
from e2e.kube import CommandFailed
from e2e.prepare import prepare, read_file, workbench
from e2e.providers import ROOT, Unavailable, local_lacks, shell_lines
from kubectl_rljob.printers.curves import plot
from rljob_api.status import JobStatus

REQUIRED_RISE = 0.1
WITHOUT_KUBERNETES = ROOT / "dist/demo"
NEXT = """
Look at it yourself:

{environment}
kubectl rljob status arithmetic
kubectl rljob samples arithmetic
kubectl rljob resume arithmetic --from-step 40
"""


def main() -> int:
    if not os.environ.get("RLJOB_KUBECONFIG") and (lacking := local_lacks()):
        return without_kubernetes(lacking)
    try:
        provider = stack.up(say)
    except (Unavailable, StepFailed, CommandFailed) as failure:
        print(failure, file=sys.stderr)
        return 2
    kube = stack.kube(provider)
    job = Job(kube, "arithmetic")
    job.delete()
    prepare(kube, provider, fresh=True, say=say)
    say("kubectl apply --server-side -f examples/arithmetic/rljob.yaml")
    kube.apply(example(image=provider.trainer_image))
    status = follow(job)
    if status.outcome != "Succeeded":
        print(f"\n{job.name}: {status.outcome}: {status.message}\n\n{job.describe()}", file=sys.stderr)
        return 1
    workbench(kube, provider)
    rewards = list(series(read_file(kube, "/data/run/metrics.jsonl"), "reward/mean").values())
    learned = report(rewards, status)
    print(NEXT.format(environment=shell_lines(provider)))
    return 0 if learned else 1


def without_kubernetes(lacking: list[str]) -> int:
    """The walkthrough of docs/quickstart.md in dist/demo; the exit status of the first command that fails."""
    say(
        f"no cluster on this machine, which would need {', '.join(lacking)}: the same job runs without Kubernetes, in dist/demo"
    )
    shutil.rmtree(WITHOUT_KUBERNETES, ignore_errors=True)
    prepare_program = (str(EXAMPLES / "arithmetic/prepare.py"), str(WITHOUT_KUBERNETES))
    manifest = str(EXAMPLES / "arithmetic/rljob.yaml")
    for command in (
        prepare_program,
        ("-m", "rljob_trainer", "run", manifest, "--mount", f"/data={WITHOUT_KUBERNETES}"),
    ):
        say(f"python {' '.join(command)}")
        code = subprocess.run([sys.executable, *command], check=False).returncode
        if code != 0:
            return code
    print("\nLook at it yourself:\n\npython -m rljob_trainer view dist/demo/run")
    return 0


def follow(job: Job) -> JobStatus:
    """Print a line per change until the job has ended."""
    start, last = time.monotonic(), ""
    while True:
        status = job.status()
        p = status.progress
        line = f"{status.state:<10} step {p.text or '-':>8}  {p.metric or '-':<12}  {p.phase:<10} {status.message}".rstrip()
        if line != last:
            print(f"{time.monotonic() - start:6.0f} s  {line}", flush=True)
        last = line
        if status.outcome:
            return status
        time.sleep(1)


def report(rewards: list[float], status: JobStatus) -> bool:
    """The curve, held-out accuracy, and where the results are; whether it learned."""
    first, last = sum(rewards[:10]) / 10, sum(rewards[-10:]) / 10
    before, after = status.progress.evaluation["first"], status.progress.evaluation["last"]
    latest = status.checkpoint.latest
    curve = plot("Mean reward per step", range(1, len(rewards) + 1), rewards)
    print(f"\n{curve}")
    print(f"\nreward              first 10 steps {first:.3f}   last 10 steps {last:.3f}")
    print(f"held-out accuracy   before         {before:.3f}   after         {after:.3f}")
    print(f"checkpoint          {latest.path if latest else '-'}\nHugging Face model  {status.progress.export}")
    print("                    (on the volume of the claim `arithmetic`)")
    learned = last >= first + REQUIRED_RISE and after > before
    print("\nIt learned." if learned else "\nIt did not learn as it should.")
    return learned


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
