"""Which GPUs of this machine each process of a job may see: trainers first, then rollouts, nobody the same as another."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from rljob_api.spec import RLJobSpec
from rljob_trainer.local.manifest import ManifestError

VISIBLE = "CUDA_VISIBLE_DEVICES"


def present(environment: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> list[str]:
    """The machine's GPUs, as CUDA_VISIBLE_DEVICES names them; only those in it, when it is set."""
    if VISIBLE in environment:
        return [name for name in environment[VISIBLE].split(",") if name]
    return [str(i) for i, _ in enumerate(devices.glob("nvidia[0-9]*"))]


def assign(
    spec: RLJobSpec, trainers: Sequence[str], rollouts: Sequence[str], gpus: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Variables of each pod's process, by its name. Raises ManifestError when there are too few GPUs."""
    if spec.trainer.device == "cpu":
        return {pod: {} for pod in (*trainers, *rollouts)}
    wanted = dict.fromkeys(trainers, spec.trainer.processes_per_node)
    wanted |= dict.fromkeys(rollouts, spec.rollout.tensor_parallel)
    if (total := sum(wanted.values())) > len(gpus):
        raise ManifestError(
            f"the job needs {total} GPUs, {len(trainers)} x {spec.trainer.processes_per_node} for trainers and "
            f"{len(rollouts)} x {spec.rollout.tensor_parallel} for rollouts; this machine has {len(gpus)}: lower "
            "spec.trainer.processesPerNode or spec.rollout.replicas"
        )
    free = iter(gpus)
    return {pod: {VISIBLE: ",".join(next(free) for _ in range(count))} for pod, count in wanted.items()}
