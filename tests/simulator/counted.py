"""What the groups of a backend count, in one form for all of them."""

from collections.abc import Sequence
from typing import Any

from rljob_api.backends import BackendName


def counted(backend: BackendName, groups: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Role -> pods that have to fit together; empty: this backend has no groups of ours."""
    counts: dict[str, int] = {}
    for group in groups:
        spec = group["spec"]
        match backend:
            case "volcano":
                counts = spec["minTaskMember"]
                assert spec["minMember"] == sum(counts.values())
            case "kai":
                counts = {one["name"]: one["minMember"] for one in spec["subGroups"]}
                assert spec["minMember"] == sum(counts.values())
            case "native":
                role = group["metadata"]["name"].split("-")[-2]
                counts |= {role: spec["schedulingPolicy"]["gang"]["minCount"]}
    return counts
