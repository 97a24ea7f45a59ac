"""Kubernetes' strategic merge patch, of pod templates: maps are merged key by key, and lists of named entries entry by entry."""

from collections.abc import Mapping
from typing import Any

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
