"""The chart, rendered by Helm, for tests."""

import copy
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.steps import BIN, KUBERNETES

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "rljob"
HELM = shutil.which("helm", path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
KUBERNETES_VERSION = f"{KUBERNETES}.0"
NO_HELM = "helm is neither on PATH nor built: `make cluster-up` builds it"

IMAGE = ("--set", "image.repository=rljob-operator")
"""The chart refuses its default, which names an image that is published nowhere."""
Objects = dict[tuple[str, str], dict[str, Any]]


@cache
def helm(*sets: str, verb: tuple[str, ...] = ("template", "rljob")) -> subprocess.CompletedProcess[str]:
    assert HELM
    # a Helm that was built from source believes in a very old cluster
    command = [HELM, *verb, str(CHART), "--namespace", "rljob-system", "--kube-version", KUBERNETES_VERSION]
    return subprocess.run(
        [*command, *IMAGE, *(a for s in sets for a in ("--set", s))], capture_output=True, text=True, timeout=60
    )


def documents(*sets: str) -> list[dict[str, Any]]:
    return copy.deepcopy(_documents(*sets))


@cache
def _documents(*sets: str) -> list[dict[str, Any]]:
    result = helm(*sets)
    assert result.returncode == 0, result.stderr
    return [o for o in yaml.load_all(result.stdout, yaml.CSafeLoader) if o]


def render(*sets: str) -> Objects:
    return {(o["kind"], o["metadata"]["name"]): o for o in documents(*sets)}


def rules(role: dict[str, Any]) -> set[tuple[str, str, str]]:
    """(group, resource, verb)"""
    return {
        (g, r, v) for rule in role["rules"] for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]
    }


def container(objects: Objects) -> dict[str, Any]:
    """The operator's."""
    (found,) = objects[("Deployment", "rljob")]["spec"]["template"]["spec"]["containers"]
    return found


def normal(value: Any) -> Any:
    """Helm writes 0.000001 as `1e-06`, which is a number in Go's YAML and a text in Python's."""
    if isinstance(value, dict):
        return {k: normal(v) for k, v in value.items()}
    if isinstance(value, list):
        return [normal(v) for v in value]
    return float(value) if isinstance(value, str) and re.fullmatch(r"\de-\d+", value) else value
