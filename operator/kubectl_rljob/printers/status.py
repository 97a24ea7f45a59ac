"""The page of `status`: at most 25 lines of the terminal's width, the events fill what the rest leaves."""

import textwrap
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rich.cells import cell_len, set_cell_size

from kubectl_rljob import planning
from kubectl_rljob.job import ENDED, Job
from kubectl_rljob.leaving import Leaving, too_short
from kubectl_rljob.printers import placement
from kubectl_rljob.printers.curves import FORMATS, course, curve, line, number
from kubectl_rljob.printers.failure import said, where
from kubectl_rljob.printers.text import age, clip, columns, cut, duration, gpu_hours, moment, one_line, table
from kubectl_rljob.terminal import WIDEST
from rljob_api import names
from rljob_api.protocol import Failure
from rljob_api.sizing.layout import Layout
from rljob_api.spec import RLJobSpec
from rljob_api.status import LastFailure, RoleStatus, SpareStatus, StuckPod
from rljob_api.status_parts import NodeStatus, ProgressStatus, ServiceStatus

LINES = 25
EVENTS = 6
KEY = 12
"""Columns of a key of the summary."""
MESSAGE_LINES = 4
TRACEBACK_LINES = 2
CHECKPOINTS = 8
NODES = 3
STAND_INS = 4
UNREADY = 3
WITHOUT_PODS = ("Suspended", *ENDED)
MANY = 10**12
"""Steps that nobody will live to see."""


def page(job: Job, events: Sequence[dict[str, Any]], now: datetime, width: int = WIDEST, height: int = LINES) -> str:
    """Sections apart by an empty line; those with nothing to say are left out."""
    most = min(height, LINES)
    sections = [
        summary(job, now, width),
        [*roles(job, now, width), *nodes(job, width), *grace(job, width), *unusual(job, width)],
        metrics(job, now, width),
        checkpoints(job, width),
        failure(job, now, width),
    ]
    lines = [text for section in sections if section for text in (*section, "")]
    lines += last_events(events, most - len(lines), now, width)
    return "\n".join(lines[:most]).rstrip()


def summary(job: Job, now: datetime, width: int) -> list[str]:
    """Two columns of keys and values, as far as they fit side by side, then the operator's sentence."""
    s, spec = job.status, job.spec
    left = [("Name", job.name), ("Namespace", job.namespace)]
    if spec:
        left += [learns(spec), ("Model", f"{spec.model.path} ({spec.model.dtype})")]
    left += [("", "")] * (4 - len(left))
    half = width // 2
    cells = [cut(f"{key + ':':<{KEY}}{one_line(value)}", half) if key else "" for key, value in left]
    column = max(map(cell_len, cells)) + 4
    attempt, latest = s.attempt, s.checkpoint.latest
    right = [
        ("State", state(job, width - column - KEY - 1)),
        ("Attempt", f"{attempt.number}{since(attempt.started_at, now)}" if attempt else "none yet"),
        ("Restarts", restarts(job)),
        ("Checkpoint", f"step {latest.step}{since(latest.time, now)}" if latest else "none yet"),
    ]
    facts = [f"{key + ':':<{KEY + 1}}{one_line(value)}" for key, value in right]
    lines = [cut(set_cell_size(cell, column) + fact, width) for cell, fact in zip(cells, facts, strict=True)]
    return [*lines, *message(job, width)]


def learns(spec: RLJobSpec) -> tuple[str, str]:
    """Key and value: how."""
    if spec.task == "rl":
        return "Algorithm", f"{spec.algorithm.advantage}, {spec.algorithm.loss} loss"
    return "Task", f"dpo, {spec.dpo.loss} loss" if spec.task == "dpo" else spec.task


def since(when: str | float, now: datetime) -> str:
    """`, 12m ago`; nothing when the time is not known."""
    return f", {age(when, now)} ago" if when else ""


def state(job: Job, width: int) -> str:
    """The word, how far, or to where it was sent back, and how long it still takes at the pace of the last steps. What says
    least is left out where there is no space for it."""
    s, p = job.status, job.status.progress
    if not p.steps:
        return s.state
    if s.resume_step is not None:
        return f"{s.state}, goes back to step {s.resume_step}/{p.steps}"
    text = f"{s.state}, step {p.step}/{p.steps}"
    share = f" ({100 * p.step // p.steps} %)"
    if s.state != "Running" or p.pace is None or p.step >= p.steps:
        return text + share
    left = f"{duration(min(p.steps - p.step, MANY) * p.pace)} left"
    forms = (
        f"{text}{share}, about {left}",
        f"{text}, about {left}",
        f"{text}, {left}",
        f"{s.state}, {p.step}/{p.steps}, {left}",
    )
    return next((form for form in forms if len(form) <= width), forms[-1])


