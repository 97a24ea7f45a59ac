"""What users may say about pods, by the rules of the API server, which would refuse a StatefulSet only later, and of the restricted Pod Security
standard; and the names that are rljob's. See docs/security.md."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from rljob_api import names
from rljob_api.quantity import parse
from rljob_api.rules.engine import Check, Rule, Violation, field, present, repeated
from rljob_api.sizing.layout import placed_pods
from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Template
from rljob_api.spec.processes import GangSpec
from rljob_api.spec.roles import PoolSpec, RolloutSpec, TrainerSpec
from rljob_api.type_errors import as_written

PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
LONGEST_NAME, LONGEST_PREFIX = 63, 253
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
TOLERATION = {"key": str, "operator": str, "value": str, "effect": str, "tolerationSeconds": int}
"""Fields and their types."""
CLAIM = {"name": re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"), "resourceClaimTemplateName": PREFIX}
"""Fields of a claim, and their forms."""
LEAST_SHARED_MEMORY = 2**20
SERVERS_GPUS = "tensorParallel x pipelineParallel x dataParallel / nodes"
TYPES = {str: "text", int: "whole number"}

OBJECT_RULES = (
    Rule(
        "podSecurity.runAsUser",
        present("podSecurity.runAsUser").implies(field("podSecurity.runAsUser") > 0),
        "is root, which the restricted Pod Security standard forbids",
        "set the id of a user who may write the job's volumes, or remove it for the administrator's default",
    ),
)


def image_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Every role has an image. The CRD cannot check that, since the API server does not know the administrator's default."""
    if spec.image is None and any(spec.template(role).image is None for role in spec.pods):
        rule = "is not set, and no default of the cluster is known"
        yield Violation(
            "spec.image", "unset", rule, "set it, or ask the administrator of rljob for jobs.defaults.image"
        )


def templates(spec: RLJobSpec) -> Iterator[tuple[str, Template]]:
    """Templates of all roles, by the path of the role's section. Those of gangs come last, since which models have one depends on more fields, some
    of which may be unreadable."""
    yield f"spec.{names.ROLE_TRAINER}", spec.trainer.template
    yield f"spec.{names.ROLE_ROLLOUT}", spec.rollout.template
    yield from ((f"spec.pools[{i}]", pool.template) for i, pool in enumerate(spec.pools))
    yield from ((spec.field_of(role), pods.template) for role, pods in spec.workers.items())
    yield from ((f"spec.environments[{i}]", pool.template) for i, pool in enumerate(spec.environments))
    yield from ([(spec.field_of(names.ROLE_GATEWAY), spec.service.template)] if spec.task == "service" else [])
    yield from ((spec.field_of(role), gang.template) for role, gang in spec.gangs.items())


def metadata_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Labels and annotations by which operator and admission policies tell pods apart."""
    for where, given in templates(spec):
        for kind, entries in (("labels", given.labels), ("annotations", given.annotations)):
            for key in entries:
                if key == names.LABEL_MANAGED_BY or key.split("/")[0] == names.GROUP:
                    yield Violation(f"{where}.template.{kind}.{key}", entries[key], "is rljob's own", "take it out")


def resource_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Devices follow from the processes, and no request is above its limit."""
    for section, given in templates(spec):
        where, resources, device = f"{section}.template.resources", given.resources, spec.trainer.resource_name
        for kind, amounts in (("requests", resources.requests), ("limits", resources.limits)):
            if spec.trainer.device == "gpu" and device and device in amounts:
                serves = section.startswith((f"spec.{names.ROLE_ROLLOUT}", "spec.pools"))
                size = f": {SERVERS_GPUS}" if serves else ".processesPerNode"
                rule = f"is set by {section}{size}"
                yield Violation(f"{where}.{kind}.{device}", amounts[device], rule, "take it out")
        for name in resources.requests.keys() & resources.limits.keys():
            request, limit = resources.requests[name], resources.limits[name]
            if parse(request) > parse(limit):
                rule = f"is above {where}.limits.{name} = {limit}"
                yield Violation(f"{where}.requests.{name}", request, rule, "lower it, or raise the limit")


def claim_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Claims of pods are as in Kubernetes, and GPUs that are not requested by a resource's name come from claims."""
    for section, template in templates(spec):
        known = set[str]()
        for i, claim in enumerate(template.resource_claims):
            where = f"{section}.template.resourceClaims[{i}]"
            for name, rule in _claim(claim, known):
                shown = as_written(claim[name]) if name in claim else "unset"
                yield Violation(f"{where}.{name}", shown, rule, f"write {', '.join(CLAIM)}, and nothing else")
            known.add(str(claim.get("name")))
    if spec.trainer.device != "gpu" or spec.trainer.resource_name:
        return
    for role in (role for role in placed_pods(spec) if spec.processes_of(role)):
        if not spec.template(role).resource_claims:
            rule = "is empty, which leaves these pods without GPUs, since spec.trainer.resourceName is empty"
            fix = "name a ResourceClaimTemplate with their GPUs, or set spec.trainer.resourceName"
            yield Violation(f"{spec.field_of(role)}.template.resourceClaims", "[]", rule, fix)


def _claim(claim: Mapping[str, Any], known: Collection[str]) -> Iterator[tuple[str, str]]:
    """Field and rule. `known`: names of the claims before."""
    for name in claim.keys() - CLAIM.keys():
        yield name, "is no field of a claim that each pod has for itself"
    for name, form in CLAIM.items():
        value = claim.get(name)
        if not (isinstance(value, str) and len(value) <= LONGEST_PREFIX and form.fullmatch(value)):
            yield name, "is no name as Kubernetes has them"
    if claim.get("name") in known:
        yield "name", "is the name of another claim of these pods"


