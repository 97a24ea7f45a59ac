"""Random histories of a job with random faults: what must hold at every write and every turn, and where all of it ends."""

import asyncio
import json
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from rljob_api import names, reasons
from rljob_api.protocol import Control, WorkerLoad
from rljob_api.server_group import ServerGroup
from rljob_api.status import JobStatus
from rljob_operator.kube.api import ApiError
from rljob_operator.times import LONGEST_BACKOFF
from simulator.cluster import Crash
from simulator.feed import HOSTILE, PROMPT
from simulator.world import NAMESPACE, World, of_rollouts

CHILDREN = [
    ("NetworkPolicy", "demo-pods"),
    ("ConfigMap", "demo-control"),
    ("Role", "demo-pods"),
    ("ConfigMap", "demo-trainer-0-report"),
]
OF_FOUR_GANGS = {
    "critic": {"processesPerNode": 2},
    "reference": {"nodes": 2, "processesPerNode": 1},
    "algorithm": {"advantage": "gae", "kl": {"coefficient": 0.01}},
    "rewards": [{"rule": "number"}, {"model": {"path": "/data/reward", "processesPerNode": 1}}],
}
POOL = {"name": "judge", "model": "/data/judge", "replicas": 2}
WHOLE = {"nodes": 2, "tensorParallel": 2}
"""Servers of two pods."""
WORKERS = {"replicas": 4, "autoscaling": {"minReplicas": 2}}
AGENT = {"python": {"path": "/data/agent.py"}, "maxTurns": 2, "maxTokens": 16, "workers": WORKERS}
WORKED = {"sampling": {"maxTokens": 8}, "agent": AGENT}
ENDS = {reasons.SUCCEEDED, reasons.REACHED_MAX_RESTARTS, reasons.CONFIGURATION_ERROR}