def restarts(job: Job) -> str:
    total, counted = job.status.restarts.total, job.status.restarts.counted
    limit = f" of {job.spec.lifecycle.max_restarts}" if job.spec else ""
    return f"{total} ({counted}{limit} counted)"


def message(job: Job, width: int) -> list[str]:
    """The operator's words, and a request that it has not taken up."""
    if job.status.observed_generation < 1:
        unseen = f"no operator has seen this job yet: is one installed, and does it watch {job.namespace}?"
        elsewhere = f"{job.other_controller} runs this job (spec.managedBy), and has written no status yet"
        return [cut(f"{'Message:':<{KEY}}{elsewhere if job.other_controller else unseen}", width)]
    room = max(1, width - KEY)
    words = [part for line in job.status.message.split("\n") for part in textwrap.wrap(one_line(line), room)]
    lines = [f"{'Message:' if not i else '':<{KEY}}{text}" for i, text in enumerate(words[:MESSAGE_LINES])]
    if request := job.pending_request:
        step = "" if request.from_step is None else f" from step {request.from_step}"
        lines.append(f"{'Request:':<{KEY}}{request.action}{step}, not yet processed by the operator")
    return lines


def roles(job: Job, now: datetime, width: int) -> list[str]:
    """READY of each kind of pod, GPUS until its pods are released; STATUS and pace only while the job runs, when they are true."""
    s, p = job.status, job.status.progress
    running = s.state == "Running"
    gpus = {r.name: r.gpus or "-" for r in planning.roles(job.spec)} if job.spec else dict.fromkeys(names.ROLES, "")
    layout = str(Layout.of(job.spec, names.ROLE_TRAINER)) if job.spec else ""
    pace = f"{p.history[-1].seconds:.1f} s/step" if running and p.history else ""
    about = ", ".join(part for part in (layout, pace, p.backend) if part)
    learns_alone = job.spec is None or job.spec.task != "service"
    policy = f"policy of step {p.policy_step}" if running and learns_alone else "-"

    def serving(pods: RoleStatus) -> str:
        return "serving" if running and pods.ready else "-"

    gangs = (dict.fromkeys(job.spec.gangs, RoleStatus()) if job.spec else {}) | s.gangs
    layouts = {role: str(Layout.of(job.spec, role)) for role in gangs if job.spec and role in job.spec.gangs}
    models = {pool.name: pool.model for pool in job.spec.asked_pools} if job.spec else {}
    pools = dict.fromkeys(models, RoleStatus()) | s.pools
    rows = [
        (names.ROLE_TRAINER, s.trainer, (p.phase or "-") if running else "-", about or "-"),
        *((role, counted, serving(counted), layouts.get(role, "-")) for role, counted in gangs.items()),
        (names.ROLE_ROLLOUT, s.rollout, serving(s.rollout), policy),
        (names.ROLE_WORKER, s.workers, serving(s.workers), f"agents{calls(job, names.ROLE_WORKER)}"),
        *((role, counted, serving(counted), f"rewards{calls(job, role)}") for role, counted in s.scorers.items()),
        *((names.sandbox_role(i), sandboxes, "-", name) for i, (name, sandboxes) in enumerate(s.environments.items())),
        (names.ROLE_GATEWAY, s.gateway, "serving" if s.gateway.ready else "-", s.service.address or "-"),
        *((name, counted, serving(counted), models.get(name, "-")) for name, counted in pools.items()),
    ]
    cells = [
        (role, *(("-", "-") if released(job, pods) else (pods.text, gpus.get(role, "-"))), status, info)
        for role, pods, status, info in rows
        if role in gpus or role in gangs or role in pools
    ]
    stuck = [cut(stuck_line(pod, now), width) for pod in s.stuck_pods]
    halves = [cut(text, width) for text in stranded(job, now)]
    spares = [cut(spare_line(s.spares), width)] if s.spares.desired and s.state not in ENDED else []
    placed = placement.line(s.placement.report, width) if s.placement else []
    waiting = [cut(f"{'UNREADY':<{KEY}}{text}", width) for text in unready(job)]
    served = [cut(service_line(s.service), width)] if s.service.address else []
    used = gpu_hours(s.accounting, now, width)
    return [
        *table(("ROLE", "READY", "GPUS", "STATUS", "INFO"), cells, width).split("\n"),
        *spares,
        *served,
        *waiting,
        *placed,
        *used,
        *stuck,
        *halves,
    ]


