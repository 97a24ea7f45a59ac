"""What the operator knows of a job goes with it, whenever it vanishes: else its claims would keep nodes, and its namesake would inherit the rest."""

import kopf
import pytest

from api.specs import raw_spec
from rljob_operator.kube.api import ApiError, Key, Object
from rljob_operator.kube.credentials import Credentials
from rljob_operator.operator import Operator, Options
from simulator.cluster import FakeCluster
from simulator.objects import job_object
from simulator.operating import operating
from simulator.world import NAMESPACE

KEY = (NAMESPACE, "demo")


class Silent(FakeCluster):
    """Writes no status, and does not say why."""

    async def replace(self, obj: Object, subresource: str = "") -> Object:
        raise ApiError(0, "the connection is broken")


async def test_nothing_is_kept_of_a_write_without_an_answer_when_its_job_is_gone() -> None:
    cluster = Silent()
    cluster.put(job_object("demo", raw_spec()))
    operator = operating(cluster)
    with pytest.raises(ApiError, match="broken"):
        await operator(KEY)
    assert operator._writer._unanswered.keys() == {KEY}
    operator._cache.delete("RLJob", KEY)
    await operator(KEY)
    assert operator._writer._unanswered == {}


async def test_a_job_that_vanishes_while_its_namespace_is_not_served_is_forgotten() -> None:
    """Its namespace was deleted and made again: the list of jobs comes before all the others, and nobody asks for this job once more."""
    account = kopf.ConnectionInfo(server="https://127.0.0.1:1", insecure=True)
    operator = Operator(Options(identity="one"), Credentials(lambda: account))
    passes: list[Key] = []

    async def reconcile(key: Key) -> None:
        passes.append(key)

    try:
        meta = {"uid": "u", "resourceVersion": "1"}
        job = job_object("demo", raw_spec())
        operator._cache.of_kind("RLJob").put(job | {"metadata": job["metadata"] | meta})
        await operator._reconcile(reconcile, KEY)  # type: ignore[arg-type]
        assert passes == [], "what was not listed yet would look absent"
        operator._cache.of_kind("RLJob").delete(KEY)
        await operator._reconcile(reconcile, KEY)  # type: ignore[arg-type]
        assert passes == [KEY]
    finally:
        await operator.close()
