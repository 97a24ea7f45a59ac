"""A full cluster, jobs that wait for nodes, and pods that come and go: what that costs an operator, counted and timed."""

import time
from collections import Counter
from random import Random

from rljob_operator.cache.cluster import CAPACITY
from rljob_operator.kube.api import Object
from simulator.controllers import sync_stateful_sets
from simulator.crowd import Crowd
from simulator.objects import node_object
from simulator.site import NAMESPACE

GPU, GPUS = "nvidia.com/gpu", 8


class Waiting:
    """All GPUs of a node belong to one pod, beside `small` pods without any. Jobs want at least `trainers` such nodes, each shape some more."""

    def __init__(self, nodes: int, small: int, jobs: int, shapes: int, trainers: int) -> None:
        self._random, self._version, self._ended = Random(1), 10**6, list[Object]()
        self.seconds = 0.0
        """Processor time of the operator."""
        self.passes: Counter[str] = Counter()
        """Passes of the operator, by job; that over the capacity has no name."""
        self.crowd = Crowd({"first": 1})
        for i in range(nodes):
            node = node_object(True, name=f"n{i}")
            node["status"]["allocatable"] |= {GPU: str(GPUS), "cpu": "64"}
            self._event(node)
        self._pods = {}
        for i in range(nodes):
            for k in range(small + 1):
                self._start(self._pod(f"p{i}-{k}", f"n{i}", GPUS if k == 0 else 0))
        for i in range(jobs):
            self._submit(f"job-{i}", trainers + i % shapes)

    def _submit(self, name: str, trainers: int) -> None:
        batch = {"steps": 1, "promptsPerStep": GPUS * trainers, "samplesPerPrompt": GPUS}
        trainer = {"nodes": trainers, "device": "gpu", "processesPerNode": GPUS}
        self.crowd.apply(name, trainers, trainer=trainer, train=batch, rollout={"replicas": 1, "tensorParallel": GPUS})

    async def settle(self) -> None:
        """Jobs get their gated pods, and know that they wait."""
        for _ in range(2):
            self.crowd.feed.deliver()
            await self._work()
            sync_stateful_sets(self.crowd.cluster)
        for _ in range(20):
            self.crowd.elapse(1)
            self.crowd.feed.deliver()
            await self._work()
        self.seconds, self.passes = 0.0, Counter()

    async def second(self, rate: int, whole: float) -> None:
        """`rate` pods end, of which the share `whole` had all GPUs of their nodes, and as many that ended earlier are there again. The first pod of
        a node has its GPUs."""
        back, self._ended = self._ended[: -5 * rate], self._ended[-5 * rate :]
        large, small = ([name for name in self._pods if name.endswith("-0") == gpus] for gpus in (True, False))
        ending = {self._random.choice(large if self._random.random() < whole else small) for _ in range(rate)}
        began = time.process_time()
        for pod in back:
            self._start(pod)
        for name in sorted(ending):
            self._end(self._pods[name])
        self.crowd.elapse(1)
        self.seconds += time.process_time() - began
        await self._work()

    async def _work(self) -> None:
        """What is due, as the queue does it."""
        began, crowd = time.process_time(), self.crowd
        due = [key for key in crowd.due if crowd.is_due(key)]
        await crowd.offer_capacity()
        due += [key for key in crowd.due if crowd.is_due(key) and key not in due]
        self.passes.update("" if key == CAPACITY else key[1] for key in due)
        for namespace, name in due:
            if namespace == NAMESPACE:
                await crowd.pass_over(name)
        self.seconds += time.process_time() - began

    def _pod(self, name: str, node: str, gpus: int) -> Object:
        requests = {"cpu": "1", "memory": "1Gi"} | ({GPU: str(gpus)} if gpus else {})
        spec = {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": requests}}]}
        meta = {"name": name, "namespace": "others"}
        return {"kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Running"}}

    def _start(self, pod: Object) -> None:
        self._pods[pod["metadata"]["name"]] = pod
        self._event(pod)

    def _end(self, pod: Object) -> None:
        del self._pods[pod["metadata"]["name"]]
        self._ended.append(pod)
        self._event(pod, gone=True)

    def _event(self, obj: Object, *, gone: bool = False) -> None:
        self._version += 1
        meta = obj["metadata"] | {"uid": f"u{self._version}", "resourceVersion": str(self._version)}
        self.crowd.feed.handlers.handle(obj["kind"], obj | {"metadata": meta}, gone=gone)

    def placed(self) -> set[str]:
        """Jobs that have nodes."""
        placements = {job: self.crowd.status(job).placement for job in self.crowd.jobs()}
        return {job for job, placement in placements.items() if placement and placement.assignments}
