"""Which cluster the demo and the end-to-end tests choose, and how images are named."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e import demo, providers
from e2e.cluster import binaries, built_images, lifecycle, steps


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in providers.SETTINGS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """All that is on PATH of a machine with root: the programs that a cluster on it needs."""
    for program in ("apt-get", "go"):
        (tmp_path / program).touch(mode=0o755)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_a_machine_with_root_gets_the_local_cluster(programs: Path) -> None:
    assert providers.choose().name == "local"


def test_without_root_the_message_says_what_to_install(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(providers.Unavailable, match=r"needs root\.(.|\n)*RLJOB_KUBECONFIG(.|\n)*run as root"):
        providers.choose()


@pytest.mark.parametrize(
    ("program", "need"), [("go", "Go 1.26 or later (go)"), ("apt-get", "Debian or Ubuntu (apt-get)")]
)
def test_the_demo_of_a_machine_without_go_or_debian_is_the_same_job_without_kubernetes(
    program: str, need: str, programs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (programs / program).unlink()
    run: list[list[str]] = []

    def note(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        run.append([part.removeprefix(f"{providers.ROOT}/") for part in command[1:]])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", note)
    assert demo.main() == 0
    assert need in capsys.readouterr().out
    mount = f"/data={demo.WITHOUT_KUBERNETES}"
    assert run == [
        ["examples/arithmetic/prepare.py", str(demo.WITHOUT_KUBERNETES).removeprefix(f"{providers.ROOT}/")],
        ["-m", "rljob_trainer", "run", "examples/arithmetic/rljob.yaml", "--mount", mount],
    ]


def test_a_demo_that_was_given_half_a_cluster_asks_for_the_other_half(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RLJOB_KUBECONFIG", "/somewhere")
    monkeypatch.setenv("PATH", "")
    assert demo.main() == 2
    assert "RLJOB_STORAGE_CLASS" in capsys.readouterr().err


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


def test_the_printed_lines_let_a_shell_find_kubectl_and_our_plugin(programs: Path) -> None:
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


def test_progress_of_compiling_counts_packages_and_names_what_comes_after() -> None:
    log = "go: downloading k8s.io/api v0.34.3\ninternal/goarch\nk8s.io/api/core/v1\n"
    assert binaries.packages_compiled(log, 1600, ", then etcd, then helm") == "2 of 1600 packages, then etcd, then helm"
    assert binaries.packages_compiled("", 1600, "") == "reading the cache of packages"


def test_progress_of_an_image_is_the_step_of_its_file_that_has_begun() -> None:
    log = "[1/2] STEP 7/9: ARG UV_NO_CACHE=1\n--> Using cache 96cd\n[1/2] STEP 8/9: RUN pip install x\nDownloading torch\n"
    assert built_images.steps_built(log, ", then environment") == "[1/2] STEP 8/9: RUN, then environment"


def test_a_step_that_takes_longer_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(steps, "CACHE", tmp_path)
    monkeypatch.setattr(steps, "QUIET_SECONDS", 0.01)
    monkeypatch.setattr(steps, "SIGN_OF_LIFE_SECONDS", 0.01)
    go_on = tmp_path / "go-on"

    def progress(log: str) -> str:
        if log:
            go_on.touch()  # it was seen half-way: the command may end
        return f"{len(log.splitlines())} of 2"

    log = steps.run_step(
        "baking", "sh", "-c", f"echo one; until [ -e {go_on} ]; do :; done; echo two", progress=progress
    )
    assert log.read_text() == "one\ntwo\n"
    assert "baking: 0 s, 1 of 2" in capsys.readouterr().err


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
