"""The project's own images: named after their content, built when that name is not there yet."""

import hashlib
import re
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from e2e.cluster.steps import CACHE, REPOSITORY, SCRIPTS, run_step

SOURCES = {
    "operator": ("images/operator", "operator"),
    "trainer": ("images/trainer", "operator/rljob_api", "trainer"),
    "environment": ("images/environment",),
}
REPOSITORY_NAME = "rljob.dev"


def image_name(image: str) -> str:
    """`<repository>/<image>:<hash of what it is built from>`: a changed source is another image, never a stale one."""
    digest = hashlib.sha256()
    for path in source_files(image):
        digest.update(f"{path.relative_to(REPOSITORY)}\0".encode() + path.read_bytes())
    return f"{REPOSITORY_NAME}/{image}:{digest.hexdigest()[:12]}"


def source_files(image: str) -> Iterator[Path]:
    for source in SOURCES[image]:
        for path in sorted((REPOSITORY / source).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def build_images(images: list[str]) -> list[str]:
    """Build those that are missing from the store. Returns their names."""
    run_step("base image", SCRIPTS / "build-base-image")
    names = {image: image_name(image) for image in images}
    missing = [image for image, name in names.items() if not in_store(name)]
    for done, image in enumerate(missing, 1):
        progress = partial(steps_built, then="".join(f", then {later}" for later in missing[done:]))
        command = (SCRIPTS / "build-image", names[image], f"images/{image}/Dockerfile")
        run_step(f"{image} image", *command, progress=progress)
    return list(names.values())


def steps_built(log: str, then: str) -> str:
    """The last step of the Dockerfile that has begun, for example `[1/2] STEP 8/9: RUN`."""
    begun = re.findall(r"^(?:\[\d+/\d+\] )?STEP \d+/\d+: \w+", log, re.MULTILINE)
    return (begun[-1] if begun else "reading the sources") + then


def load_images(names: list[str]) -> None:
    """Bring images from the store to the seed and to all running nodes, but those that are there. They replace former ones of their repositories."""
    loaded = CACHE / "images" / "loaded"
    before = loaded.read_text().split() if loaded.exists() else []
    missing = [name for name in names if name not in before]
    if missing:
        run_step("loading images", SCRIPTS / "images", "load", *missing)
        replaced = {_repository(name) for name in missing}
        loaded.write_text("\n".join([name for name in before if _repository(name) not in replaced] + missing))


def _repository(name: str) -> str:
    return name.rpartition(":")[0]


def in_store(name: str) -> bool:
    return subprocess.run([SCRIPTS / "have-image", name], check=False).returncode == 0