class Histories(RuleBasedStateMachine):
    """One job of two trainers. Rules are what users, nodes, processes and the API server do."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.broken: list[str] = []
        self.nonce = 0

    @initialize(
        seed=st.integers(0, 10**6),
        hostile=st.booleans(),
        backend=st.sampled_from(["none", "builtin"]),
        task=st.sampled_from(
            ["rl", "sft", "rl with a pool", "rl with four gangs", "rl with servers of two pods", "rl with workers"]
        ),
        spares=st.integers(0, 2),
    )
    def begin(self, seed: int, hostile: bool, backend: str, task: str, spares: int) -> None:
        self.world = World(steps=10**6, faults=HOSTILE if hostile else PROMPT, random=Random(seed))
        self.highest, self.ended = 0, False
        self.generations: dict[str, ServerGroup] = {}
        self.stored = set[str]()
        written = self.world.cluster._written

        def checked(verb: str, obj: Any) -> None:
            try:
                written(verb, obj)
            finally:
                self.after_write(f"{verb} {obj['kind']}")

        self.world.cluster._written = checked  # type: ignore[method-assign]
        self.task = task.split()[0]
        pooled = {"pools": [POOL], "rewards": [{"vllm": {"pool": "judge"}}]}
        whole = {"rollout": {"replicas": 2} | WHOLE} | pooled | {"pools": [POOL | WHOLE]}
        kinds: dict[str, Any] = {"pool": pooled, "gangs": OF_FOUR_GANGS, "pods": whole, "workers": {"rollout": WORKED}}
        parts: dict[str, Any] = kinds.get(task.split()[-1], {})
        self.world.apply(
            task=self.task,
            **parts,
            lifecycle={"backoffSeconds": 1, "maxRestarts": 5, "strandedSeconds": 20, "nodeLossSeconds": 5},
            scheduling={"backend": backend, "spareNodes": spares},
        )

    def teardown(self) -> None:
        """Nothing happens any more: it converges, and an hour later it is as it was."""
        if hasattr(self, "world"):
            self.world.cluster.crash_after = None
            self.world.cluster.full.clear()
            self.world.wake_pods()
            self.ask("resume")
            self.world.now += LONGEST_BACKOFF
            for _ in range(150):
                self.turn()
                if self.world.status.outcome:
                    break
                if self.world.status.state == "Running":
                    self.converge()
                for launcher in self.world.launchers.values():
                    if launcher.state == "running" and self.world.status.state == "Running":
                        launcher.stop("succeeded")
            assert self.world.status.outcome_reason in ENDS, self.world.status
            self.world.elapse(3600)
            self.world.restart_operator()
            for _ in range(5):
                self.turn()
            assert not self.world.cluster.pods(NAMESPACE)
        self.loop.close()

    def converge(self) -> None:
        """All servers answer, unless the job ends before."""
        for turn in range(200):
            status = self.world.status
            if not status.servers or (status.state == "Running" and not status.rollout.unready):
                return
            self.world.now += 0 if turn % 50 else LONGEST_BACKOFF
            self.turn()
        raise AssertionError(f"servers never answer: {status}")

    # What must hold

    def after_write(self, what: str) -> None:
        """Before anything acts, its intent is stored."""
        status, control = self.world.status, self.world.control
        attempt = status.attempt
        if control is None or control.attempt == 0:
            return
        if attempt is None or control.attempt > attempt.number:
            self.broken.append(f"after {what}: attempt {control.attempt} is published and not stored")
        elif control.attempt == attempt.number and control.members != attempt.members:
            self.broken.append(f"after {what}: members were published that are not stored")
        self.alone(control, what)
        self.whole(control, what)

    def alone(self, control: Control, what: str) -> None:
        """No attempt is told to run while a member of a former one still does, unless it cannot be ended."""
        running = [x for x in self.world.launchers.values() if x.state == "running" and not x.dark]
        others = [x for x in running if x.attempt < control.attempt]
        if control.command == "run" and others:
            self.broken.append(f"after {what}: attempt {control.attempt} may run beside {others}")

    def whole(self, control: Control, what: str) -> None:
        """Every pod is part of one server at most; a generation has all of its pods, which are stored first, and never others."""
        self.stored |= {str(one.parts) for one in self.world.status.servers}
        boots = [part.boot_id for group in control.servers for part in group.parts]
        if len(set(boots)) < len(boots):
            self.broken.append(f"after {what}: a pod is part of two servers: {control.servers}")
        for group in control.servers:
            before, self.generations[group.name] = self.generations.get(group.name), group
            if [part.node_rank for part in group.parts] != [0, 1]:
                self.broken.append(f"after {what}: {group} is not whole")
            if str(group.parts) not in self.stored:
                self.broken.append(f"after {what}: {group} was published and is not stored")
            if before and before != group and before.generation == group.generation and self.continues(before, group):
                self.broken.append(f"after {what}: {group} was {before}")

    def continues(self, before: ServerGroup, group: ServerGroup) -> bool:
        """Whether two groups have a boot in common, which would not see that the others are new."""
        return bool({part.boot_id for part in before.parts} & {part.boot_id for part in group.parts})

    def after_turn(self) -> None:
        """Attempts only grow, and an end is an end."""
        assert not self.broken, self.broken
        assert self.task == "rl" or not of_rollouts(self.world)
        status: JobStatus = self.world.status
        number = status.attempt.number if status.attempt else 0
        assert number >= self.highest
        if status.attempt:
            ranks = [m.node_rank for m in status.attempt.of(names.ROLE_TRAINER)]
            assert sorted(ranks) == [0, 1], "as many members as without spares, each with a rank of its own"
        assert all(2 <= pods <= 4 for pods in status.worker_replicas.values())
        assert not self.ended or (status.outcome and number == self.highest)
        self.highest, self.ended = number, bool(status.outcome)

    # What happens

    def turn(self) -> None:
        try:
            self.loop.run_until_complete(self.world.turn())
        except (Crash, ApiError):
            self.world.restart_operator()
        self.after_turn()

    @rule(turns=st.integers(1, 8))
    def time_goes_by(self, turns: int) -> None:
        for _ in range(turns):
            self.turn()

    @rule(seconds=st.sampled_from([-3600, 3600]))
    def the_clock_jumps(self, seconds: int) -> None:
        self.world.now += seconds

    @rule(writes=st.integers(1, 4))
    def the_operator_will_be_killed_after_a_write(self, writes: int) -> None:
        self.world.cluster.crash_after = len(self.world.cluster.writes) + writes

    @rule()
    def the_operator_is_restarted(self) -> None:
        self.world.restart_operator()

    def pods(self) -> list[str]:
        return [p["metadata"]["name"] for p in self.world.cluster.pods(NAMESPACE)]

    @precondition(lambda self: hasattr(self, "world") and self.pods())
    @rule(data=st.data(), how=st.sampled_from(["kill", "delete", "fail", "evict"]))
    def a_pod_goes(self, data: st.DataObject, how: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.pods())))
        if how in ("fail", "evict"):
            self.world.fail_pod(name, "Evicted", "it used too much", disrupted="drained" if how == "evict" else "")
        else:
            self.world.kill_pod(name) if how == "kill" else self.world.delete_pod(name)

    @precondition(lambda self: hasattr(self, "world") and self.pods())
    @rule(data=st.data())
    def a_pod_cannot_die(self, data: st.DataObject) -> None:
        self.world.hang_pod(data.draw(st.sampled_from(sorted(self.pods()))))

    @precondition(lambda self: hasattr(self, "world") and self.world.launchers)
    @rule(data=st.data(), kind=st.sampled_from(["application", "collective", "killed", "restart", "configuration"]))
    def a_process_fails(self, data: st.DataObject, kind: str) -> None:
        uid = data.draw(st.sampled_from(sorted(self.world.launchers)))
        launcher = self.world.launchers[uid]
        if kind == "restart":
            self.world.launchers[uid] = type(launcher)(launcher.pod, uid, launcher.boot_id + "+")
        elif launcher.state == "running":
            launcher.fail(kind, "ValueError", self.world.now)

    @precondition(lambda self: hasattr(self, "world") and self.world.parts)
    @rule(data=st.data(), restart=st.booleans())
    def a_part_of_a_server_fails(self, data: st.DataObject, restart: bool) -> None:
        uid = data.draw(st.sampled_from(sorted(self.world.parts)))
        part = self.world.parts[uid]
        if restart:
            self.world.parts[uid] = type(part)(part.pod, uid, part.boot_id + "+")
        else:
            part.fail(self.world.now)

    @precondition(lambda self: hasattr(self, "world") and self.task == "rl")
    @rule(replicas=st.integers(1, 3))
    def the_rollouts_are_scaled(self, replicas: int) -> None:
        self.world.edit_spec(rollout=self.world.job["spec"]["rollout"] | {"replicas": replicas})

    @precondition(lambda self: hasattr(self, "world") and self.task == "rl" and self.world.launchers)
    @rule(calls=st.builds(WorkerLoad, needed=st.integers(0, 9), enough=st.none() | st.integers(0, 9)))
    def calls_come_and_go(self, calls: WorkerLoad) -> None:
        for launcher in self.world.launchers.values():
            if launcher.progress:
                launcher.progress = launcher.progress.model_copy(update={"workers": {"worker": calls}})

    @rule(data=st.data())
    def a_child_is_deleted(self, data: st.DataObject) -> None:
        kind, name = data.draw(st.sampled_from(CHILDREN))
        found = self.world.cluster.objects.get((kind, NAMESPACE, name))
        if found:
            self.world.cluster.remove(found)

    @rule()
    def the_node_fills_up_or_has_room_again(self) -> None:
        self.world.cluster.full ^= {"node-1"}

    @rule()
    def the_word_is_forged(self) -> None:
        if self.world.control:
            stored = self.world.cluster.edit("ConfigMap", NAMESPACE, "demo-control")
            text = json.loads(stored["data"][names.CONTROL_KEY])
            stored["data"] = {names.CONTROL_KEY: json.dumps(text | {"command": "stop"})}

    @rule(action=st.sampled_from(["suspend", "resume"]))
    def ask(self, action: str) -> None:
        self.nonce += 1
        self.world.request(f"n{self.nonce}", action)

    @rule(image=st.sampled_from(["a:1", "b:2"]))
    def the_image_changes(self, image: str) -> None:
        self.world.edit_spec(image=image)


Histories.TestCase.settings = settings(max_examples=12, stateful_step_count=20, suppress_health_check=list(HealthCheck))
test_histories = Histories.TestCase


@pytest.mark.extra
def test_many_more_histories() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    many = settings(max_examples=40, stateful_step_count=25, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Histories, settings=many)
