"""Snapshots for tests of single decisions: `make_job(nodes=2).with_attempt(3).running(step=7).snapshot()`."""

from dataclasses import dataclass, field, replace
from typing import Any

from api.specs import raw_spec
from rljob_api import names
from rljob_api.policy import JobPolicy
from rljob_api.protocol import Checkpoint, Failure, Member, Progress, Report
from rljob_api.spec import RLJobSpec
from rljob_api.status import Attempt, JobStatus, RLJobMeta
from rljob_operator.cache.pods import Pod
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.decide import Decision, decide
from rljob_operator.render.template import pod_template, template_hash
from rljob_operator.times import stamp

NOW = 1_000_000.0
META = RLJobMeta(name="demo", namespace="research", uid="job-uid", generation=1)


@dataclass(frozen=True)
class Job:
    """Every method returns a changed copy. Pods of trainers are numbered from 0; so are their uids and boots."""

    spec: RLJobSpec
    status: JobStatus = field(default_factory=JobStatus)
    pods: tuple[Pod, ...] = ()
    reports: dict[str, Report] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    def with_status(self, **fields: Any) -> "Job":
        return replace(self, status=self.status.model_copy(update=fields))

    def with_pods(self, **fields: Any) -> "Job":
        """All trainer pods, there and running; `fields` for each."""
        fresh = template_hash(pod_template(META, self.spec, names.ROLE_TRAINER))
        defaults = {"phase": "Running", "ready": True, "running": True, "node": "node-1", "template_hash": fresh}
        pods = (
            Pod(
                name=f"demo-trainer-{i}",
                uid=f"pod-{i}",
                role="trainer",
                ordinal=i,
                **defaults | {"ip": f"10.0.0.{i}"} | fields,
            )
            for i in range(self.spec.trainer.nodes)
        )
        return replace(self, pods=tuple(pods))

    def with_rollout(self, **fields: Any) -> "Job":
        fresh = template_hash(pod_template(META, self.spec, names.ROLE_ROLLOUT))
        defaults: dict[str, Any] = {
            "phase": "Running",
            "ready": True,
            "running": True,
            "ip": "10.0.1.0",
            "node": "node-1",
        }
        defaults["template_hash"] = fresh
        pod = Pod(name="demo-rollout-0", uid="rollout-0", role="rollout", ordinal=0, **defaults | fields)
        return replace(self, pods=(*self.pods, pod))

    def changing_pod(self, ordinal: int, **fields: Any) -> "Job":
        pods = (replace(p, **fields) if p.role == "trainer" and p.ordinal == ordinal else p for p in self.pods)
        return replace(self, pods=tuple(pods))

    def without_pod(self, ordinal: int) -> "Job":
        return replace(self, pods=tuple(p for p in self.pods if p.name != f"demo-trainer-{ordinal}"))

    def reported(self, **fields: Any) -> "Job":
        """By every trainer pod."""
        return self._with_reports(dict.fromkeys(range(self.spec.trainer.nodes), fields))

    def reporting(self, ordinal: int, **fields: Any) -> "Job":
        return self._with_reports({ordinal: fields})

    def _with_reports(self, fields: dict[int, dict[str, Any]]) -> "Job":
        reports = dict(self.reports)
        for i, news in fields.items():
            pod = f"demo-trainer-{i}"
            old = reports.get(pod) or Report(pod=pod, pod_uid=f"pod-{i}", boot_id=f"boot-{i}")
            reports[pod] = old.model_copy(update=news)
        return replace(self, reports=reports)

    def with_attempt(self, number: int = 1, **fields: Any) -> "Job":
        """Open, on all trainer pods, which are there and have reported it."""
        members = [
            Member(
                pod=f"demo-trainer-{i}",
                pod_uid=f"pod-{i}",
                boot_id=f"boot-{i}",
                node_rank=i,
                address=f"10.0.0.{i}",
                node="node-1",
            )
            for i in range(self.spec.trainer.nodes)
        ]
        attempt = Attempt(number=number, members=members, generation=1, started_at=stamp(NOW - 100)).model_copy(
            update=fields
        )
        return self.with_status(attempt=attempt).with_pods().reported(attempt=number, state="running")

    def running(self, step: int = 1, **fields: Any) -> "Job":
        progress = Progress(phase="training", step=step, started_from=0, heartbeat=step).model_copy(update=fields)
        return self.reporting(0, progress=progress)

    def failing(
        self, ordinal: int, kind: str = "application", exception: str = "ValueError", time: float = NOW, field: str = ""
    ) -> "Job":
        failure = Failure.model_validate(
            {"kind": kind, "rank": ordinal, "exception": exception, "message": "it broke", "time": time, "field": field}
        )
        return self.reporting(ordinal, state="stopped", result="failed", failure=failure)

    def having(self, **fields: Any) -> "Job":
        """Fields of the snapshot."""
        return replace(self, extra=self.extra | fields)

    def snapshot(self, now: float = NOW) -> Snapshot:
        values: dict[str, Any] = {
            "job": META,
            "spec": self.spec,
            "spec_suspend": self.spec.suspend,
            "status": self.status,
        }
        return Snapshot(**(values | {"pods": self.pods, "reports": self.reports, "now": now} | self.extra))

    def decide(self, now: float = NOW) -> Decision:
        return decide(self.snapshot(now))

    def next(self, now: float = NOW) -> JobStatus:
        return self.decide(now).status


def make_job(nodes: int = 2, **changes: Any) -> Job:
    raw = raw_spec(**({"trainer": {"device": "cpu", "nodes": nodes}} | changes))
    return Job(JobPolicy().completed(RLJobSpec.model_validate(raw)))


def checkpoint(step: int, attempt: int = 1) -> Checkpoint:
    return Checkpoint(step=step, attempt=attempt, path=f"/data/run/global_step_{step}")
