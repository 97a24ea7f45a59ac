"""What the process serves over HTTP: /metrics and /healthz.

Prometheus metrics at /metrics: of the operator itself, and of every job, read from the caches at each scrape, so that nothing is counted twice.
Of several operators only the one that holds the lease reports jobs, and not before it has listed them: until then its cache is incomplete, as those
of the others are, and sums would count jobs twice.

/healthz, the liveness probe: it fails when the operator does not ask for its lease any more, or when a job has waited too long for a worker.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from aiohttp import web
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rljob_api.accounting import goodput
from rljob_api.callbacks import always
from rljob_api.status import JobStatus, RoleStatus
from rljob_api.status_parts import ServerStatus
from rljob_operator.cache.cluster import CachedJob, ClusterCache
from rljob_operator.kube.api import Key
from rljob_operator.reconcile.queue import Reconcile
from rljob_operator.times import seconds

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of the histogram of reconciles, in seconds."""
PER_JOB: Mapping[str, tuple[str, Callable[[CachedJob, JobStatus], float | None]]] = {
    "rljob_job_step": ("Steps done", lambda job, s: s.progress.step),
    "rljob_job_steps": ("Steps wanted", lambda job, s: s.progress.steps),
    "rljob_job_attempt": ("Number of the newest attempt", lambda job, s: s.attempt.number if s.attempt else 0),
    "rljob_job_attempt_timestamp_seconds": (
        "When the newest attempt was opened",
        lambda job, s: seconds(s.attempt.started_at) if s.attempt else None,
    ),
    "rljob_job_checkpoint_timestamp_seconds": (
        "When the newest complete checkpoint was written",
        lambda job, s: (s.checkpoint.latest.time or None) if s.checkpoint.latest else None,
    ),
    "rljob_job_restarts": ("Restarts of the gang, for whatever reason", lambda job, s: s.restarts.total),
    "rljob_job_lost_steps": ("Steps that were done and had to be done again", lambda job, s: s.lost_steps),
    "rljob_job_goodput_ratio": (
        "GPU-seconds in steps that were kept, of all that were held",
        lambda job, s: goodput(s.accounting.gpu_seconds),
    ),
    "rljob_job_first_step_seconds": ("From the job's creation to its first step", lambda job, s: _first_step(job, s)),
    "rljob_job_stuck_pods": (
        "Pods that were deleted and do not end, up to those that status.stuckPods names",
        lambda job, s: len(s.stuck_pods),
    ),
    "rljob_job_pods": (
        "Pods that the spec asks for, spares included, which jobs.maxPods of the chart limits",
        lambda job, s: _pods(job),
    ),
    "rljob_job_spares": ("Spare pods of the trainer that there should be", lambda job, s: s.spares.desired),
    "rljob_job_warm_spares": ("Spare pods of the trainer that can stand in at once", lambda job, s: s.spares.warm),
    "rljob_job_ready_trainers": ("Trainer pods that are ready", lambda job, s: s.trainer.ready),
    "rljob_job_ready_rollouts": (
        "Rollout servers that are ready",
        lambda job, s: s.rollout.ready if s.rollout.text else None,
    ),
    "rljob_job_ready_workers": (
        "Pods that run agents and are ready",
        lambda job, s: s.workers.ready if s.workers.desired else None,
    ),
    "rljob_job_workers": (
        "Pods that run agents that there should be",
        lambda job, s: s.workers.desired if s.workers.desired else None,
    ),
    "rljob_job_gateway_ready": (
        "Whether the gateway of a service answers",
        lambda job, s: s.gateway.ready if s.gateway.desired else None,
    ),
    "rljob_job_service_clients": ("Sessions of a service's clients", lambda job, s: _of_service(s, s.service.clients)),
    "rljob_job_service_models": ("Models that clients train", lambda job, s: _of_service(s, s.service.models)),
    "rljob_job_service_waiting": (
        "Requests of clients that wait for trainers or rollouts",
        lambda job, s: _of_service(s, s.service.waiting),
    ),
    "rljob_job_service_trained_tokens": (
        "Tokens of training that the gateway has answered since its process began",
        lambda job, s: _of_service(s, s.service.trained_tokens),
    ),
    "rljob_job_service_sampled_tokens": (
        "Tokens that were sampled for clients since the gateway's process began",
        lambda job, s: _of_service(s, s.service.sampled_tokens),
    ),
    "rljob_job_service_mismatches": (
        "Requests that had another result when they were repeated after a failure, since the gateway's process began",
        lambda job, s: _of_service(s, s.service.mismatches),
    ),
}
"""By metric name: its help text, and its value for a job; None: not known yet, or the task has none."""
PER_JOB_AND_LABEL: Mapping[str, tuple[str, str, Callable[[JobStatus], Mapping[str, float]]]] = {
    "rljob_job_state": ("1 for the job's state", "state", lambda s: {s.state: 1}),
    "rljob_job_nodes": (
        "Nodes that failures point at or that their owner wants to be left",
        "state",
        lambda s: Counter(entry.state for entry in s.nodes),
    ),
    "rljob_job_stranded": (
        "The gang, and servers of several pods, of which only a part has nodes (holding), or that have given these up (released)",
        "state",
        lambda s: _stranded(s),
    ),
    "rljob_job_ready_pool_servers": ("Servers of a pool that are ready", "pool", lambda s: _ready(s.pools)),
    "rljob_job_ready_scorers": (
        "Pods that run a reward function and are ready",
        "role",
        lambda s: _ready(s.scorers),
    ),
    "rljob_job_worker_calls": (
        "Calls that run in worker pods or wait for them, where autoscaling counts them, as of at most 30 s before",
        "role",
        lambda s: s.progress.worker_calls,
    ),
    "rljob_job_ready_gang_pods": ("Pods of another model's gang that are ready", "role", lambda s: _ready(s.gangs)),
    "rljob_job_metric": ("The last step's metrics, by their names", "metric", lambda s: s.progress.metrics),
}
"""By metric name: its help text, a further label, and the values for a job, by that label."""


