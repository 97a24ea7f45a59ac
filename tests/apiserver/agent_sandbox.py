"""agent-sandbox's own CRDs on the real API server, and a world in which its controllers are those of the simulator."""

import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from apiserver.lab import Lab
from e2e.cluster.binaries import AGENT_SANDBOX
from e2e.control_plane import ControlPlane
from e2e.controllers import source
from rljob_operator.cache.cluster import SANDBOX_KINDS
from rljob_operator.kube.api import Conflict, NotFound, Object
from simulator.world import NAMESPACE

AVAILABLE = shutil.which("go") is not None


def install(plane: ControlPlane, directory: Path) -> None:
    """Without its webhook between versions: what we write has the stored one."""
    for kind in SANDBOX_KINDS:
        name = f"extensions.agents.x-k8s.io_{kind.lower()}s.yaml"
        crd = yaml.safe_load((source(AGENT_SANDBOX, "sigs.k8s.io/agent-sandbox") / "k8s" / "crds" / name).read_text())
        crd["spec"].pop("conversion")
        crd["spec"]["versions"] = [version for version in crd["spec"]["versions"] if version["storage"]]
        (directory / name).write_text(yaml.safe_dump(crd))
        plane.install_crd(directory / name)


@dataclass
class SandboxLab(Lab):
    """Sandboxes are in the mirror alone: nobody reads them."""

    noted: dict[str, Object] = field(default_factory=dict)
    """Annotations of the pods that do not leave, by uid."""

    async def _pull(self) -> None:
        sandboxes = {key: obj for key, obj in self.cluster.objects.items() if key[0] == "Sandbox"}
        await super()._pull()
        for kind in SANDBOX_KINDS:
            for obj in (await self._api.listing(kind, self.namespace)).objects:
                meta = obj["metadata"] | {"namespace": NAMESPACE}
                self.cluster.objects[kind, NAMESPACE, meta["name"]] = obj | {"metadata": meta}
        self.cluster.objects |= sandboxes
        stay = [meta for pod in self.cluster.pods(NAMESPACE) if "deletionTimestamp" not in (meta := pod["metadata"])]
        self.noted = {meta["uid"]: dict(meta.get("annotations") or {}) for meta in stay}

    async def _push_pods(self, before: dict[str, Object]) -> None:
        for claim in self.cluster.removed:
            if claim["kind"] == "SandboxClaim":
                await self._finish(claim)
        self.cluster.removed.clear()
        await super()._push_pods(before)
        for meta in [pod["metadata"] for pod in self.cluster.pods(NAMESPACE)]:
            if meta["uid"] in self.noted and "deletionTimestamp" in meta:
                with suppress(NotFound, Conflict):
                    await self._api.delete("Pod", self.namespace, meta["name"], meta["uid"])
            elif meta["uid"] in self.noted and meta.get("annotations") != self.noted[meta["uid"]]:
                await self._note(meta)

    async def _note(self, meta: Object) -> None:
        """What agent-sandbox writes into a pod that was claimed."""
        labels = {"agents.x-k8s.io/warm-pool-sandbox": None}
        body = {"metadata": {"annotations": meta["annotations"], "labels": labels}}
        where = f"/api/v1/namespaces/{self.namespace}/pods/{meta['name']}"
        await self._request("PATCH", "Pod", where, body, "application/merge-patch+json")

    async def _finish(self, claim: Object) -> None:
        """What the garbage collector does when nothing is left that the claim owns."""
        with suppress(NotFound, Conflict):
            guard = {"op": "test", "path": "/metadata/uid", "value": claim["metadata"]["uid"]}
            done = {"op": "remove", "path": "/metadata/finalizers"}
            await self._api.patch("SandboxClaim", self.namespace, claim["metadata"]["name"], [guard, done])
