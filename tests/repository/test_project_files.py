"""Files of the project itself: what lies at the top, the licence, the changelog, the table of tested versions."""

import hashlib
import re
import tomllib
from collections.abc import Callable

from e2e.cluster.binaries import KUBERNETES_VERSIONS
from kubectl_rljob import command_line
from repository.pages import ROOT, TRACKED

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TOP = {
    *(
        "operator",
        "trainer",
        "crds",
        "charts",
        "images",
        "tests",
        "e2e",
        "docs",
        "examples",
        "benchmarks",
        "gitops",
        ".ci",
        ".github",
    ),
    *("Dockerfile.megatron", "Makefile", "mkdocs.yml", "pyproject.toml", ".gitignore", ".dockerignore"),
    *("README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
}
APACHE = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
"""SHA-256 of the text of the Apache License 2.0 as apache.org publishes it, with an empty line before it."""


def test_nothing_else_lies_at_the_top() -> None:
    assert {file.split("/")[0] for file in TRACKED} == TOP


def test_the_licence_is_the_one_that_the_package_declares() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert hashlib.sha256(b"\n" + (ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE


def test_the_changelog_begins_with_the_release_of_this_tree() -> None:
    releases = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert releases[0] == PROJECT["version"]


def test_the_plugin_says_the_version_of_the_package() -> None:
    assert PROJECT["version"] == command_line.VERSION


def test_no_page_names_an_address_to_write_to() -> None:
    for page in ("SECURITY.md", "CONTRIBUTING.md"):
        assert not re.search(r"\S@\S+\.\w", (ROOT / page).read_text())


def pinned(file: str, pattern: str) -> str:
    (version,) = set(re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE))
    return str(version)


def requirement(package: str) -> Callable[[str], str]:
    return lambda file: pinned(file, rf"^{package}==([\d.]+)")


def kubernetes(file: str) -> str:
    """The version that is compiled unless a variable names another release."""
    release = pinned("e2e/cluster/steps.py", r'"RLJOB_KUBERNETES"\) or "([\d.]+)"')
    return pinned(file, rf'"{re.escape(release)}": "v([\d.]+)"')


KUEUES = ("Kueue 0.19", "Kueue 0.18")
"""`make kueue` runs the first, and any with `KUEUE=`."""
PINS: dict[str, Callable[[str], str]] = {
    "Kubernetes": kubernetes,
    "Python": lambda file: pinned(file, r'^requires-python = ">=([\d.]+),'),
    "Helm": lambda file: pinned(file, r"helm\.sh/helm/v3 v([\d.]+)"),
    "kopf": requirement("kopf"),
    "torch": requirement("torch"),
    "megatron-core": requirement("megatron-core"),
    "megatron-bridge": requirement("megatron-bridge"),
    "vLLM": requirement("vllm"),
    "transformers": requirement("transformers"),
    "Transformer Engine": requirement("transformer-engine"),
    "CUDA runtime": lambda file: pinned(file, r"^nvidia-cuda-runtime==(\d+\.\d+)"),
    **dict.fromkeys(KUEUES, lambda file: pinned(file, r"sigs\.k8s\.io/kueue v([\d.]+)")),
    "Volcano (its PodGroup, without its scheduler)": lambda file: pinned(file, r"volcano\.sh/volcano@v([\d.]+)"),
    "agent-sandbox": lambda file: pinned(file, r"sigs\.k8s\.io/agent-sandbox v([\d.]+)"),
}
"""By component: its version as a file pins it."""
TABLE = re.findall(r"^\| (.+?) \| (\d[\d.]*) \| `(.+?)` \|$", (ROOT / "docs/support.md").read_text(), re.MULTILINE)


def test_the_table_of_tested_versions_has_what_the_repository_pins() -> None:
    assert [row[0] for row in TABLE] == list(PINS)
    assert {name: version for name, version, _ in TABLE} == {name: PINS[name](file) for name, _, file in TABLE}


def test_the_table_of_kubernetes_has_every_release_that_can_be_compiled_and_the_one_that_always_is() -> None:
    page = (ROOT / "docs/support.md").read_text()
    rows = re.findall(r"^\| (1\.\d+) \| (1\.\d+\.\d+) \| (.+?) \|$", page, re.MULTILINE)
    assert {release: f"v{version}" for release, version, _ in rows} == KUBERNETES_VERSIONS
    (always,) = (version for _, version, when in rows if when.startswith("with every change"))
    assert always == dict(row[:2] for row in TABLE)["Kubernetes"]


def test_the_chart_refuses_clusters_before_the_release_that_the_page_names() -> None:
    oldest = pinned("charts/rljob/Chart.yaml", r'^kubeVersion: ">=(\d+\.\d+)\.')
    assert f"refuses clusters before {oldest}," in (ROOT / "docs/support.md").read_text()


def test_the_patches_are_proven_on_the_versions_of_the_table() -> None:
    from rljob_trainer.megatron.compat import VERSIONS as MEGATRON
    from rljob_trainer.server.compat import VERSIONS as VLLM

    table = {name: version for name, version, _ in TABLE}
    assert {name: (table[name],) for name in MEGATRON} == MEGATRON
    assert (table["vLLM"],) == VLLM
