"""Our strategic merge patches against the API server's own: a PodTemplate that is patched there, and one that we have patched."""

from typing import Any

import pytest

from e2e.control_plane import ControlPlane
from rljob_api.pod_patch import PodPatch
from rljob_api.strategic_merge import merged
from rljob_operator.render.template import pod_template
from simulator.makers import META, make_job

pytestmark = pytest.mark.slow

WHERE = "/api/v1/namespaces/default/podtemplates"
STRATEGIC = "application/strategic-merge-patch+json"
PATCHES: list[dict[str, Any]] = [
    {"metadata": {"annotations": {"a": "b"}}, "spec": {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}},
    {
        "spec": {
            "containers": [{"name": "trainer", "env": [{"name": "HOME", "value": "/x"}, {"name": "Z", "value": "1"}]}]
        }
    },
    {"spec": {"containers": [{"name": "trainer", "env": [{"name": "HOME", "$patch": "delete"}]}]}},
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


@pytest.mark.parametrize("number", range(len(PATCHES)))
def test_our_patches_make_what_the_api_server_makes_of_them(plane: ControlPlane, number: int) -> None:
    patch = PATCHES[number]
    PodPatch.model_validate({"models": patch})
    template = pod_template(META, make_job(imagePullSecrets=[{"name": "pull"}]).spec, "trainer")
    theirs, ours = f"theirs-{number}", f"ours-{number}"
    plane.call("POST", WHERE, {"metadata": {"name": theirs}, "template": template})
    patched = plane.call("PATCH", f"{WHERE}/{theirs}", {"template": patch}, content=STRATEGIC)
    made = plane.call("POST", WHERE, {"metadata": {"name": ours}, "template": merged(template, patch)})
    assert made["template"] == patched["template"]
