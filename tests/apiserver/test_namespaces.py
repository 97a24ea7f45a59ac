"""An operator that serves named namespaces, with no more rights than the chart's Roles give: one that goes takes none of the others along."""

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import pytest

from api.specs import raw_spec
from apiserver.lab import Operator, until
from apiserver.proxy import Faults, proxy
from apiserver.world import administrator
from chart.chart import HELM, NO_HELM, documents
from e2e.control_plane import ControlPlane, free_ports
from rljob_operator.kube.client import KubernetesApi
from simulator.objects import job_object

pytestmark = [pytest.mark.slow, pytest.mark.skipif(HELM is None, reason=NO_HELM)]
HOME = "rljob-system"
PLURALS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}


@dataclass
class Site:
    """An operator of the namespaces `stays` and `goes`, before a real API server with RBAC."""

    plane: ControlPlane
    api: KubernetesApi
    operator: Operator
    jobs: int = field(default=0)

    def install(self, namespace: str) -> None:
        """The namespace, and what the chart puts there."""
        self._make({"kind": "Namespace", "metadata": {"name": namespace}})
        for obj in documents("watchNamespaces={stays,goes}"):
            if obj["metadata"].get("namespace") == namespace:
                self._make(obj)

    def install_cluster(self) -> None:
        for obj in documents("watchNamespaces={stays,goes}"):
            if "namespace" not in obj["metadata"]:
                self._make(obj)

    def _make(self, obj: dict) -> None:
        """As it is, also where another test has made one of this name."""
        if template := PLURALS.get(obj["kind"]):
            where = template.format(obj["metadata"].get("namespace", ""))
            try:
                self.plane.call("POST", where, obj)
            except urllib.error.HTTPError as error:
                assert error.code == 409, error.read()
                self.plane.call("PUT", f"{where}/{obj['metadata']['name']}", obj)

    def remove(self, namespace: str) -> None:
        """As the namespace controller does: what is in it, rights included, then the namespace."""
        for where in (PLURALS["RoleBinding"], PLURALS["Role"], "/apis/rljob.dev/v1alpha1/namespaces/{}/rljobs"):
            self.plane.call("DELETE", where.format(namespace))
        where = f"/api/v1/namespaces/{namespace}"
        gone = self.plane.call("DELETE", where)
        self.plane.call("PUT", f"{where}/finalize", gone | {"spec": {"finalizers": []}})

    async def serves(self, namespace: str) -> None:
        """A new job gets its StatefulSets."""
        self.jobs += 1
        name = f"job-{self.jobs}"
        await self.api.create(job_object(name, raw_spec(), namespace))
        where = f"/apis/apps/v1/namespaces/{namespace}/statefulsets"
        await until(lambda: any(s["metadata"]["name"].startswith(name) for s in self.plane.call("GET", where)["items"]))

    def health(self) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.operator.health_port}/healthz", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code


@asynccontextmanager
async def site(plane: ControlPlane, faults: Faults) -> AsyncIterator[Site]:
    account = f"/api/v1/namespaces/{HOME}/serviceaccounts/rljob/token"
    operator = Operator(plane.directory / "roles.kubeconfig", "stays", plane.directory / "operator-roles.log")
    operator.others, operator.lease_namespace, operator.health_port = ("goes",), HOME, free_ports(1)[0]
    found = Site(plane, administrator(plane), operator)
    async with proxy(plane.url, faults, Random(0)) as address:
        try:
            for namespace in (HOME, "stays", "goes"):
                found.install(namespace)
            found.install_cluster()
            token = plane.call("POST", account, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
            plane.write_kubeconfig(operator.kubeconfig, address)
            operator.use_token(token)
            operator.keep_alive()
            yield found
        finally:
            operator.kill()
            await found.api.close()


async def test_a_namespace_that_is_deleted_takes_no_other_along_and_is_served_again_when_it_is_back(
    plane: ControlPlane,
) -> None:
    async with site(plane, Faults(watch_seconds=2.0)) as found:
        await found.serves("stays")
        await found.serves("goes")
        found.remove("goes")
        await until(lambda: found.operator.tells("in namespace goes may not be read"))
        await found.serves("stays")
        await asyncio.sleep(5.0)  # two watches end meanwhile, and the operator must live through it
        assert found.health() == 200
        assert await asyncio.to_thread(found.operator.end) == 0  # the proxy, in our event loop, serves it meanwhile
        found.operator.keep_alive()
        await found.serves("stays")
        assert found.health() == 200
        found.install("goes")
        await found.serves("goes")
        await found.serves("stays")
        found.operator.keep_alive()
        assert found.operator.deaths == 0, found.operator.log.read_text()[-4000:]
