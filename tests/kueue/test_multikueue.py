"""A job that Kueue's MultiKueue sends to another cluster: two control planes, each with a real Kueue and an operator. `make kueue` compiles them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from apiserver.world import TURN, administrator
from e2e import kueue
from e2e.cluster.binaries import KUEUE, KWOK, is_built
from e2e.control_plane import available
from kueue.clusters import NAMESPACE, Clusters, Sender, clusters
from kueue.world import SECONDS, Tenant, turn_for_ever, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not available() or not is_built(KUEUE) or not is_built(KWOK), reason="`make kueue` compiles it"),
]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    with clusters(tmp_path_factory.mktemp("multikueue")) as found:
        yield found


async def test_a_job_runs_where_its_workload_is_admitted_and_the_first_cluster_shows_its_status(both: Clusters) -> None:
    async with sent(both) as (first, other):
        await until(other, "Running", attempt=1)
        assert "managedBy" not in other.job["spec"]
        assert len(await other.pods()) == 9
        await true(lambda: first.status.get("state") == "Running" and first.status["progress"]["step"] > 1)
        assert both.first.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"] == []
        other.finish = True
        await until(other, "Succeeded")
        await true(lambda: first.status == other.job["status"])
        assert "finalizers" not in first.job["metadata"]


async def test_a_job_whose_workload_is_deactivated_leaves_the_other_cluster_and_runs_there_again_when_it_is_active(
    both: Clusters,
) -> None:
    async with sent(both) as (first, other):
        await until(other, "Running", attempt=1)
        before = other.job["metadata"]["uid"]
        first.set_active(False)
        await true(lambda: not has_copy(other))
        async with asyncio.timeout(SECONDS):
            while await other.pods():  # noqa: ASYNC110
                await asyncio.sleep(TURN)
        first.set_active(True)
        await true(lambda: has_copy(other))
        await until(other, "Running", attempt=1)
        assert other.job["metadata"]["uid"] != before
        await true(lambda: first.status.get("state") == "Running")


@asynccontextmanager
async def sent(both: Clusters) -> AsyncIterator[tuple[Sender, Tenant]]:
    """The job in the first cluster, and its copy in the other. When it is deleted in the first, nothing is left in either."""
    first = Sender(both.first)
    other = Tenant(api=administrator(both.other), namespace=NAMESPACE, plane=both.other, save_every=1000)
    first.submit()
    try:
        async with asyncio.TaskGroup() as group:
            turning = group.create_task(turn_for_ever(other))
            await true(lambda: has_copy(other))
            yield first, other
            first.delete()
            await true(lambda: not has_copy(other) and not kueue.workloads(both.other, NAMESPACE))
            turning.cancel()
        assert kueue.workloads(both.first, NAMESPACE) == []
    finally:
        await other.end()


def has_copy(other: Tenant) -> bool:
    return any(kind == "RLJob" for kind, _, _ in other.cluster.objects)


async def true(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(TURN)
