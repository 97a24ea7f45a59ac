"""A cluster with launchers in its pods: in every turn the operator does what is due, controllers and launchers theirs, and a second goes by."""

import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from api.specs import raw_spec
from rljob_api import names
from rljob_api.protocol import Checkpoint, Control, Failure, Progress, Report
from rljob_api.status import JobStatus
from rljob_operator.kube.api import Object
from rljob_operator.times import stamp
from simulator.controllers import account_of, sync_stateful_sets
from simulator.gateways import Gateway, booted
from simulator.objects import job_object
from simulator.parts import Part, boot, is_part, run
from simulator.site import NAMESPACE, Site

SECOND = {"generating": 0.5, "scoring": 0.125, "training": 0.25, "syncing": 0.125}
"""What a trainer does in a turn, in which it does a step."""
GRACE = 3
"""Turns from the deletion of a pod to its end."""


@lru_cache(64)
def read_control(text: str) -> Control:
    """Every pod reads it in every turn, and it seldom changes."""
    return Control.model_validate_json(text)


@dataclass
class Launcher:
    """PID 1 of a pod of the trainer or of another gang."""

    pod: str
    pod_uid: str
    boot_id: str
    attempt: int = 0
    state: str = "idle"
    result: str | None = None
    failure: Failure | None = None
    progress: Progress | None = None
    dark: bool = False
    """Its node is switched off."""

    @property
    def role(self) -> str:
        return self.pod.removeprefix("demo-").rpartition("-")[0]

    def start(self, control: Control) -> None:
        self.attempt, self.state, self.result, self.failure = control.attempt, "running", None, None
        self.progress = None

    def stop(self, result: str, failure: Failure | None = None) -> None:
        self.state, self.result, self.failure = "stopped", result, failure

    def fail(self, kind: str, exception: str, time: float, message: str = "it broke") -> None:
        self.stop("failed", Failure(kind=kind, rank=0, exception=exception, message=message, time=time))

    def report(self) -> str:
        values = {k: v for k, v in vars(self).items() if v is not None}
        return Report.model_validate(values).dump_json()


