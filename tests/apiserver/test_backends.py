"""What kueue, volcano and kai are given, against those projects' own sources: CRDs in a real API server, Kueue's constants.

KAI's module cannot be had here. Its PodGroup has the fields of pkg/apis/scheduling/v2alpha2/podgroup_types.go that a user sets, as of KAI 0.15.
"""

import re
import shutil
import urllib.error
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.specs import make_spec
from apiserver.go_modules import source
from e2e.control_plane import ControlPlane
from rljob_api import names
from rljob_api.spec import RLJobSpec
from rljob_operator.render import scheduler_objects
from rljob_operator.render.template import pod_template
from simulator.makers import META

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("go"), reason="Go modules hold the sources")]

KUEUE = ("sigs.k8s.io/kueue@v0.19.2", "h1:mPNzr37u0nwI7ikST5QQl5gg6EgtYOAvC9ZbTgywdN8=")
KUEUE_BEFORE = ("sigs.k8s.io/kueue@v0.18.4", "h1:+Vs1H5sjXeSGG8BxvkrJCrpovB0vpuIHfkwSmlNSkyc=")
VOLCANO = ("volcano.sh/volcano@v1.15.0", "h1:dW8hW/FPDqwcJ1GxGfpR/9qToH1t3+ySn+oaiEMfpm4=")
ROOT = Path(__file__).parents[2]
TEXT, COUNT = {"type": "string"}, {"type": "integer", "format": "int32"}
SUBGROUP_NAME = {"type": "string", "minLength": 1, "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
SUBGROUP = {"name": SUBGROUP_NAME, "parent": SUBGROUP_NAME, "minMember": COUNT | {"minimum": 0}}
KAI_SPEC = {
    "minMember": COUNT | {"minimum": 1},
    "priorityClassName": TEXT,
    "queue": TEXT,
    "subGroups": {"type": "array", "items": {"type": "object", "required": ["name"], "properties": SUBGROUP}},
}
KAI_VERSION = {
    "name": "v2alpha2",
    "served": True,
    "storage": True,
    "schema": {
        "openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": KAI_SPEC}}}
    },
}
KAI_NAMES = {"kind": "PodGroup", "listKind": "PodGroupList", "plural": "podgroups", "singular": "podgroup"}
KAI_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podgroups.scheduling.run.ai"},
    "spec": {"group": "scheduling.run.ai", "names": KAI_NAMES, "scope": "Namespaced", "versions": [KAI_VERSION]},
}


@pytest.fixture(scope="module")
def volcano(plane: ControlPlane) -> ControlPlane:
    bases = source(*VOLCANO) / "installer" / "helm" / "chart" / "volcano" / "crd" / "bases"
    plane.install_crd(bases / "scheduling.volcano.sh_podgroups.yaml")
    return plane


@pytest.fixture(scope="module")
def kai(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> ControlPlane:
    file = tmp_path_factory.mktemp("kai") / "podgroups.yaml"
    file.write_text(yaml.safe_dump(KAI_CRD))
    plane.install_crd(file)
    return plane


def create(plane: ControlPlane, group: dict[str, Any]) -> dict[str, Any]:
    """Strictly: a field that the CRD does not have is an error."""
    unowned = {k: v for k, v in group["metadata"].items() if k not in ("namespace", "ownerReferences")}
    where = f"/apis/{group['apiVersion']}/namespaces/default/podgroups?fieldValidation=Strict"
    made: dict[str, Any] = plane.call("POST", where, group | {"metadata": unowned})
    return made


def test_volcanos_crd_takes_our_pod_group_as_it_is(volcano: ControlPlane) -> None:
    (group,) = scheduler_objects(META, spec(backend="volcano"))
    assert create(volcano, group)["spec"] == group["spec"], "nothing was dropped"


def test_kais_pod_group_has_all_fields_that_we_write(kai: ControlPlane) -> None:
    (group,) = scheduler_objects(META, spec(backend="kai"))
    assert create(kai, group)["spec"] == group["spec"], "nothing was dropped"


@pytest.mark.parametrize("wrong", [{"minMembers": 1}, {"minMember": "1"}, {"minTaskMember": {"trainer": "all"}}])
def test_volcanos_crd_refuses_others(volcano: ControlPlane, wrong: dict[str, Any]) -> None:
    (group,) = scheduler_objects(META, spec(backend="volcano"))
    group["metadata"]["name"] = "wrong"
    with pytest.raises(urllib.error.HTTPError, match="4[02][02]"):
        create(volcano, group | {"spec": group["spec"] | wrong})


@pytest.mark.parametrize("kueue", [KUEUE, KUEUE_BEFORE], ids=lambda kueue: kueue[0])
def test_kueue_knows_every_label_and_annotation_that_we_write(kueue: tuple[str, str]) -> None:
    """It has no object that we make: it makes a Workload of the pods."""
    template = pod_template(META, spec(backend="kueue", topologyLevels=["rack"]), names.ROLE_TRAINER)
    written = template["metadata"]["labels"] | template["metadata"]["annotations"]
    keys = {key for key in written if "kueue" in key}
    assert len(keys) == 6 and keys <= constants(*kueue)


def test_kueues_crds_take_the_objects_of_the_example(plane: ControlPlane, tmp_path: Path) -> None:
    bases = source(*KUEUE) / "config" / "components" / "crd" / "bases"
    files = ("queues.yaml", "multikueue.yaml", "workload.yaml")
    objects = [o for file in files for o in yaml.safe_load_all((ROOT / "examples" / "kueue" / file).read_text())]
    ours = [obj for obj in objects if obj["apiVersion"].startswith("kueue.")]
    plurals = {kind: "topologies" if kind == "Topology" else f"{kind.lower()}s" for kind in {o["kind"] for o in ours}}
    for plural in plurals.values():
        crd = yaml.safe_load((bases / f"kueue.x-k8s.io_{plural}.yaml").read_text())
        crd["spec"].pop("conversion", None)  # a webhook of Kueue's between its versions; the example has the stored one
        (tmp_path / plural).write_text(yaml.safe_dump(crd))
        plane.install_crd(tmp_path / plural)
    for namespace in {obj["metadata"].get("namespace") for obj in ours} - {None}:
        plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    for obj in ours:
        namespace = obj["metadata"].get("namespace")
        where = f"/apis/{obj['apiVersion']}/" + (f"namespaces/{namespace}/" if namespace else "")
        made = plane.call("POST", f"{where}{plurals[obj['kind']]}?fieldValidation=Strict", obj)
        assert made["metadata"]["name"] == obj["metadata"]["name"]


def spec(**scheduling: Any) -> RLJobSpec:
    requests = {"template": {"resources": {"requests": {"cpu": "1500m"}}, "priorityClassName": "high"}}
    trainer = {"device": "gpu", "nodes": 4, "processesPerNode": 8} | requests
    rollout = {"replicas": 3, "minReplicas": 2}
    return make_spec(trainer=trainer, rollout=rollout, scheduling={"queue": "team"} | scheduling)


def constants(module: str, digest: str) -> set[str]:
    """Strings to which the module's Go files give a name; those of its tests left out."""
    root = source(module, digest)
    files = [f for f in root.rglob("*.go") if not (f.name.endswith("_test.go") or "test" in f.relative_to(root).parts)]
    return {text for file in files for text in re.findall(r' = "([^"\n]+/[^"\n]+)"', file.read_text())}
