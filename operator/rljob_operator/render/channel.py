"""The two kinds of ConfigMaps through which operator and launchers talk: see rljob_api/protocol.py."""

from typing import Any

from rljob_api import names, reasons
from rljob_api.protocol import Control, GangAddress, Resume, RolloutEndpoint, SandboxAddress
from rljob_api.sizing.layout import server_nodes
from rljob_api.spec import RLJobSpec
from rljob_api.status import Attempt, JobStatus, RLJobMeta
from rljob_api.text import http_url, join_host_port
from rljob_operator.cache.pods import Pod
from rljob_operator.model.children import metadata
from rljob_operator.model.ordinals import answering_head, gateway_pod, group
from rljob_operator.model.snapshot import Snapshot


def report(job: RLJobMeta, role: str, name: str) -> dict[str, Any]:
    """A pod's report, created empty so that the launcher needs no right to create ConfigMaps. Its data belongs to the launcher."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(job, name, role)}


def control(s: Snapshot, status: JobStatus, spec: RLJobSpec) -> dict[str, Any]:
    message = control_message(s, status, spec)
    text = message.dump_json()
    s.messages[text] = message
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(s.job, names.control(s.job.name)),
        "data": {names.CONTROL_KEY: text},
    }


def control_message(s: Snapshot, status: JobStatus, spec: RLJobSpec) -> Control:
    """What the launchers have to do: run, drain or stop the attempt in the status.

    Members that still run an attempt that has ended are commanded to stop it.
    """
    attempt, last = status.attempt or Attempt(number=0, ended_at="never started"), status.last_failure
    return Control(
        name=s.job.name,
        namespace=s.job.namespace,
        job_uid=s.job.uid,
        attempt=attempt.number,
        command="stop" if attempt.ended_at else attempt.command,
        members=attempt.members,
        gangs={
            m.role: GangAddress(address=m.address, master_port=names.master_port(attempt.number))
            for m in attempt.members
            if m.node_rank == 0
        },
        service_port=names.service_port(attempt.number) if spec.has_service else 0,
        resume=Resume(policy=spec.checkpoint.resume, step=attempt.resume_step, saved=attempt.saved_step),
        failed_attempt=last.attempt if last and last.reason in reasons.COUNTED else 0,
        rollouts=[] if attempt.ended_at else _answering(s, status, spec, names.ROLE_ROLLOUT),
        pools={}
        if attempt.ended_at
        else {pool.name: _answering(s, status, spec, pool.name) for pool in spec.asked_pools},
        sandboxes={} if attempt.ended_at else _free(s, spec),
        gateway=_gateway(s, status),
        gateway_number=status.gateway_number,
        servers=[group(s.job.name, server) for server in status.servers if server.parts],
        spec=spec,
    )


def _free(s: Snapshot, spec: RLJobSpec) -> dict[str, list[SandboxAddress]]:
    """Sandboxes that nobody has claimed, by environment: those that have been claimed are not ready."""
    pods = {pool.name: s.of(names.sandbox_role(i)) for i, pool in enumerate(spec.environments)}
    return {
        name: [
            SandboxAddress(pod_uid=p.uid, address=join_host_port(p.ip, names.ROLLOUT_PORT))
            for p in sandboxes
            if _answers(p) and not p.exited
        ]
        for name, sandboxes in pods.items()
    }


def _gateway(s: Snapshot, status: JobStatus) -> str:
    """Where the driver asks for work. The pod need not be ready: it serves once it reads that it is the one."""
    pod = gateway_pod(s, status)
    return http_url(pod.ip, names.GATEWAY_WORK_PORT) if pod else ""


def _answering(s: Snapshot, status: JobStatus, spec: RLJobSpec, role: str) -> list[RolloutEndpoint]:
    """Endpoints of the servers that are ready. Only the trainer knows which rollouts have the current policy."""
    if server_nodes(spec, role) > 1:
        heads = (answering_head(s, one) for one in status.servers if one.role == role)
        pods = [head for head in heads if head]
    else:
        pods = [p for p in s.of(role) if _answers(p)]
    return [RolloutEndpoint(pod=p.name, pod_uid=p.uid, url=http_url(p.ip, names.ROLLOUT_PORT)) for p in pods]


def _answers(pod: Pod) -> bool:
    return pod.ready and bool(pod.ip) and not pod.deleting and pod.lost_since is None
