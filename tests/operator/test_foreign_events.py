"""Whatever others put into the cluster, an event of it enters the cache or names it: nothing ends or stalls the operator."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rljob_operator.cache.cache import Cache, key_of
from rljob_operator.cache.cluster import CHILD_KINDS, ClusterCache
from rljob_operator.kube.api import Object
from rljob_operator.watch.events import EventHandlers

LABELS = {
    "rljob.dev/job": "demo",
    "rljob.dev/role": "trainer",
    "app.kubernetes.io/managed-by": "rljob",
}
OWNER = {"kind": "StatefulSet", "name": "demo-trainer", "controller": True, "uid": "s"}
CONDITIONS = [{"type": t, "status": "False", "lastTransitionTime": None} for t in ("Ready", "DisruptionTarget")]
CONTAINER = {"name": "trainer", "state": {"terminated": {}}, "lastState": {}}
EXAMPLES: dict[str, Object] = {
    "Pod": {
        "spec": {"nodeName": "n", "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
        "status": {"phase": "Running", "conditions": CONDITIONS, "containerStatuses": [CONTAINER]},
    },
    "Node": {
        "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]},
        "status": {"conditions": CONDITIONS, "allocatable": {"cpu": "8", "pods": "110"}},
    },
    "ConfigMap": {"data": {"report.json": "{}", "control.json": "{}"}},
    "RLJob": {"spec": {"trainer": {"nodes": 1}}, "status": {"placement": {"problem": "no capacity"}}},
    **{kind: {"spec": {"replicas": 1}} for kind in CHILD_KINDS},
}
META = {"name": "demo", "namespace": "research", "uid": "u", "resourceVersion": "1"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def mutated(draw: st.DrawFn) -> Object:
    """An object of which parts are replaced; what the API server vouches for is as it should be."""

    def change(value: Any) -> Any:
        if draw(st.integers(0, 5)) == 0:
            return draw(JSON)
        if isinstance(value, dict):
            return {k: change(v) for k, v in value.items()}
        return [change(v) for v in value] if isinstance(value, list) else value

    kind = draw(st.sampled_from(sorted(EXAMPLES)))
    notes = draw(
        st.dictionaries(st.sampled_from(["rljob.dev/released", "rljob.dev/request", "x"]), st.text(max_size=9))
    )
    meta = {"name": draw(st.sampled_from(["demo-trainer-0", "x-\u0663", "-", "demo"])), "uid": "u"}
    meta |= {"resourceVersion": str(draw(st.integers(1, 9))), "annotations": notes, "ownerReferences": [OWNER]}
    meta |= {"labels": LABELS} if draw(st.booleans()) else {}
    meta |= {} if kind == "Node" else {"namespace": "research"}
    return {"kind": kind, "metadata": meta} | {k: change(v) for k, v in EXAMPLES[kind].items()}


@given(st.lists(mutated(), max_size=4))
@example([{"kind": "RLJob", "metadata": META, "spec": True, "status": 3}])
@settings(max_examples=100)
def test_no_object_ends_the_operator(objects: list[Object]) -> None:
    cache = ClusterCache(lambda: 0.0)
    handlers = EventHandlers(cache, lambda job, after: None, 30.0)
    for obj in objects:
        handlers.handle(obj["kind"], obj)
        handlers.changed(obj["kind"], cache.of_kind(obj["kind"]).prune({key_of(obj)}, "5", None))
        handlers.handle(obj["kind"], obj, gone=True)


def test_an_object_that_cannot_be_read_is_named_and_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    known: Cache[int] = Cache(lambda obj, before: int(obj["value"]))
    meta = {"namespace": "research", "uid": "u", "resourceVersion": "2"}
    broken = {"kind": "Pod", "metadata": meta | {"name": "broken"}, "value": "x"}
    sound = {"kind": "Pod", "metadata": meta | {"name": "sound"}, "value": "7"}
    assert known.put(broken) == set()
    known.put(sound)
    assert known.values() == [7]
    assert "Pod research/broken cannot be read and is ignored" in caplog.text


@pytest.mark.parametrize("kind", sorted(EXAMPLES))
def test_the_examples_can_be_read(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    meta = {"name": "demo-trainer-0", "uid": "u", "resourceVersion": "2", "labels": LABELS, "ownerReferences": [OWNER]}
    meta |= {} if kind == "Node" else {"namespace": "research"}
    cache = ClusterCache(lambda: 0.0)
    cache.put({"kind": kind, "metadata": meta | {"creationTimestamp": "2026-01-01T00:00:00Z"}} | EXAMPLES[kind])
    assert caplog.text == ""
