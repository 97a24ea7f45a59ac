"""Which cluster the demo and the end-to-end tests choose, and how images are named."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e import providers
from e2e.cluster import binaries, built_images, lifecycle, steps


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in providers.SETTINGS:
        monkeypatch.delenv(name, raising=False)


def test_a_machine_with_root_gets_the_local_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert providers.choose().name == "local"


def test_without_root_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(providers.Unavailable, match=r"RLJOB_KUBECONFIG(.|\n)*run as root"):
        providers.choose()


def test_a_kubeconfig_without_images_and_storage_class_is_refused_by_their_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RLJOB_KUBECONFIG", "/somewhere")
    with pytest.raises(
        providers.Unavailable, match="RLJOB_STORAGE_CLASS, RLJOB_OPERATOR_IMAGE, RLJOB_TRAINER_IMAGE not"
    ):
        providers.choose()


def test_an_image_is_named_after_its_source_and_nothing_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = tmp_path / "operator"
    (source / "__pycache__").mkdir(parents=True)
    (source / "module.py").write_text("a = 1")
    monkeypatch.setattr(built_images, "REPOSITORY", tmp_path)
    monkeypatch.setattr(built_images, "SOURCES", {"operator": ("operator",)})
    first = built_images.image_name("operator")
    (source / "__pycache__" / "module.pyc").write_bytes(b"compiled")
    assert built_images.image_name("operator") == first
    (source / "module.py").write_text("a = 2")
    changed = built_images.image_name("operator")
    assert changed.startswith("rljob.dev/operator:")
    assert changed.rpartition(":")[2] != first.rpartition(":")[2]


def test_the_printed_lines_let_a_shell_find_kubectl_and_our_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    kubeconfig, path = providers.shell_lines(providers.choose()).splitlines()
    assert kubeconfig == f"export KUBECONFIG={providers.Local.kubeconfig}"
    found = path.removeprefix("export PATH=").split(":")
    assert found[0] == providers.Local.tools
    assert (Path(found[1]) / "kubectl-rljob").exists()


def test_helm_renders_for_the_clusters_kubernetes_without_asking_it() -> None:
    """Without these variables `helm template` takes Kubernetes 1.20, which our charts refuse."""
    (helm,) = (component for component in binaries.COMPONENTS if component.name == "helm")
    (module,) = {
        line.split()[1] for line in (helm.directory / "go.mod").read_text().splitlines() if line.startswith("tool ")
    }
    assert module == "helm.sh/helm/v3/cmd/helm"
    major, minor, _ = binaries.KUBERNETES_VERSION.removeprefix("v").split(".")
    for package in ("chartutil", "lint/rules"):
        assert f"-X helm.sh/helm/v3/pkg/{package}.k8sVersionMajor={major}" in helm.linker_flags
        assert f"-X helm.sh/helm/v3/pkg/{package}.k8sVersionMinor={minor}" in helm.linker_flags


CHOSEN = """
from e2e.cluster.binaries import COMPONENTS, KUBERNETES_VERSION
from e2e.cluster.steps import BIN
found = next(c for c in COMPONENTS if c.name == "kubernetes")
print(KUBERNETES_VERSION, BIN.name, found.directory.name, found.linker_flags)
"""


@pytest.mark.parametrize(("minor", "version"), binaries.KUBERNETES_VERSIONS.items())
def test_each_kubernetes_is_compiled_from_its_own_modules_and_lies_apart_from_the_others(
    minor: str, version: str
) -> None:
    env = os.environ | {"RLJOB_KUBERNETES": minor}
    done = subprocess.run([sys.executable, "-c", CHOSEN], env=env, check=True, capture_output=True, text=True)
    chosen, programs, folder, flags = done.stdout.split(maxsplit=3)
    assert (chosen, programs, folder) == (version, f"bin-{minor}", minor)
    assert f"version.gitVersion={version} " in flags and f"version.gitMinor={minor.removeprefix('1.')}" in flags
    module = (steps.HERE / "components" / "kubernetes" / minor / "go.mod").read_text()
    assert f"\tk8s.io/kubernetes {version}" in module or f"require k8s.io/kubernetes {version}\n" in module
    assert f"k8s.io/api => k8s.io/api v0.{version.removeprefix('v1.')}\n" in module


def test_every_folder_of_modules_is_a_version_that_can_be_chosen() -> None:
    folders = {path.name for path in (steps.HERE / "components" / "kubernetes").iterdir()}
    assert folders == binaries.KUBERNETES_VERSIONS.keys()


@pytest.mark.parametrize(("recorded", "ended"), [(binaries.KUBERNETES_VERSION, False), ("v1.30.0", True), (None, True)])
def test_a_cluster_of_another_version_is_ended_before_this_one_comes_up(
    recorded: str | None, ended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if recorded:
        (tmp_path / lifecycle.VERSION).write_text(recorded)
    done: list[str] = []
    monkeypatch.setattr(lifecycle, "STATE", tmp_path)
    monkeypatch.setattr(lifecycle, "down", lambda: done.append("down"))
    monkeypatch.setattr(lifecycle, "run_step", lambda title, *_: done.append(title))
    for name in ("build_binaries", "build_images", "load_images"):
        monkeypatch.setattr(lifecycle, name, lambda *_: [])
    lifecycle.up()
    assert ("down" in done) == ended and done.index("control plane") > (done.index("down") if ended else -1)
    assert lifecycle.running_version(tmp_path) == binaries.KUBERNETES_VERSION
