"""Pods of environments by the objects of kubernetes-sigs/agent-sandbox (v1beta1 of its extensions, as in its release 0.5.6), where jobs.agentSandbox
says that the cluster has them.

The job holds a SandboxClaim where it would have an ordinal of a StatefulSet otherwise, and agent-sandbox gives the claim a pod of a
SandboxWarmPool, which has started before. Only pods that a claim has are the job's: agent-sandbox makes and ends the others. A claim ends with its
pod, and then another one of its name takes its place.

A template never changes: it has a part of its hash in its name, as has the pool of its pods. Otherwise a claim could get a pod of a former template,
since agent-sandbox writes the labels and annotations of the newest one into a pod that a claim gets.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rljob_api import names
from rljob_operator.cache.cluster import SANDBOX_KINDS
from rljob_operator.kube.api import AGENT_SANDBOX, Object
from rljob_operator.model.children import controls, metadata
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.render.template import template_hash

CLAIMS_OF_WARM = 4
"""Claims for which one pod more waits in the pool: starting one takes a few seconds, and a claim is seldom as short."""


def claimed_sandboxes(
    s: Snapshot, role: str, ordinals: Collection[int], template: Mapping[str, Any], in_use: bool
) -> list[Object]:
    """The objects of an environment of which so many pods are wanted.

    Args:
        template: of its pods, the newest
        in_use: whether the template of an open attempt stays
    """
    if not ordinals:
        return []
    name = _name(s, role, template, in_use)
    pool = {"replicas": -(-len(ordinals) // CLAIMS_OF_WARM), "sandboxTemplateRef": {"name": name}}
    return [
        _unchanged(s, "SandboxTemplate", role, name, _template(template)),
        _object(s, "SandboxWarmPool", role, name, pool),
        *(_unchanged(s, "SandboxClaim", role, names.pod(s.job.name, role, i), _claim(name, i)) for i in ordinals),
    ]


def unneeded(s: Snapshot, wanted: Iterable[Object]) -> list[Object]:
    """Live objects of agent-sandbox that the job does not want any more. `wanted`: all children."""
    if not s.policy.agent_sandbox:
        return []
    kept = {(child["kind"], child["metadata"]["name"]) for child in wanted}
    return [dict(live) for (kind, name), live in _live(s) if (kind, name) not in kept]


def _name(s: Snapshot, role: str, template: Mapping[str, Any], in_use: bool) -> str:
    """Of template and pool. Five digits: agent-sandbox's own names are these with six characters more, and the longest has 63."""
    newest = f"{names.gang(s.job.name, role)}-{template_hash(template)[:5]}"
    there = [name for (kind, name), live in _live(s) if kind == "SandboxWarmPool" and _role(live) == role]
    return there[0] if in_use and there and newest not in there else newest


def _live(s: Snapshot) -> list[tuple[tuple[str, str], Mapping[str, Any]]]:
    """Those that are ours and stay."""
    ours = ((key, live) for key, live in s.children.items() if key[0] in SANDBOX_KINDS and controls(s.job, live))
    return [(key, live) for key, live in ours if "deletionTimestamp" not in live["metadata"]]


def _role(live: Mapping[str, Any]) -> str:
    return str((live["metadata"].get("labels") or {}).get(names.LABEL_ROLE, ""))


def _template(template: Mapping[str, Any]) -> dict[str, Any]:
    """The NetworkPolicies are ours, as for every other pod of an environment: the rules that agent-sandbox adds let programs reach the internet."""
    return {"podTemplate": dict(template), "networkPolicyManagement": "Unmanaged"}


def _claim(pool: str, ordinal: int) -> dict[str, Any]:
    note = {"annotations": {names.ANNOTATION_CLAIM: str(ordinal)}}
    return {"warmPoolRef": {"name": pool}, "additionalPodMetadata": note}


def _object(s: Snapshot, kind: str, role: str, name: str, spec: Mapping[str, Any]) -> Object:
    return {"apiVersion": AGENT_SANDBOX, "kind": kind, "metadata": metadata(s.job, name, role), "spec": dict(spec)}


def _unchanged(s: Snapshot, kind: str, role: str, name: str, spec: Mapping[str, Any]) -> Object:
    """A live one stays as it is."""
    live = s.children.get((kind, name))
    return _object(s, kind, role, name, live["spec"] if live is not None and controls(s.job, live) else spec)
