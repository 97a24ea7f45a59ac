"""The beginning of kubectl-rljob.pyz: unpacks its libraries once, because compiled ones cannot be imported from an archive, and runs the plugin."""

import hashlib
import os
import sys
import tempfile
import zipfile
from pathlib import Path


def unpacked(archive: Path, version: str) -> Path:
    """The directory with what this Python needs of the archive. Several processes may unpack at once; one of them wins."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kubectl-rljob"
    found = cache / f"{hashlib.sha256(archive.read_bytes()).hexdigest()[:16]}-{version}"
    if not found.exists():
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch, zipfile.ZipFile(archive) as file:
            unpack(file, version, Path(scratch) / "new")
            try:
                (Path(scratch) / "new").rename(found)
            except OSError:
                assert found.exists(), f"cannot write {found}"
    return found


def unpack(file: zipfile.ZipFile, version: str, target: Path) -> None:
    """Files of all Pythons, and of this one."""
    for name in file.namelist():
        of, _, path = name.partition("/")
        if of in ("any", version) and path and not name.endswith("/"):
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_bytes(file.read(name))


def main() -> int:
    archive, version = Path(sys.argv[0]).resolve(), "{}.{}".format(*sys.version_info)
    with zipfile.ZipFile(archive) as file:
        versions = sorted({name.partition("/")[0] for name in file.namelist()} - {"any", "__main__.py"})
    if version not in versions:
        sys.exit(f"kubectl-rljob.pyz runs on Python {', '.join(versions)}, and this is {version}")
    try:
        sys.path.insert(0, str(unpacked(archive, version)))
    except OSError as error:
        sys.exit(
            f"kubectl-rljob.pyz cannot unpack its libraries: {error}. Set XDG_CACHE_HOME to a directory that you may write to"
        )
    if Path(sys.argv[0]).name.startswith("kubectl_complete"):
        from kubectl_rljob.complete import main as complete

        return complete()
    from kubectl_rljob.__main__ import main as plugin

    return plugin()


if __name__ == "__main__":
    sys.exit(main())