class Metrics:
    """`calls`: counts of requests, by verb and kind; `events`: counts of watch events, by kind; `lag`: see WorkQueue.lag; `clock`: seconds since the
    epoch; `leads`: see LeaderElector.is_leader; `listed`: see Relist.listed."""

    def __init__(
        self,
        cache: ClusterCache,
        calls: Mapping[tuple[str, str], int],
        lag: Callable[[], float],
        events: Mapping[str, int],
        clock: Callable[[], float] = time.time,
        leads: Callable[[], bool] = always,
        listed: Callable[[], bool] = always,
    ) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Observed(cache, calls, lag, events, clock, leads, listed))
        self.reconcile = Histogram(
            "rljob_reconcile_seconds", "Duration of one reconcile of a job", buckets=BUCKETS, registry=self._registry
        )

    def timed(self, reconcile: Reconcile) -> Reconcile:
        async def one(key: Key) -> float | None:
            with self.reconcile.time():
                return await reconcile(key)

        return one

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def families(self) -> Iterable[Metric]:
        """All metrics, with what they say now."""
        return self._registry.collect()


class _Observed(Collector):
    """Read from the cache at every scrape."""

    def __init__(
        self,
        cache: ClusterCache,
        calls: Mapping[tuple[str, str], int],
        lag: Callable[[], float],
        events: Mapping[str, int],
        clock: Callable[[], float],
        leads: Callable[[], bool],
        listed: Callable[[], bool],
    ) -> None:
        self._cache, self._calls, self._lag, self._events, self._clock = cache, calls, lag, events, clock
        self._leads, self._listed = leads, listed

    def collect(self) -> Iterator[Metric]:
        yield from self._of_the_operator()
        if self._leads() and self._listed():
            yield from self._of_jobs()

    def _of_the_operator(self) -> Iterator[Metric]:
        calls = CounterMetricFamily("rljob_api_requests", "Requests to the API server", labels=["verb", "kind"])
        for (verb, kind), count in self._calls.items():
            calls.add_metric([verb, kind], count)
        yield calls
        events = CounterMetricFamily("rljob_watch_events", "Changes that the API server has reported", labels=["kind"])
        for kind, count in self._events.items():
            events.add_metric([kind], count)
        yield events
        yield GaugeMetricFamily(
            "rljob_queue_lag_seconds", "How long the most overdue job waits for a worker", self._lag()
        )
        yield GaugeMetricFamily(
            "rljob_operator_leader",
            "1: this operator holds the lease and acts; 0: it waits for it",
            float(self._leads()),
        )

    def _of_jobs(self) -> Iterator[Metric]:
        statuses = ((job, job.readable_status) for job in self._cache.jobs.values())
        jobs = [(job, status) for job, status in statuses if status]
        yield _by_state(status for _, status in jobs)
        for name, (sentence, value) in PER_JOB.items():
            yield _gauge(name, sentence, ((job, value(job, status)) for job, status in jobs))
        for name, (sentence, label, values) in PER_JOB_AND_LABEL.items():
            yield _series(name, sentence, label, ((job, values(status)) for job, status in jobs))
        yield from _accounts([(job, status) for job, status in jobs if status.accounting.until], self._clock())


