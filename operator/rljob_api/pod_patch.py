"""What only the administrator adds to the pods of jobs (`jobs.podPatch` of the chart): strategic merge patches of pod templates, by kind of role.

In such a patch maps are merged key by key, and lists of named entries entry by entry.
"""

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

from pydantic import ValidationInfo, field_validator

from rljob_api import names
from rljob_api.backends import POD_KEYS
from rljob_api.base import Model
from rljob_api.spec.common import Verbatim

MERGE_KEYS = {
    "containers": "name",
    "env": "name",
    "evictionResponders": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "resourceClaims": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Lists of a pod template that are merged, and the key that tells their entries apart (`patchMergeKey` of k8s.io/api/core/v1). A patch replaces all
other lists as a whole."""
DIRECTIVE = "$patch"
"""Key of a map or an entry that says what becomes of it: `delete`; or, of a map, `replace` with what it holds besides."""


def merged(live: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """The map with the patch applied; null removes a key."""
    if patch.get(DIRECTIVE) in ("delete", "replace"):
        return {k: v for k, v in patch.items() if k != DIRECTIVE and patch[DIRECTIVE] == "replace"}
    result = dict(live)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _value(key, result.get(key), value)
    return result


def _value(key: str, live: Any, patch: Any) -> Any:
    if isinstance(patch, Mapping):
        return merged(live if isinstance(live, Mapping) else {}, patch)
    if isinstance(patch, list) and key in MERGE_KEYS:
        return _entries(live or [], patch, MERGE_KEYS[key])
    return patch


def _entries(live: list[Any], patch: list[Any], name: str) -> list[Any]:
    """The entries of both, `name` telling them apart: those of the patch in its order, and each of the others before the first entry of the patch
    that follows it in the live list."""
    place = {entry[name]: i for i, entry in enumerate(live)}
    named = {entry[name] for entry in patch}
    rest = [entry for entry in live if entry[name] not in named]
    result = []
    for entry in (entry for entry in patch if entry.get(DIRECTIVE) != "delete"):
        while rest and place[rest[0][name]] < place.get(entry[name], 0):
            result.append(rest.pop(0))
        result.append(merged(live[place[entry[name]]] if entry[name] in place else {}, entry))
    return result + rest


PLANNED = "has a field of its own in specs and defaults, which placement reads"
OURS = "belongs to the operator"
POD = {
    "activeDeadlineSeconds": "would end pods in the middle of an attempt: jobs have lifecycle.activeDeadlineSeconds",
    "affinity": PLANNED,
    "automountServiceAccountToken": OURS,
    "enableServiceLinks": OURS,
    "ephemeralContainers": "is no part of a pod template",
    "hostname": OURS,
    "hostnameOverride": OURS,
    "nodeName": OURS,
    "nodeSelector": PLANNED,
    "overhead": "is set by the RuntimeClass",
    "preemptionPolicy": "is set by the PriorityClass",
    "priority": "is set by the PriorityClass",
    "priorityClassName": PLANNED,
    "resources": PLANNED,
    "restartPolicy": OURS,
    "runtimeClassName": PLANNED,
    "schedulerName": PLANNED,
    "schedulingGates": OURS,
    "schedulingGroup": OURS,
    "serviceAccount": OURS,
    "serviceAccountName": OURS,
    "subdomain": OURS,
    "terminationGracePeriodSeconds": "has a field of its own in specs",
    "tolerations": PLANNED,
}
"""Fields of a pod's spec that no patch sets, and why."""
PATCHED = frozenset(
    {
        *("containers", "initContainers", "volumes", "resourceClaims", "imagePullSecrets", "securityContext"),
        *("dnsConfig", "dnsPolicy", "hostAliases", "hostIPC", "hostNetwork", "hostPID", "hostUsers"),
        *(
            "evictionResponders",
            "os",
            "readinessGates",
            "setHostnameAsFQDN",
            "shareProcessNamespace",
            "topologySpreadConstraints",
        ),
    }
)
"""Those that a patch may set: with POD, all that Kubernetes 1.37 has."""
RESERVED = POD_KEYS | {names.LABEL_MANAGED_BY}
"""Labels and annotations that no patch sets, besides those of our group."""
CONTAINER = ("name", "env", "envFrom", "resources", "securityContext", "volumeDevices", "volumeMounts")
"""Fields of our container that a patch may set; of its resources, only the claims: placement reads the rest from the spec."""
CONTAINERS = {
    "models": names.TRAINER_CONTAINER,
    "rollout": names.ROLLOUT_CONTAINER,
    "pools": names.POOL_CONTAINER,
    "workers": names.WORKER_CONTAINER,
    "sandboxes": names.SANDBOX_CONTAINER,
    "gateway": names.GATEWAY_CONTAINER,
}
"""Name of the container in pods that each patch is for. That of all pods has no name."""
MOUNTS = (names.WORK_DIR, "/tmp", "/dev/shm")


def _problems(patch: Mapping[str, Any], container: str) -> Iterator[tuple[str, str]]:
    """Path of each field that no patch may set, and why. `container`: the name of ours; empty: it has none."""
    for key, part in patch.items():
        if key not in ("metadata", "spec") or not isinstance(part, dict):
            yield key, "is no part of a pod template: write metadata or spec, with fields of its own"
        elif key == "metadata":
            yield from _of_metadata(part)
        else:
            yield from _of_spec(part, container)


def _of_metadata(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in metadata.items():
        if key not in ("labels", "annotations") or not isinstance(value, dict):
            yield f"metadata.{key}", "is neither labels nor annotations, by their names"
            continue
        for name, text in value.items():
            if name == DIRECTIVE or name.startswith(f"{names.GROUP}/") or name in RESERVED:
                yield f"metadata.{key}.{name}", OURS
            elif not isinstance(text, str | None):
                yield f"metadata.{key}.{name}", "is no text: put it into quotes"


def _of_spec(spec: Mapping[str, Any], container: str) -> Iterator[tuple[str, str]]:
    for key in spec:
        if key == DIRECTIVE or key in POD:
            yield f"spec.{key}", POD.get(key, OURS)
        elif not key.startswith("$") and key not in PATCHED:
            yield f"spec.{key}", "is no field of a pod's spec"
    yield from _of_entries(spec, "spec")
    for i, entry in enumerate(spec.get("containers", [])):
        yield from _of_container(entry, container, f"spec.containers[{i}]")


def _of_entries(value: Mapping[str, Any], at: str) -> Iterator[tuple[str, str]]:
    """Entries of merged lists that cannot be told apart, that are ours, or with directives that we do not know."""
    for key, inner in value.items():
        where = f"{at}.{key}"
        if key.startswith("$") and (key != DIRECTIVE or inner not in ("delete", "replace")):
            yield where, f"is no directive: {DIRECTIVE} may be delete or replace"
        elif key in MERGE_KEYS and not isinstance(inner, list):
            yield where, f"is no list of entries, each with its {MERGE_KEYS[key]}"
        elif isinstance(inner, dict):
            yield from _of_entries(inner, where)
        elif isinstance(inner, list):
            yield from _of_list(key, inner, where)


def _of_list(key: str, entries: list[Any], at: str) -> Iterator[tuple[str, str]]:
    """Each entry; and those that would be one for kubectl, which compares them by one field only, or would replace the list."""
    known = set[str]()
    for i, entry in enumerate(entries):
        yield from _of_entry(key, entry, f"{at}[{i}]")
        if not isinstance(entry, dict):
            continue
        if DIRECTIVE in entry and (key not in MERGE_KEYS or entry[DIRECTIVE] != "delete"):
            yield f"{at}[{i}].{DIRECTIVE}", "may only be delete here, in a list that is merged entry by entry"
        name = str(entry.get(MERGE_KEYS.get(key, "")))
        if key in MERGE_KEYS and name in known:
            yield f"{at}[{i}]", f"has the {MERGE_KEYS[key]} of another entry: write one of them"
        known.add(name)


def _of_entry(key: str, entry: Any, at: str) -> Iterator[tuple[str, str]]:
    if key in MERGE_KEYS and not (isinstance(entry, dict) and entry.get(MERGE_KEYS[key])):
        yield at, f"has no {MERGE_KEYS[key]}"
    elif key in MERGE_KEYS and _is_ours(at, key, str(entry[MERGE_KEYS[key]])):
        yield at, OURS
    elif isinstance(entry, dict):
        yield from _of_entries(entry, at)


def _is_ours(at: str, key: str, name: str) -> bool:
    """Whether an entry of a list is one of the operator's. Init containers have variables and mounts of their own."""
    if key == "volumes":
        return name.startswith("rljob-")
    if not at.startswith("spec.containers"):
        return False
    reserved = name in names.RESERVED_ENV or name.startswith(names.RESERVED_ENV_PREFIXES)
    return (key == "env" and reserved) or (key == "volumeMounts" and name in MOUNTS)


def _of_container(entry: Mapping[str, Any], ours: str, at: str) -> Iterator[tuple[str, str]]:
    if not ours:
        yield (
            at,
            "has another name in each kind of pods: write it into models, rollout, pools, workers, sandboxes or gateway",
        )
    elif entry.get("name") != ours:
        yield at, f"is not {ours}: add others as initContainers, with restartPolicy Always if they run on"
    for key in entry:
        if key not in CONTAINER:
            yield f"{at}.{key}", OURS
    resources = entry.get("resources", {})
    if not isinstance(resources, dict) or resources.keys() - {"claims"}:
        yield f"{at}.resources", f"{PLANNED}, but for its claims"


class PodPatch(Model):
    """Patches of pod templates, each with `metadata` and `spec`."""

    all: Verbatim = {}
    """For every pod; the others are applied after it."""
    models: Verbatim = {}
    """For pods of the trainer and of gangs of other models."""
    rollout: Verbatim = {}
    """For rollout pods."""
    pools: Verbatim = {}
    """For pods of pools."""
    workers: Verbatim = {}
    """For pods that run agents."""
    sandboxes: Verbatim = {}
    """For pods of environments."""
    gateway: Verbatim = {}
    """For gateways of services."""

    @field_validator("all", "models", "rollout", "pools", "workers", "sandboxes", "gateway")
    @classmethod
    def _checked(cls, patch: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        for path, why in _problems(patch, CONTAINERS.get(str(info.field_name), "")):
            raise ValueError(f"{path} {why}")
        return patch

    def applied(self, template: Mapping[str, Any], role: str) -> dict[str, Any]:
        """The template of a role's pods with the patches."""
        return reduce(merged, (self.all, self._of(role)), dict(template))

    def _of(self, role: str) -> dict[str, Any]:
        if names.is_model_role(role):
            return self.models
        if names.is_sandbox_role(role):
            return self.sandboxes
        if names.is_worker_role(role):
            return self.workers
        own = {names.ROLE_ROLLOUT: self.rollout, names.ROLE_GATEWAY: self.gateway}
        return own.get(role, self.pools)


NO_PATCH = PodPatch()
