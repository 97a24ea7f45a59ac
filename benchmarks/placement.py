"""Processor time of one plan (it has one thread): gangs of up to 256 pods on up to 1,000 nodes of which two in five are taken, and the largest gang
that a job may have on 2,000 free nodes.

python -m benchmarks.placement
"""

import time
from random import Random

from rljob_api.spec import RLJobSpec
from rljob_placement.cluster import Cluster
from rljob_placement.gang import Gang
from rljob_placement.plan import plan

GPU = "nvidia.com/gpu"
RACK, BLOCK = 16, 128
"""Nodes."""


def main() -> None:
    print("| nodes | trainers | rollouts | stages | plan, ms | costs looked up |\n|---|---|---|---|---|---|")
    for nodes, trainers, rollouts in ((100, 14, 2), (400, 56, 8), (1000, 224, 32), (2000, 1024, 3072)):
        for pipeline in (1, 4, 8) if trainers % 8 == 0 else (1, 2):
            busy, gpus = (nodes * 2 // 5, 8) if nodes < 2000 else (0, 2)
            where, what = cluster(nodes, busy, Random(1)), gang(trainers, rollouts, pipeline, gpus)
            start = time.process_time()
            found = plan(where, what)
            ms = 1000 * (time.process_time() - start)
            assert not found.problem, found.problem
            print(f"| {nodes} | {trainers} | {rollouts} | {pipeline} | {ms:.0f} | {found.looked:,} |")


def cluster(nodes: int, busy: int, random: Random) -> Cluster:
    """Nodes of 8 GPUs in racks and blocks, `busy` of them taken, anywhere."""
    objects = [_node(i) for i in range(nodes)]
    container = {"resources": {"limits": {GPU: "8"}}}
    pods = [{"spec": {"nodeName": f"n{i}", "containers": [container]}} for i in random.sample(range(nodes), busy)]
    return Cluster.of(objects, pods)


def _node(i: int) -> dict[str, object]:
    labels = {"block": f"b{i // BLOCK}", "rack": f"r{i // RACK}"}
    ready = {"type": "Ready", "status": "True"}
    return {
        "metadata": {"name": f"n{i}", "labels": labels},
        "status": {"allocatable": {"pods": "110", GPU: "8"}, "conditions": [ready]},
    }


def gang(trainers: int, rollouts: int, pipeline: int, gpus: int = 8) -> Gang:
    """Trainers of a whole node each, tensor parallel 8, and rollouts of so many GPUs."""
    parallelism = {"tensor": 8, "pipeline": pipeline}
    spec = {
        "model": {"path": "/data/model"},
        "data": {"train": ["/data/train.parquet"]},
        "rewards": [{"rule": "number"}],
        "train": {"steps": 1, "promptsPerStep": 512, "samplesPerPrompt": 16},
        "trainer": {"nodes": trainers, "processesPerNode": 8, "parallelism": parallelism},
        "rollout": {"replicas": rollouts, "minReplicas": rollouts, "tensorParallel": gpus},
        "checkpoint": {"path": "/data/run"},
        "scheduling": {"backend": "builtin", "topologyLevels": ["block", "rack"]},
        "image": "trainer",
    }
    return Gang.of(RLJobSpec.model_validate(spec))


if __name__ == "__main__":
    main()