def _by_state(statuses: Iterator[JobStatus]) -> Metric:
    counts: dict[str, int] = {}
    for status in statuses:
        counts[status.state] = counts.get(status.state, 0) + 1
    metric = GaugeMetricFamily("rljob_jobs", "Jobs by state", labels=["state"])
    for state, count in counts.items():
        metric.add_metric([state], count)
    return metric


def _gauge(name: str, sentence: str, values: Iterator[tuple[CachedJob, float | None]]) -> Metric:
    metric = GaugeMetricFamily(name, sentence, labels=["namespace", "rljob"])
    for job, value in values:
        if value is not None:
            metric.add_metric([job.meta.namespace, job.meta.name], value)
    return metric


def _series(
    name: str,
    sentence: str,
    label: str,
    values: Iterator[tuple[CachedJob, Mapping[str, float]]],
) -> Metric:
    metric = GaugeMetricFamily(name, sentence, labels=["namespace", "rljob", label])
    for job, by_label in values:
        for key, value in by_label.items():
            metric.add_metric([job.meta.namespace, job.meta.name, key], value)
    return metric


def _accounts(jobs: Iterable[tuple[CachedJob, JobStatus]], now: float) -> Iterator[Metric]:
    """GPUs and GPU-seconds of jobs that have held some, up to now."""
    labels = ["namespace", "rljob", "queue"]
    held = GaugeMetricFamily("rljob_job_gpus", "GPUs that the job's pods hold", labels=labels)
    spent = GaugeMetricFamily("rljob_job_gpu_seconds", "GPU-seconds held, by what for", labels=[*labels, "phase"])
    for job, status in jobs:
        spec, known = job.validation.so_far.accepted, status.accounting
        whose = [job.meta.namespace, job.meta.name, (spec and spec.scheduling.queue) or ""]
        held.add_metric(whose, known.gpus)
        for phase, amount in known.at(now - seconds(known.until)).items():
            spent.add_metric([*whose, phase], amount)
    yield from (held, spent)


def _pods(job: CachedJob) -> float | None:
    """None: the spec is not valid, or has not been validated yet."""
    spec = job.validation.so_far.accepted
    return sum(spec.pod_counts.values()) if spec else None


def _stranded(status: JobStatus) -> Mapping[str, float]:
    parts: list[JobStatus | ServerStatus] = [status, *status.servers]
    return {
        "holding": sum(bool(part.stranded_since) for part in parts),
        "released": sum(bool(part.released_until) for part in parts),
    }


def _of_service(status: JobStatus, value: float) -> float | None:
    """None: the job is no service."""
    return value if status.service.address else None


def _ready(counted: Mapping[str, RoleStatus]) -> Mapping[str, float]:
    return {name: pods.ready for name, pods in counted.items()}


def _first_step(job: CachedJob, s: JobStatus) -> float | None:
    return seconds(s.first_step_at) - seconds(job.meta.creation_timestamp) if s.first_step_at else None


LIMIT = 180.0
"""Seconds without a request for the lease, or of a job's wait, after which the process should be restarted."""


class HealthCheck:
    """An API server that does not answer is no reason to restart this process, so a request for the lease counts whatever its result."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def heartbeat(self) -> None:
        """The lease has just been asked for."""
        self._last = time.monotonic()

    def problem(self, lag: float) -> str:
        """Why the process should be restarted; empty: it is healthy. `lag`: see WorkQueue.lag."""
        silence = time.monotonic() - self._last
        if silence > LIMIT:
            return f"the lease has not been asked for for {silence:.0f} s"
        return f"a job has been waiting for {lag:.0f} s" if lag > LIMIT else ""


async def serve(port: int, problem: Callable[[], str], metrics: Callable[[], bytes]) -> web.AppRunner:
    """Serves /healthz and /metrics on all addresses."""

    async def healthz(_: web.Request) -> web.Response:
        why = problem()
        return web.Response(text=why or "ok", status=503 if why else 200)

    async def prometheus(_: web.Request) -> web.Response:
        return web.Response(body=metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/metrics", prometheus)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner
