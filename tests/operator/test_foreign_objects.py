"""Objects of others, of any shape that an API server may hand out: none of them ends or stalls the operator."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.specs import raw_spec
from rljob_api import names
from rljob_operator.cache.cluster import ClusterCache
from simulator.objects import job_object

MANY = settings(max_examples=150, suppress_health_check=list(HealthCheck))
TEXT = st.sampled_from(
    ["", "x", "demo", "trainer", "True", "soon", "2026-01-01T00:00:00Z", "0000-13-99T99:99:99Z", "\x1b[2J", "½", "²"]
)
QUANTITY = st.sampled_from(
    ["1", "500m", "0", "-1", "1e3", "10Gi", "1.5", "", "many", "1e999999", "NaN", "0x10", 5, 0.1, None]
)
RESOURCES = (
    st.dictionaries(st.sampled_from(["cpu", "memory", "pods", "nvidia.com/gpu", "x"]), QUANTITY, max_size=3) | st.none()
)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Also null, as fields are that a client has sent so."""
    return values | st.none()


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


LABELS = maybe(
    st.fixed_dictionaries(
        {},
        optional={
            names.LABEL_JOB: TEXT,
            names.LABEL_ROLE: TEXT,
            names.LABEL_MANAGED_BY: st.just(names.MANAGED_BY) | TEXT,
        },
    )
)
OWNERS = maybe(
    st.lists(
        some(
            kind=st.just("StatefulSet") | TEXT,
            name=st.just("demo-trainer") | TEXT,
            uid=TEXT,
            controller=maybe(st.booleans()),
        ),
        max_size=2,
    )
)
ANNOTATIONS = maybe(
    st.dictionaries(
        st.sampled_from([names.ANNOTATION_UNGATED, names.ANNOTATION_TEMPLATE_HASH, names.ANNOTATION_REQUEST, "a"]), TEXT
    )
)


def meta(name: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    """The API server sets name, uid and version; the rest is anybody's."""
    fixed = {"name": name, "uid": st.just("u"), "resourceVersion": st.integers(1, 10**9).map(str)}
    optional = {
        "labels": LABELS,
        "annotations": ANNOTATIONS,
        "ownerReferences": OWNERS,
        "creationTimestamp": maybe(TEXT),
        "deletionTimestamp": TEXT,
    }
    return st.fixed_dictionaries(fixed, optional=optional)


CONDITIONS = maybe(
    st.lists(
        some(
            type=st.sampled_from(["Ready", "PodScheduled", "DisruptionTarget"]),
            status=TEXT,
            reason=TEXT,
            message=maybe(TEXT),
            lastTransitionTime=maybe(TEXT),
        ),
        max_size=3,
    )
)
STATE = maybe(
    some(
        waiting=maybe(some(reason=TEXT, message=TEXT)),
        running=maybe(some(startedAt=TEXT)),
        terminated=maybe(some(reason=TEXT, exitCode=st.integers())),
    )
)
STATUSES = maybe(st.lists(some(name=st.just("trainer") | TEXT, state=STATE, lastState=STATE), max_size=2))
CONTAINERS = st.lists(
    some(name=TEXT, resources=maybe(some(requests=RESOURCES, limits=RESOURCES)), restartPolicy=TEXT), max_size=2
)
PODS = st.fixed_dictionaries(
    {"kind": st.just("Pod"), "metadata": meta(st.sampled_from(["demo-trainer-0", "demo-trainer-²", "x", "a-1"]))},
    optional={
        "spec": some(
            nodeName=maybe(TEXT),
            containers=maybe(CONTAINERS),
            initContainers=maybe(CONTAINERS),
            overhead=RESOURCES,
            resources=maybe(some(requests=RESOURCES)),
            schedulingGates=maybe(st.lists(some(name=TEXT), max_size=2)),
            affinity=maybe(some(nodeAffinity=maybe(some()))),
        ),
        "status": maybe(some(phase=TEXT, podIP=maybe(TEXT), conditions=CONDITIONS, containerStatuses=STATUSES)),
    },
)
NODES = st.fixed_dictionaries(
    {"kind": st.just("Node"), "metadata": meta(TEXT)},
    optional={
        "spec": maybe(
            some(
                taints=maybe(st.lists(some(key=TEXT, effect=TEXT, value=TEXT), max_size=2)),
                unschedulable=maybe(st.booleans()),
            )
        ),
        "status": maybe(some(conditions=CONDITIONS, allocatable=RESOURCES)),
    },
)
MAPS = st.fixed_dictionaries(
    {"kind": st.just("ConfigMap"), "metadata": meta(TEXT)},
    optional={
        "data": maybe(st.dictionaries(st.sampled_from([names.REPORT_KEY, names.CONTROL_KEY, "x"]), TEXT)),
        "binaryData": maybe(st.just({})),
    },
)
SETS = st.fixed_dictionaries(
    {"kind": st.sampled_from(["StatefulSet", "ServiceAccount", "Role"]), "metadata": meta(TEXT)},
    optional={"spec": maybe(some(replicas=st.integers()))},
)


def seen(obj: dict[str, Any]) -> ClusterCache:
    cache = ClusterCache(lambda: 0.0)
    cache.put({**obj, "metadata": {"namespace": "research", **obj["metadata"]}} if obj["kind"] != "Node" else obj)
    return cache


@MANY
@given(PODS)
def test_a_pod_of_any_shape_is_cached(pod: dict[str, Any]) -> None:
    seen(pod)


@MANY
@given(PODS)
def test_a_pod_of_any_shape_counts_on_its_node(pod: dict[str, Any]) -> None:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    (usage,) = seen(pod).usage.values()
    on_node = bool(spec.get("nodeName")) and status.get("phase") not in ("Succeeded", "Failed")
    assert usage.node == (spec["nodeName"] if on_node else "")
    assert (usage.requests or {}).get("pods", 0) >= (1000 if on_node else 0)


def test_what_can_be_read_of_a_pods_requests_counts() -> None:
    good, bad = {"cpu": "2", "nvidia.com/gpu": 1}, {"cpu": "many", "memory": "1Gi"}
    containers = [{"resources": {"requests": good}}, {"resources": {"requests": bad}}, {"resources": None}]
    spec = {"nodeName": "n1", "containers": containers, "overhead": {"cpu": "1.2.3"}, "initContainers": None}
    meta = {"name": "a", "uid": "u", "resourceVersion": "1"}
    (usage,) = seen({"kind": "Pod", "metadata": meta, "spec": spec, "status": None}).usage.values()
    assert usage.node == "n1"
    assert usage.requests == {"cpu": 2000, "nvidia.com/gpu": 1000, "memory": 2**30 * 1000, "pods": 1000}


@MANY
@given(NODES)
def test_a_node_of_any_shape_is_cached(node: dict[str, Any]) -> None:
    seen(node)


@MANY
@given(MAPS | SETS)
def test_a_child_of_any_shape_is_cached(obj: dict[str, Any]) -> None:
    cache = seen(obj)
    cache.children_of(("research", "demo"))


@MANY
@given(ANNOTATIONS, LABELS)
def test_a_job_with_any_metadata_is_cached_and_read(annotations: Any, labels: Any) -> None:
    job = job_object("demo", raw_spec())
    job["metadata"] |= {"uid": "u", "resourceVersion": "1", "annotations": annotations, "labels": labels}
    cache = seen(job)
    (entry,) = cache.jobs.values()
    assert entry.meta.name == "demo"
