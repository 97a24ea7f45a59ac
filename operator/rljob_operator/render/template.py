"""A role's pods: the StatefulSet, its pod template, and the token of the rollout servers. The restricted Pod Security standard admits the templates.
The `template` of a role chooses a few settings; the rest is fixed here."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rljob_api import names
from rljob_api.pod_patch import NO_PATCH, PodPatch
from rljob_api.rules.volumes import volumes_of
from rljob_api.sizing.layout import server_nodes
from rljob_api.spec import RLJobSpec
from rljob_api.spec.agent import EnvironmentPool
from rljob_api.spec.common import Template
from rljob_api.status import JobStatus, RLJobMeta
from rljob_operator.model.children import metadata
from rljob_operator.model.scheduling import excluded
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.render.security import CONTAINER_SECURITY, field, pod_security, sandbox_pod, token_variable
from rljob_operator.schedulers import scheduler_of
from rljob_operator.schedulers.base import PodSettings, avoiding, has_gate


def pod_template(
    job: RLJobMeta,
    spec: RLJobSpec,
    role: str,
    token: int = 1,
    avoided: Collection[str] = (),
    patch: PodPatch = NO_PATCH,
) -> dict[str, Any]:
    """The template of a role's pods, with its own hash in an annotation, by which pods of a former template are recognised. `token`: status.token;
    `avoided`: nodes to which the job's scheduler must not bring a pod; `patch`: the administrator's."""
    template = patch.applied(_template(job, spec, role, token), role)
    _add_claims(template, spec.template(role).resource_claims)
    if avoided:
        template["spec"]["affinity"] = avoiding(template["spec"].get("affinity", {}), avoided)
    digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:16]
    template["metadata"]["annotations"] |= {names.ANNOTATION_TEMPLATE_HASH: digest}
    return template


def avoided_nodes(spec: RLJobSpec, status: JobStatus, now: float) -> frozenset[str]:
    """Nodes that the templates name. The `builtin` backend avoids them by its choice."""
    return frozenset() if spec.scheduling.facts.assigns_nodes else excluded(status, now)


def newest_templates(s: Snapshot, spec: RLJobSpec, status: JobStatus) -> Mapping[str, dict[str, Any]]:
    """The templates, by role, which are not to be changed. `spec`: the job's own or the published one. Computed once per snapshot: policies and
    `render` ask several times, and each time takes a third of a reconcile."""
    avoided = avoided_nodes(spec, status, s.now)
    key = (spec is s.published, status.token, avoided)
    if key not in s.templates:
        patch = s.policy.pod_patch
        s.templates[key] = {role: pod_template(s.job, spec, role, status.token, avoided, patch) for role in spec.pods}
    return s.templates[key]


def newest_hashes(s: Snapshot, spec: RLJobSpec, status: JobStatus) -> dict[str, str]:
    """Hashes of the templates, by role."""
    return {role: template_hash(template) for role, template in newest_templates(s, spec, status).items()}


def template_hash(template: Mapping[str, Any]) -> str:
    return str(template["metadata"]["annotations"][names.ANNOTATION_TEMPLATE_HASH])


def _template(job: RLJobMeta, spec: RLJobSpec, role: str, token: int) -> dict[str, Any]:
    t, grouped, is_sandbox = spec.template(role), not names.stays(role), names.is_sandbox_role(role)
    own = sandbox_pod if is_sandbox else _trusted_pod
    pod = own(job, spec, role, token) | {
        "enableServiceLinks": False,
        "imagePullSecrets": list(spec.image_pull_secrets),
        "nodeSelector": t.node_selector,
        "tolerations": list(t.tolerations),
        "affinity": t.affinity,
        "resourceClaims": list(t.resource_claims),
        "priorityClassName": t.priority_class_name,
        "schedulerName": spec.scheduling.scheduler_name or (grouped and spec.scheduling.facts.scheduler_name) or None,
        "securityContext": pod_security(spec),
        "schedulingGates": [{"name": names.GATE}] if has_gate(spec, role) else [],
    }
    scheduler = scheduler_of(spec).pod_settings(job, spec, role) if grouped else PodSettings()
    labels = t.labels | scheduler.labels | names.labels(job.name, role)
    nodes = server_nodes(spec, role)
    parts = {names.ANNOTATION_NODES: str(nodes)} if nodes > 1 else {}
    return {
        "metadata": {
            "labels": labels | ({names.LABEL_SANDBOX: "true"} if is_sandbox else {}),
            "annotations": t.annotations | scheduler.annotations | parts,
        },
        "spec": {k: v for k, v in (pod | scheduler.pod).items() if v not in (None, [], {})},
    }


def _trusted_pod(job: RLJobMeta, spec: RLJobSpec, role: str, token: int) -> dict[str, Any]:
    """What a pod has that is no sandbox."""
    return {
        "serviceAccountName": names.pods(job.name),
        "automountServiceAccountToken": True,
        "terminationGracePeriodSeconds": spec.template(role).termination_grace_period_seconds,
        "runtimeClassName": spec.runtime_class_name,
        "containers": [_container(job, spec, role, token)],
        "volumes": _volumes(spec, role),
    }


def _container(job: RLJobMeta, spec: RLJobSpec, role: str, token: int) -> dict[str, Any]:
    t = spec.template(role)
    container = {
        "name": names.container(role),
        "image": t.image or spec.image,
        "imagePullPolicy": spec.image_pull_policy,
        "command": ["python", "-m", "rljob_trainer", *_command(role)],
        "env": _env(job, spec, t, token),
        "envFrom": list(spec.env_from),
        "resources": spec.container_resources(role),
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",  # the first process writes why it fails to the log, and nowhere else
        "volumeMounts": _mounts(spec, role),
    }
    if role == names.ROLE_GATEWAY:
        container |= _serving(names.GATEWAY_PORT, names.GATEWAY_WORK_PORT)
    elif not names.is_model_role(role):
        container |= _serving(names.ROLLOUT_PORT, names.ROLLOUT_PORT)
    return {k: v for k, v in container.items() if v not in ([], {})}


def _add_claims(template: dict[str, Any], claims: Sequence[Mapping[str, Any]]) -> None:
    """Gives the container the devices of the spec, next to those of the administrator's patch, which replaces the list as a whole."""
    container = template["spec"]["containers"][0]
    resources = container.get("resources", {})
    given = resources.get("claims", [])
    known = {one["name"] for one in given}
    added = [{"name": claim["name"]} for claim in claims if claim["name"] not in known]
    if added:
        container["resources"] = resources | {"claims": [*given, *added]}