@dataclass(kw_only=True)
class World(Site):
    """One job of two trainers. Checkpoints are the shared volume's content."""

    steps: int = 10
    """What the data of `train.epochs` come to."""
    save_every: int = 2
    launchers: dict[str, Launcher] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
    """PID 1 of pods of servers of several pods, by uid."""
    gateways: dict[str, Gateway] = field(default_factory=dict)
    """PID 1 of gateways of services, by uid."""
    leaving: dict[str, int] = field(default_factory=dict)
    """Turns that are left to a pod which somebody deleted, by uid: kubelets do not count on our clock."""
    asleep: bool = False
    """Whether controllers do nothing."""
    checkpoints: list[Checkpoint] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    """States in the order in which a user saw them."""

    def apply(self, **changes: Any) -> None:
        changes = {"train": {"steps": self.steps}, "trainer": {"device": "cpu", "nodes": 2}} | changes
        self.cluster.put(job_object("demo", raw_spec(**changes)))

    def install_gpus(self, count: int) -> None:
        """Into the node."""
        node = self.cluster.edit("Node", None, "node-1")
        node["status"]["allocatable"] |= {"nvidia.com/gpu": str(count), "memory": "640Gi"}

    @property
    def job(self) -> Object:
        return self.cluster.objects[("RLJob", NAMESPACE, "demo")]

    @property
    def status(self) -> JobStatus:
        return JobStatus.model_validate(self.job.get("status", {}))

    @property
    def control(self) -> Control | None:
        stored = self.cluster.objects.get(("ConfigMap", NAMESPACE, "demo-control"))
        return read_control(stored["data"][names.CONTROL_KEY]) if stored else None

    def events(self) -> list[str]:
        return [o["reason"] for (kind, _, _), o in self.cluster.objects.items() if kind == "Event"]

    def request(self, nonce: str, action: str, from_step: int | None = None) -> None:
        value = {"jobUid": self.job["metadata"]["uid"], "nonce": nonce, "action": action}
        job = self.cluster.edit("RLJob", NAMESPACE, "demo")
        job["metadata"]["annotations"][names.ANNOTATION_REQUEST] = json.dumps(
            value | ({"fromStep": from_step} if from_step is not None else {})
        )

    def edit_spec(self, **changes: Any) -> None:
        job = self.cluster.edit("RLJob", NAMESPACE, "demo")
        job["spec"] |= changes
        job["metadata"]["generation"] += 1

    async def turn(self) -> None:
        self.elapse(1)
        self.feed.deliver()
        await self.offer_capacity()
        await self.pass_over("demo")
        self._finish_deletions()
        if not self.asleep:
            sync_stateful_sets(self.cluster)
        self._boot()
        self._run()
        self._serve()
        self._report()
        if (state := self.status.state) != (self.seen[-1] if self.seen else None):
            self.seen.append(state)

    async def until(self, *, state: str = "", step: int = 0, attempt: int = 0, turns: int = 200) -> None:
        """Turn until the status says so."""
        for _ in range(turns):
            await self.turn()
            if self.has_reached(state, step, attempt):
                return
        raise AssertionError(f"never {state or step}: {self.status}")

    def has_reached(self, state: str = "", step: int = 0, attempt: int = 0) -> bool:
        status = self.status
        number = status.attempt.number if status.attempt else 0
        progress = status.progress.step if number >= attempt else 0
        return (not state or status.state == state) and progress >= step and number >= attempt

    # What breaks

    def launcher(self, ordinal: int, role: str = names.ROLE_TRAINER) -> Launcher:
        pod = self.cluster.objects[("Pod", NAMESPACE, f"demo-{role}-{ordinal}")]
        return self.launchers[pod["metadata"]["uid"]]

    def delete_pod(self, name: str) -> None:
        meta = self.cluster.edit("Pod", NAMESPACE, name)["metadata"]
        meta.setdefault("deletionTimestamp", "2026-01-01T00:00:00Z")
        self.leaving.setdefault(meta["uid"], GRACE)

    def hang_pod(self, name: str) -> None:
        """Somebody deletes it, and its process sleeps in the kernel."""
        meta = self.cluster.edit("Pod", NAMESPACE, name)["metadata"]
        meta["deletionTimestamp"] = stamp(self.now)
        self.leaving[meta["uid"]] = 10**9
        if (one := self.launchers.get(meta["uid"]) or self.parts.get(meta["uid"])) is not None:
            one.dark = True

    def wake_pods(self) -> None:
        """What hung ends."""
        self.leaving = {uid: min(turns, GRACE) for uid, turns in self.leaving.items()}
        for one in (*self.launchers.values(), *self.parts.values()):
            one.dark = False

    def kill_pod(self, name: str) -> None:
        self.cluster.remove(self.cluster.objects[("Pod", NAMESPACE, name)])

    def fail_pod(self, name: str, reason: str, message: str = "", disrupted: str = "") -> None:
        """As its kubelet does. The StatefulSet's controller replaces it in the same turn, so that only the deletion shows why."""
        status = self.cluster.edit("Pod", NAMESPACE, name)["status"]
        status |= {"phase": "Failed", "reason": reason, "message": message, "containerStatuses": []}
        condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": disrupted}
        status["conditions"] = [condition] if disrupted else []

    def restart_container(self, ordinal: int, role: str = names.ROLE_TRAINER) -> None:
        old = self.launcher(ordinal, role)
        self.launchers[old.pod_uid] = Launcher(old.pod, old.pod_uid, old.boot_id + "+")

    # What happens by itself

    def _finish_deletions(self) -> None:
        dark = {uid for uid, one in (*self.launchers.items(), *self.parts.items()) if one.dark}
        for pod in self.cluster.pods(NAMESPACE):
            uid = pod["metadata"]["uid"]
            if "deletionTimestamp" in pod["metadata"] and uid not in dark:
                self.leaving[uid] = self.leaving.get(uid, 1) - 1
                if self.leaving[uid] == 0:
                    self.cluster.remove(pod)

    def _boot(self) -> None:
        alive = {p["metadata"]["uid"]: p["metadata"]["name"] for p in self.cluster.pods(NAMESPACE)}
        self.launchers = {uid: found for uid, found in self.launchers.items() if uid in alive}
        for uid, name in alive.items():
            launcher = Launcher(name, uid, f"boot-of-{uid}")
            if names.is_model_role(launcher.role):
                self.launchers.setdefault(uid, launcher)

    def _serve(self) -> None:
        """Servers of several pods, and gateways."""
        self.gateways = booted(self.cluster.pods(NAMESPACE), self.gateways, self.control)
        self.parts = boot(self.cluster.pods(NAMESPACE), self.parts)
        run(self.control, self.parts, self.now)
        for pod in filter(is_part, self.cluster.pods(NAMESPACE)):
            part = self.parts.get(pod["metadata"]["uid"])
            ready = [{"type": "Ready", "status": str(bool(part and part.ready))}]
            if pod["status"].get("phase") == "Running" and pod["status"].get("conditions") != ready:
                self.cluster.edit("Pod", NAMESPACE, pod["metadata"]["name"])["status"]["conditions"] = ready

    def _run(self) -> None:
        control = self.control
        if control is None:
            return
        members = sorted(control.members, key=lambda m: (m.role != names.ROLE_TRAINER, m.node_rank))
        found = [(m.boot_id, self.launchers.get(m.pod_uid)) for m in members]
        gang = [one for boot, one in found if one and one.boot_id == boot and not one.dark]
        for launcher in self.launchers.values():
            if launcher not in gang and launcher.state == "running":
                launcher.stop("stopped")
        for launcher in gang:
            if not self._is_refused(launcher):
                self._obey(launcher, control)
        running = [one for one in gang if one.state == "running"]
        if running and len(running) == len(control.members):
            self._step(running, control)
        elif control.command == "run" and not any(one.result == "succeeded" for one in gang):
            for launcher in running:
                launcher.fail("collective", "DistBackendError", self.now + 0.5)

    def _obey(self, launcher: Launcher, control: Control) -> None:
        """As `decide` in rljob_trainer/pod/launcher.py: a launcher that gets `stop` before it began declines, one that gets `drain` begins.
        Other gangs than
        the trainer's run until they are asked to stop."""
        if control.attempt > launcher.attempt:
            launcher.start(control)
        if launcher.state == "running" and control.command == "stop":
            launcher.stop("stopped")
        if launcher.state == "running" and control.command == "drain" and launcher.role == names.ROLE_TRAINER:
            if launcher.progress:
                self._save(launcher.progress.step, control)
                launcher.progress = launcher.progress.model_copy(update={"checkpoints": self.checkpoints})
            launcher.stop("drained")

    def _is_refused(self, launcher: Launcher | Part | Gateway) -> bool:
        """Whether the API server refuses its token, since that is bound to a ServiceAccount that is gone."""
        pod = self.cluster.objects[("Pod", NAMESPACE, launcher.pod)]
        return bool(pod["status"].get("account", "") != account_of(self.cluster, pod))

    def _step(self, gang: list[Launcher], control: Control) -> None:
        rank0, steps = gang[0], control.spec.train.steps or self.steps
        if rank0.progress is None and self._has_lost_all(control):
            rank0.fail("configuration", "ConfigurationError", self.now, "no complete checkpoint of its lineage is left")
            return
        if rank0.progress is None:
            step = self._start_step(control)
            rank0.progress = Progress(phase="loading", started_from=step, step=step, steps=steps)
            return
        step = rank0.progress.step + 1
        if step % self.save_every == 0:
            self._save(step, control)
        news = {
            "phase": "training",
            "step": step,
            "heartbeat": rank0.progress.heartbeat + 1,
            "checkpoints": list(self.checkpoints),
            "spent": {phase: rank0.progress.spent.get(phase, 0.0) + share for phase, share in SECOND.items()},
        }
        rank0.progress = rank0.progress.model_copy(update=news)
        if step == steps:
            for launcher in gang:
                if launcher.role == names.ROLE_TRAINER:
                    launcher.stop("succeeded")

    def _has_lost_all(self, control: Control) -> bool:
        """As rljob_trainer/checkpoint/lineage.py."""
        return control.resume.step is None and control.resume.saved is not None and not self.checkpoints

    def _start_step(self, control: Control) -> int:
        if control.resume.step is not None:
            self.checkpoints = [c for c in self.checkpoints if c.step <= control.resume.step]
        return self.checkpoints[-1].step if self.checkpoints else 0

    def _save(self, step: int, control: Control) -> None:
        if step > (self.checkpoints[-1].step if self.checkpoints else 0):
            path = f"/data/run/global_step_{step}"
            new = Checkpoint(step=step, attempt=control.attempt, path=path, time=self.now)
            self.checkpoints = [*self.checkpoints, new][-control.spec.checkpoint.keep_last :]

    def _report(self) -> None:
        for launcher in (*self.launchers.values(), *self.parts.values(), *self.gateways.values()):
            if launcher.dark or self._is_refused(launcher):
                continue
            stored = self.cluster.objects.get(("ConfigMap", NAMESPACE, names.report(launcher.pod)))
            data = {names.REPORT_KEY: launcher.report()}
            if stored is not None and stored.get("data") != data and not stored.get("immutable"):
                self.cluster.edit("ConfigMap", NAMESPACE, names.report(launcher.pod))["data"] = data


def of_rollouts(world: World) -> list[str]:
    """What there is for rollouts, the Secret with their token included."""
    named = (f"{kind} {name}" for kind, _, name in world.cluster.objects)
    return [name for name in named if "demo-rollout" in name or name.startswith("Secret")]
