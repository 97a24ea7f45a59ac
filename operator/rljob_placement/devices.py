"""Devices of Dynamic Resource Allocation (`resource.k8s.io/v1`) as resources of nodes, so that they are counted as all others are.

A DeviceClass is the resource `deviceclass.resource.kubernetes.io/NAME`, the name under which Kubernetes offers it itself (KEP-5004), and the one of
its `extendedResourceName`. Nothing is guessed: what cannot be counted is named, with the reason.

And what the ResourceClaims of a job's pods take of their nodes.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rljob_api.pod_patch import PodPatch
from rljob_api.quantity import Thousandths, add
from rljob_api.sizing.layout import placed_pods
from rljob_api.spec import RLJobSpec
from rljob_placement.selectors import Device, UnreadableSelector, selects

ApiObject = Mapping[str, Any]
Key = tuple[str, str]
"""Namespace and name."""
DeviceId = tuple[str, str, str]
"""Driver, pool and name."""
KINDS = ("resourceslices", "deviceclasses", "resourceclaims", "resourceclaimtemplates")
API = "resource.k8s.io/v1"
IMPLICIT = "deviceclass.resource.kubernetes.io/"
OF_EXTENDED = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of a claim that kube-scheduler makes for the extended resources of a pod."""
NOT_LISTED = "those of the cluster are not listed yet"
NOT_SERVED = f"the API server does not serve {API}, which Kubernetes has from 1.34 on"
MOST = 2**20
"""Devices of a request, at most: numbers beyond that are no count of devices."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """Devices of a node that a ResourceClaim holds."""

    pod: Key | None
    """The only pod that it is for; None: there is none, or more than one."""
    node: str
    amounts: Thousandths


@dataclass(frozen=True, slots=True)
class Devices:
    """What the objects of `resource.k8s.io` say of devices."""

    nodes: Mapping[str, Thousandths] = field(default_factory=dict)
    """Devices of each node, held or not, by resource."""
    allocations: Sequence[Allocation] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why the devices of a resource cannot be counted."""
    templates: Mapping[Key, Thousandths | str] = field(default_factory=dict)
    """What each ResourceClaimTemplate asks for; a text: why that cannot be counted."""
    problem: str = ""
    """Why it is not known what the cluster has; empty: it is."""

    @staticmethod
    def of(
        slices: Iterable[ApiObject],
        classes: Iterable[ApiObject],
        claims: Iterable[ApiObject],
        templates: Iterable[ApiObject],
    ) -> "Devices":
        claims, resources = list(claims), resources_of(classes)
        there = _published(slices, {_id(result) for claim in claims for result in _held(claim)})
        refused, members, nodes = dict[str, str](), dict[DeviceId, list[str]](), dict[str, Thousandths]()
        for name, device_class in resources.items():
            try:
                chosen = [one for one in there if _matches(device_class, one)]
            except UnreadableSelector as error:
                refused[name] = f"DeviceClass {device_class['metadata']['name']} {error}"
                continue
            for one in chosen:
                members.setdefault(one.id, []).append(name)
                nodes[one.node] = add(nodes.get(one.node, {}), {name: 1000})
        at = {one.id: one.node for one in there}
        held = [allocation for claim in claims for allocation in _allocations(claim, at, members)]
        asked = {_key(template): _asked(template, refused) for template in templates}
        return Devices(nodes, held, refused, asked)


@dataclass(frozen=True, slots=True)
class _Published:
    id: DeviceId
    node: str
    device: Device
    problem: str
    """Why it cannot be counted as one; empty: it can."""


def _published(slices: Iterable[ApiObject], held: Collection[DeviceId]) -> list[_Published]:
    """Devices of the newest generation of each pool. Kubernetes gives nobody those that a taint closes, and those of a pool of which slices are
    missing: of these, only those that claims hold are here, since the pods that have them count them, too."""
    specs = [one["spec"] for one in slices]
    newest = dict[Key, int]()
    for spec in specs:
        newest[_pool(spec)] = max(newest.get(_pool(spec), 0), _generation(spec))
    current = [spec for spec in specs if _generation(spec) == newest[_pool(spec)]]
    counts = Counter(map(_pool, current))
    there = list[_Published]()
    for spec in current:
        whole = counts[_pool(spec)] >= spec["pool"].get("resourceSliceCount", 1)
        for one in spec.get("devices") or []:
            device = _device(spec, one)
            if device.id in held or (whole and not _is_closed(one)):
                there.append(device)
    return there


def _pool(spec: ApiObject) -> Key:
    return spec["driver"], spec["pool"]["name"]


def _generation(spec: ApiObject) -> int:
    return int(spec["pool"].get("generation", 0))


def _device(spec: ApiObject, one: ApiObject) -> _Published:
    problem = ""
    if not spec.get("nodeName"):
        problem = "has devices that several nodes share"
    elif one.get("consumesCounters"):
        problem = "has devices that are parts of others"
    elif one.get("allowMultipleAllocations"):
        problem = "has devices that several claims share"
    seen = Device(spec["driver"], one.get("attributes") or {}, one.get("capacity") or {})
    return _Published((*_pool(spec), one["name"]), spec.get("nodeName") or "", seen, problem)


def _is_closed(one: ApiObject) -> bool:
    return any(taint.get("effect") in ("NoSchedule", "NoExecute") for taint in one.get("taints") or [])


