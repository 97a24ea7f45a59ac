"""The release workflow, as far as it runs without a registry: its shell steps, its tags, the manifest for krew."""

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW = yaml.safe_load(next((ROOT / ".github/workflows").glob("release.*")).read_text())
STEPS = [(name, step) for name, job in WORKFLOW["jobs"].items() for step in job["steps"]]
SCRIPTS = [step["run"] for _, step in STEPS if "run" in step]


def step(**wanted: str) -> dict[str, Any]:
    return next(s for _, s in STEPS if wanted.items() <= s.items())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.split("\n")[0][:40])
def test_a_step_is_bash_that_parses_and_holds_no_secret(script: str) -> None:
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=20)
    assert "secrets." not in script


def test_images_have_the_tag_that_the_chart_asks_for(tmp_path: Path) -> None:
    chart = yaml.safe_load((ROOT / "charts/rljob/Chart.yaml").read_text())
    script = step(name="Tag as the chart names it, without the v")["run"]
    environment = {"VERSION": f"v{chart['appVersion']}", "GITHUB_ENV": str(tmp_path / "env")}
    subprocess.run(["bash", "-ec", script], env=environment, check=True, timeout=20)
    assert (tmp_path / "env").read_text() == f"TAG={chart['appVersion']}\n"
    assert step(id="build")["with"]["tags"].endswith(":${{ env.TAG }}")


def test_without_a_registry_nothing_is_pushed() -> None:
    pushing = {name for name, s in STEPS if "push" in str(s.get("run", "")) or "build-push" in s.get("uses", "")}
    guarded = {name for name, job in WORKFLOW["jobs"].items() if job.get("if") == "vars.REGISTRY != ''"}
    needing = {name for name, job in WORKFLOW["jobs"].items() if job.get("needs") in guarded}
    assert pushing == {"images", "charts"} == guarded | needing


def test_the_manifest_for_krew_has_the_digests_of_the_release(tmp_path: Path) -> None:
    archives = {p["uri"].rpartition("/")[2] for p in krew()["spec"]["platforms"]}
    for archive in archives:
        (tmp_path / archive).write_text(archive)
    subprocess.run(["bash", "-ec", "sha256sum ./*.tar.gz > checksums.txt"], cwd=tmp_path, check=True, timeout=20)
    command = [sys.executable, "images/plugin/krew.py", str(tmp_path / "checksums.txt"), "v1.2.3", "https://here"]
    written = yaml.safe_load(subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=60).stdout)
    assert written["spec"]["version"] == "v1.2.3"
    for platform in written["spec"]["platforms"]:
        archive = platform["uri"].removeprefix("https://here/")
        assert platform["sha256"] == hashlib.sha256(archive.encode()).hexdigest()
    built = step(name="Build for each platform")["run"]
    assert all(archive.removeprefix("kubectl-rljob-").removesuffix(".tar.gz") in built for archive in archives)


def krew() -> dict[str, Any]:
    manifest: dict[str, Any] = yaml.safe_load((ROOT / "images/plugin/krew.yaml").read_text())
    return manifest


def test_a_tag_that_is_not_the_version_of_the_source_is_refused() -> None:
    """The chart asks for images of its own version, and the plugin tells its own."""
    script = step(name="Refuse a tag that is not the version of the source")["run"]
    version = yaml.safe_load((ROOT / "charts/rljob/Chart.yaml").read_text())["version"]
    for tag, code in ((f"v{version}", 0), ("v99.0.0", 1)):
        assert subprocess.run(["bash", "-ec", script], cwd=ROOT, env={"VERSION": tag}, timeout=20).returncode == code
    waiting = {name for name, job in WORKFLOW["jobs"].items() if job.get("needs")}
    assert waiting == WORKFLOW["jobs"].keys() - {"version"}


def test_a_job_of_the_workflow_may_do_no_more_than_it_does() -> None:
    assert WORKFLOW["permissions"] == {"contents": "read"}
    signing = {name for name, s in STEPS if "cosign sign" in str(s.get("run", ""))}
    writing = {name for name, s in STEPS if "gh release" in str(s.get("run", ""))}
    held = {name: job.get("permissions", {}) for name, job in WORKFLOW["jobs"].items()}
    assert {name for name, of in held.items() if of.get("id-token") == "write"} == signing
    assert {name for name, of in held.items() if of.get("contents") == "write"} == writing