def calls(job: Job, role: str) -> str:
    """Between which numbers of pods autoscaling decides, and what by, as the end of a line; empty: the number is fixed."""
    workers = job.spec.workers.get(role) if job.spec else None
    if workers is None or workers.autoscaling is None:
        return ""
    count = job.status.progress.worker_calls.get(role) if job.status.state == "Running" else None
    counted = f", {count} calls" if count is not None else ""
    return f", {workers.fewest} to {workers.replicas} pods{counted}"


def unready(job: Job) -> list[str]:
    """Servers of several pods that do not answer, each with the pod that it waits for."""
    texts = [one_line(text) for counted in (job.status.rollout, *job.status.pools.values()) for text in counted.unready]
    return [*texts[:UNREADY], *([f"and {len(texts) - UNREADY} more"] if texts[UNREADY:] else [])]


def service_line(service: ServiceStatus) -> str:
    """What clients of a service have, and what they wait for."""
    counts = f"{service.clients} clients, {service.models} models, {service.waiting} requests wait"
    tokens = f"tokens: {service.trained_tokens} trained, {service.sampled_tokens} sampled"
    other = f"; {service.mismatches} results differ that were repeated" if service.mismatches else ""
    return f"{'SERVICE':<{KEY}}{counts}; {tokens}{other}"


def spare_line(spares: SpareStatus) -> str:
    """How many spares could stand in now, and which members are beyond the first `trainer.nodes` ordinals."""
    pods = spares.standing_in
    more = f" and {len(pods) - STAND_INS} more" if pods[STAND_INS:] else ""
    named = f"; {', '.join(pods[:STAND_INS])}{more} {'stands' if len(pods) == 1 else 'stand'} in" if pods else ""
    return f"SPARES      {spares.warm}/{spares.desired} warm{named}"


def stuck_line(pod: StuckPod, now: datetime) -> str:
    """A pod that was deleted and does not end."""
    where = f" on {pod.node}" if pod.node else ""
    return f"STUCK         {pod.pod}{where}, should have ended {age(pod.since, now)} ago"


def stranded(job: Job, now: datetime) -> list[str]:
    """Of the gang and of servers of several pods: those of which a part holds nodes although others have none, or that have given these up."""
    s = job.status
    parts = [("the gang", s.stranded_since, s.released_until)]
    parts += [
        (names.server(job.name, one.role, one.index), one.stranded_since, one.released_until) for one in s.servers
    ]
    texts = [f"{name}, for {age(since, now)}" for name, since, _ in parts if since]
    texts += [f"{name}, released until {until}" for name, _, until in parts if until]
    more = [f"and {len(texts) - UNREADY} more"] if texts[UNREADY:] else []
    return [f"{'STRANDED':<{KEY}}{text}" for text in (*texts[:UNREADY], *more)]


def nodes(job: Job, width: int) -> list[str]:
    """Nodes that the job avoids, or needs although it should leave them, and why."""
    entries = [entry for entry in job.status.nodes if entry.state != "suspect"]
    lines = [cut(f"{entry.state.upper():<{KEY}}{_node(entry)}", width) for entry in entries[:NODES]]
    return [*lines, *([f"{'':<{KEY}}and {len(entries) - NODES} more nodes"] if entries[NODES:] else [])]


def grace(job: Job, width: int) -> list[str]:
    """What makes the job lose a step when it has to leave its nodes."""
    short = too_short(job.spec, Leaving.of(job.status.progress)) if job.spec and job.status.state not in ENDED else ()
    violation = next(iter(short), None)
    if violation is None:
        return []
    text = f"{violation.field} = {violation.value} {violation.rule}; {violation.fix}"
    return [cut(f"{'GRACE':<{KEY}}{text}", width)]


