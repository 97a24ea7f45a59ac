"""Patches of other people's packages: on proven versions only, and of the source that they were made for."""

import importlib
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from rljob_api import names
from rljob_trainer import patches
from rljob_trainer.commands import upstream
from rljob_trainer.failure import read_first
from rljob_trainer.megatron import compat
from rljob_trainer.patches import Patch, UnsupportedVersionError
from rljob_trainer.server import compat as vllm_compat


def patch(package: str = "pydantic", *versions: str, **fields: object) -> Patch:
    return Patch("a patch", package, versions, **fields)  # type: ignore[arg-type]


def test_a_patch_is_applied_to_a_version_that_it_was_proven_on() -> None:
    done: list[str] = []
    patches.install([patch("pydantic", "1.0", version("pydantic"), apply=lambda: done.append("patched"))])
    assert done == ["patched"]


def test_a_patch_is_applied_once_however_often_it_is_asked_for() -> None:
    done: list[str] = []
    wanted = patch("pydantic", version("pydantic"), apply=lambda: done.append("patched"))
    patches.install([wanted])
    patches.install([wanted])
    assert done == ["patched"], "two would collect each step's experts twice"


def test_one_error_names_every_package_with_what_was_found_and_what_is_supported_and_nothing_is_patched() -> None:
    done: list[str] = []
    good = patch("pyyaml", version("pyyaml"), apply=lambda: done.append("patched"))
    with pytest.raises(UnsupportedVersionError) as caught:
        patches.install([good, patch("pydantic", "1.0", "1.1"), patch("no-such-package", "3")])
    assert done == []
    assert str(caught.value) == (
        f"spec.image = no-such-package not installed, pydantic {version('pydantic')}: "
        "patches of the trainer are proven on no-such-package 3, pydantic 1.0 or 1.1 only; "
        "use an image made from images/trainer/requirements.txt"
    )


def test_a_patch_that_is_not_needed_here_asks_for_no_version() -> None:
    patches.install([patch("pydantic", "1.0", needed=lambda: False, apply=lambda: pytest.fail("applied"))])


def test_the_build_of_a_version_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    class Built:
        version = "2.13.0+cu130"

    monkeypatch.setattr(patches, "_distribution", lambda package: Built())
    assert patches.installed_version("torch") == "2.13.0"


def test_a_fingerprint_changes_with_the_source_of_what_is_replaced_and_not_with_its_comments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Installed:
        text = ""

        def locate_file(self, path: str) -> Path:
            file = tmp_path / path
            file.write_text(self.text)
            return file

    def of(text: str) -> str:
        installed = Installed()
        installed.text = text
        monkeypatch.setattr(patches, "_distribution", lambda package: installed)
        [found] = patches.fingerprints(patch(replaces={"a.py:A.f": ""})).values()
        return found

    first = of("class A:\n    def f(self):\n        return 1\n")
    assert of("import os\nclass A:\n    def f(self):  # why\n\n        return 1\n") == first
    assert of("class A:\n    def f(self):\n        return 2\n") != first


def test_a_bump_lists_what_changed_under_a_patch_what_is_gone_and_versions_it_was_not_proven_on() -> None:
    there, gone = "pydantic/version.py:version_info", "pydantic/version.py:no_such_name"
    now = patches.fingerprint("pydantic", there)
    proven = patch("pydantic", version("pydantic"), replaces={there: now})
    assert [*upstream.changes([proven])] == []
    assert [*upstream.changes([patch("pydantic", "1.0", "1.1", replaces={there: "before", gone: "before"})])] == [
        f"a patch: pydantic {version('pydantic')}, proven on 1.0 or 1.1",
        f"a patch: {there} {now}",
        f"a patch: {gone} is gone",
    ]


def test_upstream_did_not_change_what_megatrons_patches_replace(megatron_patches: list[Patch]) -> None:
    """When this fails, read what changed upstream, prove the patch again and put the new fingerprint into it."""
    here = [p for p in megatron_patches if p.package != "transformer-engine-torch"]
    assert len(here) > 10
    for found in here:
        assert patches.installed_version(found.package) in found.versions
        assert patches.fingerprints(found) == dict(found.replaces), found.name


def test_what_is_absent_here_is_patched_in_the_version_of_the_image_and_not_asked_for(
    megatron_patches: list[Patch],
) -> None:
    absent = [p for p in megatron_patches if patches.installed_version(p.package) == patches.ABSENT]
    assert [p.name for p in absent] == ["products of experts"]
    assert not list(upstream.changes(absent))
    lock = (Path(__file__).parents[2] / "images/megatron/transformer-engine.txt").read_text()
    assert [f"{p.package}=={version} " in lock for p in absent for version in p.versions] == [True]


@pytest.fixture(scope="module")
def megatron_patches() -> list[Patch]:
    compat.install()
    modules = [importlib.import_module(f"{compat.__name__}.{name}") for name in compat.MODULES]
    return [p for module in modules for p in module.PATCHES]


def test_every_module_of_patches_is_registered(megatron_patches: list[Patch]) -> None:
    files = {f.stem for f in Path(compat.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == set(compat.MODULES)


def test_patches_are_listed_without_importing_megatron() -> None:
    code = "import sys; from rljob_trainer.megatron import compat; sys.exit('megatron' in sys.modules or not compat.MODULES)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_rank_of_an_unsupported_image_says_so_as_why_its_attempt_failed_and_its_fork_server_lives(
    tmp_path: Path,
) -> None:
    code = """
from rljob_trainer.megatron import compat
from rljob_trainer.server import compat as vllm_compat
compat.VERSIONS = {"torch": ("1.0",)}
from rljob_trainer.rank import main as rank
rank.prepare()
print("ready", flush=True)
rank.main()
"""
    environment = os.environ | {"RANK": "0", "LOCAL_RANK": "0", names.ENV_ATTEMPT_DIR: str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (1, "ready\n")
    failure = read_first(tmp_path)
    assert failure is not None
    assert (failure.kind, failure.field, failure.rank) == ("configuration", "spec.image", 0)
    assert "patches of the trainer are proven on torch 1.0 only" in failure.message


def test_another_transformers_is_refused_with_one_sentence(
    monkeypatch: pytest.MonkeyPatch, megatron_patches: list[Patch]
) -> None:
    relied_on = [found for found in megatron_patches if found.package == "transformers"]
    monkeypatch.setattr(patches, "installed_version", lambda package: "5.18.0")
    with pytest.raises(UnsupportedVersionError, match=r"transformers 5.18.0: .*transformers 5.17.0 only"):
        patches.install(relied_on)


def test_upstream_did_not_change_what_vllms_patches_replace() -> None:
    names = {f.stem for f in Path(vllm_compat.__file__).parent.glob("*.py")} - {"__init__", "pieces"}
    assert names == set(vllm_compat.MODULES)
    for name in vllm_compat.MODULES:
        for found in importlib.import_module(f"{vllm_compat.__name__}.{name}").PATCHES:
            assert patches.installed_version("vllm") in found.versions
            assert patches.fingerprints(found) == dict(found.replaces), found.name


def test_another_vllm_is_refused_with_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "installed_version", lambda package: "0.33.0")
    with pytest.raises(patches.UnsupportedVersionError, match="vllm 0.33.0: .*vllm 0.32.0"):
        vllm_compat.install()
