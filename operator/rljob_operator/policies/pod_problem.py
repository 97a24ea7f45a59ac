"""What keeps one pod from being ready. Where Kubernetes says that something is missing, or that an image cannot be had, this adds which field of the
spec names it, and what to do."""

import re
from collections.abc import Iterator
from typing import Any

from rljob_api import names
from rljob_api.spec import RLJobSpec
from rljob_operator.cache.pods import Pod
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.causes import how_it_ended, on_node
from rljob_operator.policies.ungating import retry_at
from rljob_operator.times import stamp

NOT_FOUND = re.compile(r'(configmap|secret|persistentvolumeclaim) "([^"]+)" not found')
NO_KEY = re.compile(r"couldn't find key \S+ in (ConfigMap|Secret) [^/\s]+/(\S+)")
"""What the kubelet and the scheduler say of an object that does not exist, and of one that lacks a key."""
OBJECT_KEYS = ("name", "claimName", "secretName")
"""Fields that name an object."""
NO_IMAGE = ("ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff", "InvalidImageName")
"""Reasons for which a container waits for its image, except while it is pulled."""
IMAGE_FIX = "push it, correct the name, or name the Secret with its registry's credentials in spec.imagePullSecrets"

Leaf = tuple[str, str, str]
"""Path of a text in the spec, as messages write it; the key of the object that holds it; and the text."""


def pod_problem(s: Snapshot, pod: Pod) -> str:
    report = s.report(pod)
    if until := retry_at(s, pod.name):
        last = s.failed[pod.name].pod
        return f"the kubelet ended it{on_node(last)}: {last.failed}; the next try starts at {stamp(until)}"
    if pod.unschedulable:
        return f"cannot be scheduled: {_explained(s, pod.unschedulable)}"
    if pod.waiting:
        return _explained(s, pod.waiting) + (f", last ended by {how_it_ended(pod)}" if pod.exited else "")
    if report and report.failure:
        return report.failure.explanation
    return f"restarted after {how_it_ended(pod)}" if pod.exited else _explained(s, s.unstarted.get(pod.uid, ""))


def _explained(s: Snapshot, said: str) -> str:
    """What Kubernetes says, with field and fix where they are known."""
    spec = s.spec_of(s.status.attempt)
    if spec is None or not said:
        return said
    if said.startswith(NO_IMAGE):
        return _of_image(spec, said)
    absent, lacking = NOT_FOUND.search(said), NO_KEY.search(said)
    found = absent or lacking
    field = _field_of(spec, found[1], found[2]) if found else ""
    if not field:
        return said
    fix = f"create it in namespace {s.job.namespace}" if absent else "add the key"
    return f"{said}; {fix}, or correct {field}"


def _of_image(spec: RLJobSpec, said: str) -> str:
    """Shorter than the kubelet's words, which name the image three times before they say what is wrong with it."""
    images = (leaf for leaf in _leaves(spec.dump(), "spec", "") if leaf[0].endswith(".image"))
    field, image = next(((path, text) for path, _, text in images if f'"{text}"' in said), ("", ""))
    if not field:
        return said
    reason, _, words = said.partition(": ")
    fix = names.PUBLISH if names.UNPUBLISHED in image else IMAGE_FIX
    return f"{reason}: {field} = {image}: {fix}: {words.rpartition(f'"{image}": ')[2]}"


def _field_of(spec: RLJobSpec, kind: str, name: str) -> str:
    """Where the spec names this object; empty: nowhere, so that it is one of rljob's own."""
    leaves = _leaves(spec.dump(), "spec", "")
    named = (leaf for leaf in leaves if leaf[2] == name and leaf[0].rpartition(".")[2] in OBJECT_KEYS)
    return next((path for path, holder, _ in named if holder.lower().startswith(kind.lower())), "")


def _leaves(value: Any, path: str, holder: str) -> Iterator[Leaf]:
    """All texts. `holder`: the key of the object or list that `value` is in."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}", path.rpartition(".")[2].partition("[")[0])
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{i}]", holder)
    elif isinstance(value, str):
        yield path, holder, value