def unusual(job: Job, width: int) -> list[str]:
    """The first of the spec's unusual values, for who applied it by GitOps and never saw the plan, and how to see the others."""
    advice = planning.advised(job.spec) if job.spec and job.status.state not in ENDED else []
    if not advice:
        return []
    more = f"and {len(advice) - 1} more: " if advice[1:] else ""
    whole = f"{more}kubectl get rljob {job.name} -n {job.namespace} -o yaml | kubectl rljob plan -f -"
    return [cut(f"{'UNUSUAL':<{KEY}}{one_line(str(advice[0]))}", width), cut(f"{'':<{KEY}}{whole}", width)]


def _node(entry: NodeStatus) -> str:
    until = f" until {entry.until}" if entry.until else ""
    count = f"{len(entry.failures)} failures, {entry.cause}" if entry.failures else ""
    return one_line(f"{entry.node}{until}: {'; '.join(text for text in (entry.quarantine, count) if text)}")


def released(job: Job, pods: RoleStatus) -> bool:
    """Whether the job has ended or is suspended, and none of these pods is ready any more."""
    return job.status.state in WITHOUT_PODS and not pods.ready


def metrics(job: Job, now: datetime, width: int) -> list[str]:
    """The last step's, the course of reward or loss, the held-out score."""
    p = job.status.progress
    if not p.metrics and not p.history:
        return []
    reported = f"   (reported {age(p.updated_at, now)} ago)" if p.updated_at else ""
    last = line(p.metrics, p.history)
    lines = [cut(last + reported, width)] if last else []
    score = held_out(p)
    if len(p.history) > 1:
        lines.append(curve(p.history, width - len(score)) + score)
    elif lines:
        lines[-1] += score
    return [cut(line, width) for line in lines]


def held_out(p: ProgressStatus) -> str:
    """The first and the last score; empty before there are both."""
    if not {"first", "last"} <= p.evaluation.keys():
        return ""
    label, _ = course(p.history)
    first, last = (number(p.evaluation[key], FORMATS[label]) for key in ("first", "last"))
    return f"   HELD-OUT {'' if label == 'REWARD' else 'LOSS '}{first} → {last}"


def checkpoints(job: Job, width: int) -> list[str]:
    """Steps that `resume --from-step` takes, and the export."""
    kept = job.status.checkpoint.kept
    lines = []
    if kept:
        steps = ", ".join(str(c.step) for c in kept[-CHECKPOINTS:])
        where = f" in {job.spec.checkpoint.path}" if job.spec else ""
        lines.append(f"CHECKPOINTS   {'..., ' if len(kept) > CHECKPOINTS else ''}{steps}{where}")
    if job.status.progress.export:
        lines.append(f"EXPORT        {job.status.progress.export}")
    return [cut(line, width) for line in lines]


def failure(job: Job, now: datetime, width: int) -> list[str]:
    """Which attempt failed, where, and the root cause."""
    last = job.status.last_failure
    if last is None:
        return []
    place = where(last)
    head = f"LAST FAILURE   attempt {last.attempt}{since(last.time, now)}: {last.reason}{', ' + place if place else ''}"
    return [cut(head, width), *(root_cause(last, last.failure, width) if last.failure else [])]


def root_cause(last: LastFailure, cause: Failure, width: int) -> list[str]:
    """The exception (the message of a configuration error names the field) and the end of its traceback."""
    what = ": ".join(clip(part) for part in said(last, cause))
    traceback = [text for text in cause.lines if text.strip()][-TRACEBACK_LINES:]
    lines = [("  ", what), *(("    ", text) for text in traceback)]
    return [indent + clip(text, width - len(indent)) for indent, text in lines if text]


def last_events(events: Sequence[dict[str, Any]], room: int, now: datetime, width: int) -> list[str]:
    """The newest, first; as many as fit below a heading."""
    newest = sorted(events, key=_when, reverse=True)[: max(0, min(EVENTS, room - 1))]
    if not newest:
        return []
    rows = [(age(_when(e), now), e.get("reason") or "-", clip(e.get("message") or "-")) for e in newest]
    return ["LAST EVENTS", *columns(rows, width).split("\n")]


def _when(event: dict[str, Any]) -> str:
    """Time of an event's last occurrence, in a form that sorts."""
    series = event.get("series") or {}
    text = (
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"]["creationTimestamp"]
    )
    then = moment(text)
    return then.isoformat() if then else ""
