"""What the ResourceClaims of a job's pods take of their nodes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rljob_api.pod_patch import PodPatch
from rljob_api.quantity import Resources, add
from rljob_api.sizing.layout import placed_pods
from rljob_api.spec import RLJobSpec
from rljob_placement.devices import Devices


@dataclass(frozen=True, slots=True)
class Claimed:
    """Devices that each pod of a role takes, besides what its containers request."""

    by_role: Mapping[str, Resources] = field(default_factory=dict)
    problem: str = ""
    """Why they cannot be counted; empty: they can."""


def claims_of(spec: RLJobSpec, role: str, patch: PodPatch) -> list[Mapping[str, Any]]:
    """`resourceClaims` of a role's pods, also those that the administrator adds."""
    own = list(spec.template(role).resource_claims)
    found: list[Mapping[str, Any]] = patch.applied({"spec": {"resourceClaims": own}}, role)["spec"]["resourceClaims"]
    return found


def extended(spec: RLJobSpec, role: str) -> Iterator[str]:
    """Extended resources that a role's pods request, which may stand for devices."""
    given = spec.container_resources(role)
    yield from (name for name in {**given.get("requests", {}), **given.get("limits", {})} if "/" in name)


def uses_devices(spec: RLJobSpec, patch: PodPatch, offered: Callable[[str], bool]) -> bool:
    """Whether pods have claims, or request extended resources that no node offers without devices. `offered`: as of `claimed`."""
    roles = placed_pods(spec)
    return any(claims_of(spec, role, patch) or not all(map(offered, extended(spec, role))) for role in roles)


def claimed(
    spec: RLJobSpec, patch: PodPatch, namespace: str, devices: Devices, offered: Callable[[str], bool]
) -> Claimed:
    """`namespace`: of the job. `offered`: whether some node offers a resource without these devices."""
    found = dict[str, Resources]()
    for role in placed_pods(spec):
        for claim in claims_of(spec, role, patch):
            amounts = _amounts(claim, namespace, devices)
            if isinstance(amounts, str):
                return Claimed(problem=f"the builtin backend cannot count the devices of {role} pods: {amounts}")
            found[role] = add(found.get(role, {}), amounts)
        uncounted = (name for name in extended(spec, role) if name in devices.refused and not offered(name))
        if name := next(uncounted, ""):
            return Claimed(problem=f"the builtin backend cannot count {name} of {role} pods: {devices.refused[name]}")
    return Claimed(found)


def _amounts(claim: Mapping[str, Any], namespace: str, devices: Devices) -> Resources | str:
    name = claim.get("resourceClaimTemplateName")
    if not name:
        return f"ResourceClaim {claim.get('resourceClaimName')} is one for several pods: use a ResourceClaimTemplate"
    if devices.problem:
        return devices.problem
    known = devices.templates.get((namespace, name))
    if known is None:
        return f"there is no ResourceClaimTemplate {name} in namespace {namespace}"
    return f"ResourceClaimTemplate {name}: {known}" if isinstance(known, str) else known