def _command(role: str) -> list[str]:
    if names.is_model_role(role):
        return ["launch"]
    if role in (names.ROLE_ROLLOUT, names.ROLE_GATEWAY):
        return [role]
    return ["worker" if names.is_worker_role(role) else "pool", role]


def _serving(port: int, probed: int) -> dict[str, Any]:
    """The port and the readiness probe of a server, of workers, or of a gateway. No liveness probe: loading may take long, and a failed probe only
    keeps traffic away."""
    probe = {
        "httpGet": {"path": "/health", "port": probed},
        "periodSeconds": 2,
        "timeoutSeconds": 5,
        "failureThreshold": 3,
    }
    return {"ports": [{"name": "http", "containerPort": port}], "readinessProbe": probe}


def _env(job: RLJobMeta, spec: RLJobSpec, t: Template, number: int) -> list[dict[str, Any]]:
    """Environment variables, each name once: the role's win over the job's, and those over our defaults. Validation refuses our own names in a
    spec."""
    entries: list[dict[str, Any]] = [
        {"name": "HOME", "value": "/tmp"},  # the root file system is read-only
        {"name": "USER", "value": "rljob"},  # getpass fails for a user id that the image's passwd lacks
        {"name": "PYTHONUNBUFFERED", "value": "1"},
        *(e.dump() for e in (*spec.env, *t.env)),
        {"name": names.ENV_JOB, "value": job.name},
        {"name": names.ENV_NAMESPACE, "valueFrom": field("metadata.namespace")},
        {"name": names.ENV_POD_NAME, "valueFrom": field("metadata.name")},
        {"name": names.ENV_POD_UID, "valueFrom": field("metadata.uid")},
        {"name": names.ENV_POD_IP, "valueFrom": field("status.podIP")},
        {"name": names.ENV_WORK, "value": names.WORK_DIR},
        *([token_variable(job, number)] if spec.has_token else []),
    ]
    return list({e["name"]: e for e in entries}.values())


def _volumes(spec: RLJobSpec, role: str) -> list[dict[str, Any]]:
    settings = spec.pods[role]
    assert not isinstance(settings, EnvironmentPool)
    return [
        {"name": "rljob-work", "emptyDir": {}},
        {"name": "rljob-tmp", "emptyDir": {}},
        {"name": "rljob-shm", "emptyDir": {"medium": "Memory", "sizeLimit": settings.shm_size}},
        *({"name": v.name, **v.source} for v in volumes_of(spec, role)),
    ]


def _mounts(spec: RLJobSpec, role: str) -> list[dict[str, Any]]:
    return [
        {"name": "rljob-work", "mountPath": names.WORK_DIR},
        {"name": "rljob-tmp", "mountPath": "/tmp"},
        {"name": "rljob-shm", "mountPath": "/dev/shm"},
        *({"name": v.name, "mountPath": v.mount_path, "readOnly": v.read_only} for v in volumes_of(spec, role)),
    ]


def stateful_set(job: RLJobMeta, role: str, replicas: int, template: Mapping[str, Any]) -> dict[str, Any]:
    """A role's StatefulSet. It creates all pods at once (Parallel) and replaces none when the template changes (OnDelete): attempts decide when.

    There is no Service of that name, because pods find each other by address. Each would cost the cluster ten writes while a gang of four starts.
    """
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(job, names.gang(job.name, role), role),
        "spec": {
            "replicas": replicas,
            "serviceName": names.pods(job.name),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": names.labels(job.name, role)},
            "template": template,
        },
    }


def resized(job: RLJobMeta, live: Mapping[str, Any], role: str, replicas: int) -> dict[str, Any]:
    """A live StatefulSet with another number of replicas."""
    spec = live["spec"] | {"replicas": replicas}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(job, names.gang(job.name, role), role),
        "spec": spec,
    }


def token(job: RLJobMeta, value: str, number: int = 1) -> dict[str, Any]:
    """The Secret with the rollout servers' token. We may create it but not read it: an existing one is this job's, since its name has the job's
    uid."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, names.token(job.name, job.uid, number)),
        "stringData": {names.TOKEN_KEY: value},
        "immutable": True,
    }
