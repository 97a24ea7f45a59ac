"""Jobs of every shape for an hour with random faults: each has to end where it should. In memory; the seconds are those of the simulation.

    PYTHONPATH=tests python -m benchmarks.soak [--seconds 3600] [--faults 50] [--seed 0]

Each job has an operator, whose watches bring events late, twice, out of order or not at all. Faults happen at random times to random jobs in the
first three quarters. At the end every job has succeeded with all of its steps, has no pods left, and has lost no more steps than are between two
checkpoints for each time that it was restarted; and no two attempts ever ran at the same time. Prints JSON: for each job what happened to it and how
it ended, then processor time and by how much the memory of the process has grown since a tenth of the time. Exit code 1: a job is not where it should
be.
"""

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from rljob_operator.times import stamp
from simulator.feed import HOSTILE
from simulator.world import NAMESPACE, World

POOL = {"name": "judge", "model": "/data/judge", "replicas": 2}
WHOLE = {"nodes": 2, "tensorParallel": 2}
AGENT = {"python": {"path": "/data/agent.py"}, "maxTurns": 2, "maxTokens": 16, "workers": {"replicas": 2}}
SHAPES: Mapping[str, dict[str, Any]] = {
    "rl": {"task": "rl"},
    "rl with spares": {"task": "rl", "scheduling": {"backend": "builtin", "spareNodes": 1}},
    "rl with a pool": {"task": "rl", "pools": [POOL], "rewards": [{"vllm": {"pool": "judge"}}]},
    "rl with servers of two pods": {"task": "rl", "rollout": {"replicas": 2} | WHOLE},
    "rl with workers": {"task": "rl", "rollout": {"sampling": {"maxTokens": 8}, "agent": AGENT}},
    "sft with another scheduler": {"task": "sft", "scheduling": {"backend": "none"}},
}
LIFECYCLE = {"backoffSeconds": 1, "maxRestarts": 20, "strandedSeconds": 60, "nodeLossSeconds": 10}
SAVE_EVERY = 10
REPAIRED = (5, 60)
"""Seconds after which a fault that lasts is over, at least and at most."""
QUIET = 0.75
"""Share of the time after which there are no more faults."""
PATIENCE = 2
"""How often the time may pass until all jobs have ended."""


@dataclass
class Subject:
    """A job, and what happens to it."""

    name: str
    world: World
    random: Random
    faults: Counter[str] = field(default_factory=Counter)
    repairs: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    """When faults that last are over, and how."""
    broken: list[str] = field(default_factory=list)
    requests: int = 0

    async def second(self) -> None:
        for due in [one for one in self.repairs if one[0] <= self.world.elapsed]:
            self.repairs.remove(due)
            due[1]()
        await self.world.turn()
        running = {one.attempt for one in self.world.launchers.values() if one.state == "running" and not one.dark}
        if len(running) > 1:
            self.broken.append(f"attempts {sorted(running)} run at the same time")

    def suffer(self) -> None:
        """One fault that is possible now."""
        blows = [blow for fault in FAULTS if (blow := fault(self))]
        self.faults[self.random.choice(blows)()] += 1

    def later(self, repair: Callable[[], None]) -> None:
        self.repairs.append((self.world.elapsed + self.random.randint(*REPAIRED), repair))

    def ask(self, action: str) -> None:
        self.requests += 1
        self.world.request(f"n{self.requests}", action)

    def verdict(self, steps: int) -> list[str]:
        """Why the job is not where it should be."""
        status, pods = self.world.status, self.world.cluster.pods(NAMESPACE)
        found = list(self.broken)
        if (status.outcome, status.progress.step) != ("Succeeded", steps):
            found.append(f"{status.state} at step {status.progress.step} of {steps}: {status.message}")
        if pods:
            found.append(f"{len(pods)} pods are left")
        if status.lost_steps > SAVE_EVERY * status.restarts.total:
            found.append(f"{status.lost_steps} steps lost in {status.restarts.total} restarts")
        return found


Blow = Callable[[], str]
"""Does it, and says what."""


def pod_goes(s: Subject) -> Blow | None:
    pods = sorted(
        p["metadata"]["name"] for p in s.world.cluster.pods(NAMESPACE) if not p["metadata"].get("deletionTimestamp")
    )
    name, how = s.random.choice(pods or [""]), s.random.choice(["killed", "deleted", "evicted"])

    def blow() -> str:
        if how == "evicted":
            s.world.fail_pod(name, "Evicted", "the node is low on memory")
        else:
            (s.world.kill_pod if how == "killed" else s.world.delete_pod)(name)
        return f"a pod is {how}"

    return blow if pods else None


def pod_hangs(s: Subject) -> Blow | None:
    pods = sorted(p["metadata"]["name"] for p in s.world.cluster.pods(NAMESPACE))

    def blow() -> str:
        s.world.hang_pod(s.random.choice(pods))
        s.later(s.world.wake_pods)
        return "a deleted pod does not end"

    return blow if pods else None