def shared_memory_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Kubernetes reads a size without a suffix as bytes."""
    sections: dict[str, TrainerSpec | RolloutSpec | PoolSpec | GangSpec] = {
        "trainer": spec.trainer,
        "rollout": spec.rollout,
    }
    sections |= {f"pools[{i}]": pool for i, pool in enumerate(spec.pools)}
    sections |= {spec.field_of(role).removeprefix("spec."): gang for role, gang in spec.gangs.items()}
    for where, section in sections.items():
        if parse(section.shm_size) < LEAST_SHARED_MEMORY * 1000:
            rule = "is less than 1Mi of /dev/shm, in which no process can exchange anything"
            yield Violation(f"spec.{where}.shmSize", section.shm_size, rule, "write its unit, for example 1Gi")


def colocation_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Colocated servers have no pods, so that nothing reads their template."""
    r, unset = spec.rollout, RolloutSpec()
    if r.placement != "colocated":
        return
    for where, given in (("template", r.template != unset.template), ("shmSize", r.shm_size != unset.shm_size)):
        if given:
            yield Violation(
                f"spec.rollout.{where}",
                "set",
                "colocated servers have no pods of their own",
                f"remove it; spec.trainer.{where} applies",
            )


GPU_CHOICES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
"""The first would hide the GPUs of other ranks; the second shows those of other pods."""
NO_GPU = ("", "void", "none")


def environment_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Variables that rljob, torchrun, Kubernetes or the images set."""
    sections = [("spec.env", spec.env), *((f"{where}.template.env", t.env) for where, t in templates(spec))]
    for path, variables in sections:
        yield from repeated(f"{path}[{{}}].name", [v.name for v in variables], "keep one: of two the last would count")
        for i, v in enumerate(variables):
            if v.name in names.RESERVED_ENV or v.name.startswith(names.RESERVED_ENV_PREFIXES):
                rule = "is set by rljob, torchrun, Kubernetes or the image"
                yield Violation(f"{path}[{i}].name", v.name, rule, "choose another name")
            if v.name in GPU_CHOICES and v.value not in NO_GPU:
                rule = "chooses GPUs, which the node's device plugin and rljob give to each process"
                yield Violation(f"{path}[{i}].name", v.name, rule, "remove it; processesPerNode is the number of GPUs")
            if v.value and v.value_from:
                yield Violation(f"{path}[{i}]", v.name, "has both a value and a valueFrom", "keep one of them")


def key_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Keys of all three, and values of labels and node selectors."""
    for section, given in templates(spec):
        for kind, entries in (("labels", given.labels), ("nodeSelector", given.node_selector)):
            yield from label_violations(f"{section}.template.{kind}", entries)
        yield from annotation_violations(f"{section}.template.annotations", given.annotations)


def label_violations(at: str, entries: Mapping[str, str]) -> Iterator[Violation]:
    """Of labels at a field."""
    for key, value in entries.items():
        yield from _key(f"{at}.{key}", key)
        if value and not (len(value) <= LONGEST_NAME and NAME.fullmatch(value)):
            yield Violation(f"{at}.{key}", value, "is no label value", "at most 63 letters, digits, `-`, `_` and `.`")


def annotation_violations(at: str, entries: Mapping[str, str]) -> Iterator[Violation]:
    """Their keys; a value may be any text."""
    for key in entries:
        yield from _key(f"{at}.{key}", key.lower())


def _key(where: str, key: str) -> Iterator[Violation]:
    prefix, slash, name = key.rpartition("/")
    right = len(name) <= LONGEST_NAME and NAME.fullmatch(name)
    if slash:
        right = right and len(prefix) <= LONGEST_PREFIX and PREFIX.fullmatch(prefix)
    if not right:
        yield Violation(
            where,
            key,
            "is no label key",
            "at most 63 letters, digits, `-`, `_` and `.`, after a DNS name and `/` if any",
        )


def toleration_violations(spec: RLJobSpec) -> Iterator[Violation]:
    for section, given in templates(spec):
        for i, toleration in enumerate(given.tolerations):
            for key, rule in _toleration(toleration):
                where = f"{section}.template.tolerations[{i}]" + (f".{key}" if key else "")
                value = toleration.get(key, "unset") if key else toleration
                shown = value if isinstance(value, str) else as_written(value)
                yield Violation(where, shown, rule, "see `kubectl explain pod.spec.tolerations`")


def _toleration(t: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Field and rule. As ValidateTolerations of Kubernetes."""
    wrong = [k for k, v in t.items() if k not in TOLERATION or not isinstance(v, TOLERATION[k]) or isinstance(v, bool)]
    for key in wrong:
        yield key, f"must be a {TYPES[TOLERATION[key]]}" if key in TOLERATION else "is no field of a toleration"
    if wrong:
        return
    operator = t.get("operator") or "Equal"
    if operator not in ("Exists", "Equal"):
        yield "operator", "must be Exists or Equal"
    if not t.get("key") and operator != "Exists":
        yield "operator", "must be Exists without a key"
    if t.get("key") and list(_key("", t["key"])):
        yield "key", "is no label key"
    if operator == "Exists" and t.get("value"):
        yield "value", "must be empty when the operator is Exists"
    if t.get("effect") and t["effect"] not in EFFECTS:
        yield "effect", f"must be one of {', '.join(EFFECTS)}"
    if "tolerationSeconds" in t and t.get("effect") != "NoExecute":
        yield "effect", "must be NoExecute with tolerationSeconds"


RULES: tuple[Check, ...] = (
    *OBJECT_RULES,
    image_violations,
    metadata_violations,
    resource_violations,
    claim_violations,
    shared_memory_violations,
    colocation_violations,
    environment_violations,
    key_violations,
    toleration_violations,
)
