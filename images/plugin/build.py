"""One file that is the plugin, for several Pythons on one platform.

python images/plugin/build.py OUT [PLATFORM]      # PLATFORM as uv names it, by default x86_64-unknown-linux-gnu

Libraries are those of requirements.txt, with their hashes. What is the same for all Pythons is in the archive once.
"""

import shutil
import subprocess
import sys
import tempfile
import zipapp
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "operator"
PACKAGES = ("rljob_api", "rljob_placement", "rljob_import", "kubectl_rljob")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def install(version: str, platform: str, target: Path) -> None:
    """The libraries, and the plugin itself, as that Python would import them."""
    wanted = ["--python-version", version, "--python-platform", platform, "--only-binary", ":all:", "--require-hashes"]
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "-q", "--no-deps", "--target", str(target)]
    subprocess.run([*uv, *wanted, "-r", str(HERE / "requirements.txt")], check=True)
    for package in PACKAGES:
        shutil.copytree(SOURCE / package, target / package, ignore=shutil.ignore_patterns("__pycache__"))


def files(directory: Path) -> dict[Path, bytes]:
    found = (path for path in sorted(directory.rglob("*")) if path.is_file() and path.parts[-2] != "bin")
    return {path.relative_to(directory): path.read_bytes() for path in found if path.suffix != ".pyc"}


def build(out: Path, platform: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        content, trees = Path(scratch) / "content", dict[str, dict[Path, bytes]]()
        for version in PYTHONS:
            install(version, platform, Path(scratch) / version)
            trees[version] = files(Path(scratch) / version)
        first = trees[PYTHONS[0]]
        shared = {path for path, data in first.items() if all(tree.get(path) == data for tree in trees.values())}
        for version, tree in {"any": {path: first[path] for path in shared}, **trees}.items():
            for path, data in tree.items():
                if version == "any" or path not in shared:
                    (content / version / path).parent.mkdir(parents=True, exist_ok=True)
                    (content / version / path).write_bytes(data)
        shutil.copy(HERE / "start.py", content / "__main__.py")
        out.parent.mkdir(parents=True, exist_ok=True)
        zipapp.create_archive(content, out, interpreter="/usr/bin/env python3", compressed=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "x86_64-unknown-linux-gnu")