def process_fails(s: Subject) -> Blow | None:
    running = sorted(uid for uid, one in s.world.launchers.items() if one.state == "running")
    kind = s.random.choice(["application", "collective", "killed", "restart"])

    def blow() -> str:
        one = s.world.launchers[s.random.choice(running)]
        if kind == "restart":
            s.world.launchers[one.pod_uid] = type(one)(one.pod, one.pod_uid, one.boot_id + "+")
        else:
            one.fail(kind, "ValueError", s.world.now)
        return f"a process fails ({kind})"

    return blow if running else None


def node_is_lost(s: Subject) -> Blow:
    def answer(ready: bool) -> None:
        condition = s.world.cluster.edit("Node", None, "node-1")["status"]["conditions"][0]
        condition |= {"status": "True" if ready else "Unknown", "lastTransitionTime": stamp(s.world.now)}

    def blow() -> str:
        answer(False)
        s.later(lambda: answer(True))
        return "the node does not answer"

    return blow


def node_is_full(s: Subject) -> Blow:
    def blow() -> str:
        s.world.cluster.full.add("node-1")
        s.later(lambda: s.world.cluster.full.discard("node-1"))
        return "the node has no room"

    return blow


def operator_dies(s: Subject) -> Blow:
    def blow() -> str:
        s.world.cluster.crash_after = len(s.world.cluster.writes) + s.random.randint(1, 4)
        return "the operator is killed after a write"

    return blow


def user_suspends(s: Subject) -> Blow:
    def blow() -> str:
        s.ask("suspend")
        s.later(lambda: s.ask("resume"))
        return "the job is suspended for a while"

    return blow


def user_edits(s: Subject) -> Blow:
    """What the next attempt runs, and whether the job is suspended, also where a request has said otherwise."""

    def blow() -> str:
        s.world.edit_spec(image=f"trainer:{s.random.randrange(9)}", suspend=s.random.random() < 0.5)
        s.later(lambda: s.world.edit_spec(suspend=False))
        s.later(lambda: s.ask("resume"))
        return "its spec is edited"

    return blow


FAULTS: Sequence[Callable[[Subject], Blow | None]] = (
    pod_goes,
    pod_hangs,
    process_fails,
    node_is_lost,
    node_is_full,
    operator_dies,
    user_suspends,
    user_edits,
)


def subjects(steps: int, seed: int) -> Iterator[Subject]:
    for number, (name, shape) in enumerate(SHAPES.items()):
        random = Random(seed * len(SHAPES) + number)
        world = World(steps=steps, save_every=SAVE_EVERY, faults=HOSTILE, random=random)
        world.apply(**{"scheduling": {"backend": "builtin"}} | shape | {"lifecycle": LIFECYCLE})
        yield Subject(name, world, random)


async def soak(seconds: int, faults: int, seed: int) -> tuple[list[Subject], int]:
    """The jobs after all of that, and the MiB by which the process has grown since a tenth of the time."""
    random, before = Random(seed), 0
    jobs = list(subjects(steps_in(seconds), seed))
    times = Counter(random.randrange(int(seconds * QUIET)) for _ in range(faults))
    for second in range(seconds * PATIENCE):
        for _ in range(times[second]):
            random.choice([job for job in jobs if not job.world.status.outcome]).suffer()
        for job in jobs:
            await job.second()
        before = resident() if second == seconds // 10 else before
        if second > seconds * QUIET and all(job.world.status.outcome and not job.repairs for job in jobs):
            break
    for job in jobs:  # what an ended job still owes
        job.world.wake_pods()
        for _ in range(REPAIRED[1]):
            await job.second()
    return jobs, resident() - before


def steps_in(seconds: int) -> int:
    """Steps of a job: it does one in a second, and so is still there when the last fault comes."""
    return int(seconds * QUIET)


def resident() -> int:
    """MiB."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmRSS"].split()[0]) // 1024


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.soak", description=__doc__)
    for name, default in (("--seconds", 3600), ("--faults", 50), ("--seed", 0)):
        parser.add_argument(name, type=int, default=default)
    args = parser.parse_args()
    jobs, grown = asyncio.run(soak(args.seconds, args.faults, args.seed))
    wrong = False
    for job in jobs:
        status, verdict = job.world.status, job.verdict(steps_in(args.seconds))
        ended = {"state": status.state, "attempts": status.attempt.number if status.attempt else 0}
        figures = {
            "restarts": status.restarts.total,
            "lostSteps": status.lost_steps,
            "operators": job.world.crashes + 1,
        }
        print(json.dumps({"job": job.name} | ended | figures | {"faults": job.faults, "wrong": verdict}), flush=True)
        wrong |= bool(verdict)
    print(
        json.dumps(
            {
                "seconds": args.seconds,
                "faults": sum(sum(j.faults.values()) for j in jobs),
                "cpu": round(time.process_time()),
                "grownMiB": grown,
            }
        )
    )
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
