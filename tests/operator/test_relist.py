"""What kopf does not say: what vanished, and when everything is known."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from yarl import URL

from rljob_operator.cache.cluster import ClusterCache
from rljob_operator.kube.api import ApiError, Key, Listing, NotFound, path, scope_of
from rljob_operator.watch import events
from rljob_operator.watch.events import EVERYWHERE, REFLECTED, SERVED, Relist
from simulator.cluster import FakeCluster
from simulator.objects import job_object
from simulator.patience import until

JOB, OTHER = ("research", "demo"), ("production", "demo")


class Refusing(FakeCluster):
    """Some of its lists fail."""

    def __init__(self) -> None:
        super().__init__()
        self.lists: list[tuple[str, str | None]] = []
        self.broken: set[tuple[str, str | None]] = set()
        self.unknown: set[str] = set()
        """Kinds without a CRD."""
        self.meanwhile: dict[str, Callable[[], None]] = {}
        """What happens, by kind, while the next list of it is on its way."""

    async def listing(self, kind: str, namespace: str | None, selector: str = "") -> Listing:
        self.lists.append((kind, namespace))
        if kind in self.unknown:
            raise NotFound(404, "404 page not found")
        if (kind, namespace) in self.broken:
            raise ApiError(500, "broken")
        found = await super().listing(kind, namespace, selector)
        self.meanwhile.pop(kind, lambda: None)()
        return found


class Case:
    def __init__(self, *namespaces: str) -> None:
        self.cluster, self.cache, self.woken = Refusing(), ClusterCache(lambda: 0.0), set[Key]()
        for namespace, name in (JOB, OTHER):
            self.cluster.put(job_object(name, {}, namespace))
        self.relist = Relist(self.cluster, self.cache, namespaces, self._changed)
        self.namespaces = namespaces or (None,)

    def _changed(self, kind: str, groups: set[Key]) -> None:
        self.woken |= self.cache.jobs_of(kind, groups)

    async def kopf_lists(self, kind: str, namespace: str | None = None, status: int = 200, watch: bool = False) -> None:
        await self.relist.seen(kind, namespace, status, watch=watch)
        for _ in range(100):  # however busy the machine is: nothing here waits for anything but the loop
            await asyncio.sleep(0)

    async def kopf_lists_all(self, but: str = "") -> None:
        for kind in EVERYWHERE:
            await self.kopf_lists(kind)
        for namespace in self.namespaces:
            for kind in SERVED:
                await self.kopf_lists(kind, namespace, 403 if namespace == but else 200)

    def is_complete(self) -> bool:
        waiting = self.relist.complete()
        try:
            waiting.send(None)
        except StopIteration:
            return True
        waiting.close()
        return False


@asynccontextmanager
async def case(*namespaces: str) -> AsyncIterator[Case]:
    found = Case(*namespaces)
    running = asyncio.create_task(found.relist.run())
    try:
        yield found
    finally:
        running.cancel()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "RETRY", 0.01)


async def test_nothing_is_served_before_everything_was_listed() -> None:
    async with case() as found:
        await found.kopf_lists("RLJob")
        assert len(found.cache.jobs) == 2 and not found.relist.serves("research")
        found.woken.clear()
        await found.kopf_lists_all()
        assert found.relist.serves("research") and found.is_complete()
        assert found.woken == {JOB, OTHER}


async def test_everything_counts_as_listed_until_it_begins_anew() -> None:
    async with case("research", "production") as found:
        assert not found.relist.listed
        await found.kopf_lists_all(but="production")
        assert found.is_complete() and found.relist.listed
        found.cluster.broken.add(("ConfigMap", "production"))
        await found.kopf_lists("ConfigMap", "production")
        assert not found.is_complete() and found.relist.listed, "a namespace that can be read again is listed meanwhile"
        found.relist.begin()
        assert not found.relist.listed


async def test_jobs_are_gone_with_their_crd_and_known_again_when_it_is_back() -> None:
    """The watch may have been down when it was deleted, with all of its objects. Jobs that stayed in the cache would get children for ever, which
    the garbage collector deletes as often."""
    async with case() as found:
        await found.kopf_lists_all()
        found.cluster.unknown.add("RLJob")
        found.woken.clear()
        with pytest.raises(NotFound):
            await found.relist.list_after_jobs("RLJob", None)
        assert len(found.cache.jobs) == 0 and found.woken == {JOB, OTHER}
        found.cluster.unknown.clear()
        await found.relist.list_after_jobs("RLJob", None)
        assert found.cache.jobs.get(JOB), "also if it is the same one: a proxy may have answered 404"
        assert found.relist.serves("research")


async def test_pods_are_listed_while_the_crd_of_jobs_is_gone() -> None:
    """What they take of nodes is true without any job."""
    async with case() as found:
        await found.kopf_lists_all()
        found.cluster.unknown.add("RLJob")
        found.cluster.lists.clear()
        await found.relist.list_after_jobs("Pod", None)
        assert found.cluster.lists == [("RLJob", None), ("Pod", None)]


async def test_what_a_list_after_kopfs_lacks_is_gone() -> None:
    async with case() as found:
        await found.kopf_lists_all()
        found.cluster.remove(found.cluster.objects[("RLJob", *OTHER)])
        assert len(found.cache.jobs) == 2, "no event tells"
        await found.kopf_lists("RLJob")
        assert len(found.cache.jobs) == 1


@pytest.mark.parametrize("kind", ["RLJob", "Pod"])
async def test_what_is_deleted_while_a_list_is_on_its_way_stays_gone(kind: str) -> None:
    """Its watch is ahead of the list and tells of the deletion once: a job that came back would get pods again."""
    async with case() as found:
        pod = {"kind": "Pod", "metadata": {"name": "a", "namespace": "research"}, "spec": {"nodeName": "node-1"}}
        stored = {"Pod": found.cluster.put(pod), "RLJob": found.cluster.objects[("RLJob", *OTHER)]}[kind]
        await found.kopf_lists_all()
        cached = {"Pod": found.cache.usage, "RLJob": found.cache.jobs}[kind]
        before = len(cached)

        def delete() -> None:
            found.cluster.remove(stored)
            found.cache.of_kind(kind).remove(stored)

        found.cluster.meanwhile[kind] = delete
        await found.kopf_lists(kind)
        assert not found.cluster.meanwhile and len(cached) == before - 1


async def test_a_kind_that_kopf_goes_on_watching_is_not_listed_again() -> None:
    async with case() as found:
        await found.kopf_lists_all()
        found.cluster.lists.clear()
        await found.kopf_lists("Pod", watch=True)
        assert found.cluster.lists == []
        await found.kopf_lists("Pod")
        assert found.cluster.lists == [("RLJob", None), ("Pod", None)]


async def test_a_job_that_vanished_with_its_children_is_known_to_be_gone_before_they_are() -> None:
    async with case() as found:
        child = {"kind": "StatefulSet", "metadata": {"name": "demo-trainer", "namespace": "production"}}
        child["metadata"]["labels"] = {"rljob.dev/job": "demo", "app.kubernetes.io/managed-by": "rljob"}
        stored = found.cluster.put(child)
        await found.kopf_lists_all()
        assert len(found.cache.children["StatefulSet"]) == 1
        known = list[bool]()
        prune = found.cache.children["StatefulSet"].prune
        found.cache.children["StatefulSet"].prune = lambda *a: (  # type: ignore[method-assign]
            known.append(found.cache.jobs.get(OTHER) is not None) or prune(*a)  # type: ignore[func-returns-value]
        )
        found.cluster.remove(found.cluster.objects[("RLJob", *OTHER)])
        found.cluster.remove(stored)
        await found.kopf_lists("StatefulSet")
        assert known == [False] and len(found.cache.children["StatefulSet"]) == 0


async def test_everything_is_listed_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async with case() as found:
        await found.kopf_lists_all()
        found.cluster.lists.clear()
        monkeypatch.setattr(events, "RELIST_INTERVAL", 0.05)
        await found.kopf_lists("Pod")
        await until(lambda: set(found.cluster.lists) == {(kind, None) for kind in (*EVERYWHERE, *SERVED)})


async def test_a_list_that_fails_is_tried_again() -> None:
    async with case() as found:
        found.cluster.broken.add(("StatefulSet", None))
        await found.kopf_lists_all()
        assert not found.is_complete() and not found.relist.serves("research")
        found.cluster.broken.clear()
        await until(lambda: found.is_complete() and found.relist.serves("research"))


async def test_a_namespace_that_may_not_be_read_keeps_no_other_waiting() -> None:
    async with case("research", "production") as found:
        await found.kopf_lists_all(but="production")
        assert found.is_complete()
        assert found.relist.serves("research") and not found.relist.serves("production")
        found.woken.clear()
        for kind in SERVED:
            await found.kopf_lists(kind, "production", watch=True)
        assert found.relist.serves("production")
        assert OTHER in found.woken and JOB not in found.woken


async def test_a_namespace_whose_watch_is_refused_is_served_no_more_until_it_was_listed_again() -> None:
    async with case("research", "production") as found:
        await found.kopf_lists_all()
        await found.kopf_lists("ConfigMap", "production", 403, watch=True)
        assert found.relist.serves("research") and not found.relist.serves("production")
        await found.kopf_lists("ConfigMap", "production", 200, watch=True)
        assert found.relist.serves("production")


@pytest.mark.parametrize(
    ("path", "scope"),
    {
        "/api/v1/pods": ("Pod", None),
        "/api/v1/namespaces/research/configmaps": ("ConfigMap", "research"),
        "/apis/rljob.dev/v1alpha1/rljobs": ("RLJob", None),
        "/apis/apps/v1/namespaces/namespaces/statefulsets": ("StatefulSet", "namespaces"),
        "/apis/apps/v1": None,
        "/api/v1": None,
        "/apis": None,
        "/api/v1/namespaces/pods": None,
    }.items(),
)
def test_a_request_is_known_by_its_path(path: str, scope: object) -> None:
    assert scope_of(path) == scope


@pytest.mark.parametrize("base", ["", "/", "/k8s/clusters/c-m-abc", "/k8s/clusters/c-m-abc/", "/apis/proxy"])
async def test_everything_counts_as_listed_behind_a_proxy_that_serves_the_api_below_a_path(base: str) -> None:
    async with case() as found:
        for scope in found.relist.scopes:
            url = f"https://rancher.example{base.rstrip('/')}{path(*scope)}"
            request = SimpleNamespace(url=URL(url))

            async def answered(_: object) -> SimpleNamespace:
                return SimpleNamespace(status=200)

            await found.relist.observe(f"https://rancher.example{base}", request, answered)  # type: ignore[arg-type]
        async with asyncio.timeout(60):
            await found.relist.complete()
        assert found.relist.serves("research")


async def test_everything_is_listed_again_when_the_lease_is_held_again_even_if_that_was_cut_short() -> None:
    """The lease may be lost again while the lists are made."""
    found = Case()
    for _ in range(3):
        found.relist.begin()
        assert not found.relist.serves("research") and not found.is_complete()
        running = asyncio.create_task(found.relist.run())
        if not found.relist._watched:
            await found.kopf_lists_all()
        for _ in range(2):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
    found.relist.begin()
    found.woken.clear()
    running = asyncio.create_task(found.relist.run())
    for kind, namespace in found.relist.scopes:
        if kind in REFLECTED:
            await found.relist.list_after_jobs(kind, namespace)
    async with asyncio.timeout(60):
        await found.relist.complete()
    assert found.relist.serves("research") and found.woken == {JOB, OTHER}, "every job is reconciled"
    running.cancel()