def resources_of(classes: Iterable[ApiObject]) -> dict[str, ApiObject]:
    """DeviceClass by resource. Of several with one extendedResourceName, the newest counts, and of those the first by name, as in Kubernetes."""
    by_resource = dict[str, ApiObject]()
    by_name = sorted(classes, key=lambda c: str(c["metadata"]["name"]), reverse=True)
    for one in sorted(by_name, key=lambda c: str(c["metadata"].get("creationTimestamp") or "")):
        by_resource[IMPLICIT + one["metadata"]["name"]] = one
        if extended := one["spec"].get("extendedResourceName"):
            by_resource[extended] = one
    return by_resource


def _matches(device_class: ApiObject, one: _Published) -> bool:
    """Raises Unreadable."""
    selectors = device_class["spec"].get("selectors") or []
    chosen = all(selects(selector["cel"]["expression"], one.device) for selector in selectors)
    if chosen and one.problem:
        raise UnreadableSelector(one.problem)
    return chosen


def _allocations(
    claim: ApiObject, at: Mapping[DeviceId, str], members: Mapping[DeviceId, Sequence[str]]
) -> Iterable[Allocation]:
    amounts = dict[str, Thousandths]()
    for device in map(_id, _held(claim)):
        if device in at:
            amounts[at[device]] = add(amounts.get(at[device], {}), dict.fromkeys(members.get(device, ()), 1000))
    pod = _consumer(claim)
    return [Allocation(pod, node, resources) for node, resources in amounts.items() if resources]


def _held(claim: ApiObject) -> list[ApiObject]:
    """The devices of a claim that nobody else gets."""
    results = ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results") or []
    return [one for one in results if not one.get("adminAccess")]


def _id(result: ApiObject) -> DeviceId:
    return result["driver"], result["pool"], result["device"]


def _consumer(claim: ApiObject) -> Key | None:
    pods = [
        one["name"] for one in (claim.get("status") or {}).get("reservedFor") or [] if one.get("resource") == "pods"
    ]
    owners = [one["name"] for one in claim["metadata"].get("ownerReferences") or [] if one.get("kind") == "Pod"]
    users = pods or owners
    return (claim["metadata"].get("namespace", ""), users[0]) if len(users) == 1 else None


def _asked(template: ApiObject, refused: Mapping[str, str]) -> Thousandths | str:
    """What a claim of this template takes."""
    devices = template["spec"]["spec"].get("devices") or {}
    if devices.get("constraints"):
        return "its devices have constraints on each other"
    total = Thousandths()
    for request in devices.get("requests") or []:
        asked = _of_request(request)
        if isinstance(asked, str):
            return f"request {request.get('name')} {asked}"
        total = add(total, asked)
    return next((refused[name] for name in total if name in refused), total)


def _of_request(request: ApiObject) -> Thousandths | str:
    exactly = request.get("exactly")
    if not exactly:
        return "has several alternatives (firstAvailable)"
    if exactly.get("adminAccess"):
        return {}
    for key, problem in (
        ("selectors", "selectors of its own"),
        ("capacity", "a part of a device"),
        ("tolerations", "tolerations"),
    ):
        if exactly.get(key):
            return f"asks for {problem}: make a DeviceClass of what it selects"
    count = exactly.get("count", 1)
    if exactly.get("allocationMode", "ExactCount") != "ExactCount" or not 0 < count <= MOST:
        return "asks for no number of devices (allocationMode All): write their count"
    return {IMPLICIT + exactly["deviceClassName"]: count * 1000}


def _key(obj: ApiObject) -> Key:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


@dataclass(frozen=True, slots=True)
class Claimed:
    """Devices that each pod of a role takes, besides what its containers request."""

    by_role: Mapping[str, Thousandths] = field(default_factory=dict)
    problem: str = ""
    """Why they cannot be counted; empty: they can."""


def claims_of(spec: RLJobSpec, role: str, patch: PodPatch) -> list[Mapping[str, Any]]:
    """`resourceClaims` of a role's pods, also those that the administrator adds."""
    own = list(spec.template(role).resource_claims)
    claims: list[Mapping[str, Any]] = patch.applied({"spec": {"resourceClaims": own}}, role)["spec"]["resourceClaims"]
    return claims


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
    by_role = dict[str, Thousandths]()
    for role in placed_pods(spec):
        for claim in claims_of(spec, role, patch):
            amounts = _amounts(claim, namespace, devices)
            if isinstance(amounts, str):
                return Claimed(problem=f"the builtin backend cannot count the devices of {role} pods: {amounts}")
            by_role[role] = add(by_role.get(role, {}), amounts)
        uncounted = (name for name in extended(spec, role) if name in devices.refused and not offered(name))
        if name := next(uncounted, ""):
            return Claimed(problem=f"the builtin backend cannot count {name} of {role} pods: {devices.refused[name]}")
    return Claimed(by_role)


def _amounts(claim: Mapping[str, Any], namespace: str, devices: Devices) -> Thousandths | str:
    name = claim.get("resourceClaimTemplateName")
    if not name:
        return f"ResourceClaim {claim.get('resourceClaimName')} is one for several pods: use a ResourceClaimTemplate"
    if devices.problem:
        return devices.problem
    known = devices.templates.get((namespace, name))
    if known is None:
        return f"there is no ResourceClaimTemplate {name} in namespace {namespace}"
    return f"ResourceClaimTemplate {name}: {known}" if isinstance(known, str) else known
