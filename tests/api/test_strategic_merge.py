"""Our strategic merge patches against kubectl's, which has the API server's own code."""

import json
import shutil
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest

from e2e.cluster.steps import BIN
from rljob_api.pod_patch import PodPatch, merged
from rljob_operator.render.template import pod_template
from simulator.makers import META, make_job

KUBECTL = shutil.which("kubectl", path=str(BIN))
pytestmark = pytest.mark.skipif(not KUBECTL, reason="kubectl is not built: `make cluster-up` builds it")

PATCHES: list[dict[str, Any]] = [
    {"metadata": {"annotations": {"a": "b"}}, "spec": {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}},
    {
        "spec": {
            "containers": [{"name": "trainer", "env": [{"name": "HOME", "value": "/x"}, {"name": "Z", "value": "1"}]}]
        }
    },
    {"spec": {"containers": [{"name": "trainer", "env": [{"name": "HOME", "$patch": "delete"}]}]}},
    {
        "spec": {
            "containers": [{"name": "trainer", "env": [{"name": "A", "value": "1"}, {"name": "USER", "value": "u"}]}]
        }
    },
    {
        "spec": {
            "containers": [{"name": "trainer", "env": [{"name": "USER", "value": "u"}, {"name": "HOME", "value": "h"}]}]
        }
    },
    {"spec": {"containers": [{"name": "trainer", "securityContext": {"readOnlyRootFilesystem": None}}]}},
    {"spec": {"securityContext": {"$patch": "replace", "fsGroup": 7}}},
    {"spec": {"securityContext": {"supplementalGroups": [1, 2]}}},
    {
        "spec": {
            "volumes": [{"name": "gib", "hostPath": {"path": "/home/gib"}}],
            "containers": [{"name": "trainer", "volumeMounts": [{"name": "gib", "mountPath": "/usr/local/gib"}]}],
            "initContainers": [{"name": "agent", "image": "agent:1", "restartPolicy": "Always"}],
        }
    },
    {
        "spec": {
            "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "nic"}],
            "containers": [{"name": "trainer", "resources": {"claims": [{"name": "nic"}]}}],
        }
    },
    {"spec": {"imagePullSecrets": [{"name": "more"}], "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}]}},
    {"spec": {"dnsConfig": {"nameservers": ["10.0.0.1"], "options": [{"name": "ndots", "value": "2"}]}}},
]


def random_patch(random: Random) -> dict[str, Any]:
    """Variables of the container, some of them new, some deleted, in any order."""
    known = [f"RLJOB{i}" for i in range(4)] + ["HOME", "USER", "PYTHONUNBUFFERED"]
    chosen = random.sample(known, random.randint(1, len(known)))
    env = [
        {"name": name, "$patch": "delete"} if random.random() < 0.3 else {"name": name, "value": str(random.random())}
        for name in chosen
    ]
    return {"spec": {"containers": [{"name": "trainer", "env": env}]}}


@pytest.mark.parametrize("patch", [*PATCHES, *(random_patch(Random(seed)) for seed in range(12))])
def test_our_patches_make_what_kubectl_makes_of_them(patch: dict[str, Any], tmp_path: Path) -> None:
    PodPatch.model_validate({"models": patch})
    template = pod_template(META, make_job(imagePullSecrets=[{"name": "pull"}]).spec, "trainer")
    assert patched(tmp_path, merged(template, patch), {}) == patched(tmp_path, template, patch)


def patched(directory: Path, template: dict[str, Any], patch: dict[str, Any]) -> Any:
    """By kubectl, without an API server."""
    file = directory / "template.json"
    obj = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template}
    file.write_text(json.dumps(obj))
    text = json.dumps({"metadata": {"labels": {"patched": "yes"}}, "template": patch})
    command = [str(KUBECTL), "patch", "--local", f"--filename={file}", "--type=strategic", f"--patch={text}", "-o=json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return json.loads(done.stdout)["template"]
