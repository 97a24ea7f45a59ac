"""The project's own images: named after their content, built when that name is not there yet."""

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from steps import CACHE, HERE, REPOSITORY, run_step

SOURCES = {
    "operator": ("images/operator", "operator"),
    "trainer": ("images/trainer", "operator/rljob_api", "trainer"),
}


def image_name(image: str) -> str:
    """`rljob.dev/<image>:<hash of all files it is built from>`: a changed source is another image, never a stale one."""
    digest = hashlib.sha256()
    for path in source_files(image):
        digest.update(f"{path.relative_to(REPOSITORY)}\0".encode() + path.read_bytes())
    return f"rljob.dev/{image}:{digest.hexdigest()[:12]}"


def source_files(image: str) -> Iterator[Path]:
    for source in SOURCES[image]:
        for path in sorted((REPOSITORY / source).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def build_images(images: list[str]) -> list[str]:
    """Build those that are missing from the store. Returns their names."""
    run_step("base image", [HERE / "build-base-image"])
    names = [image_name(image) for image in images]
    for image, name in zip(images, names, strict=True):
        if not in_store(name):
            run_step(f"building the {image} image", [HERE / "build-image", name, f"images/{image}/Dockerfile"])
    return names


def load_images(names: list[str]) -> None:
    """Bring images from the store to the seed and to all running nodes, but those that were brought before."""
    loaded = CACHE / "images" / "loaded"
    before = loaded.read_text().split() if loaded.exists() else []
    missing = [name for name in names if name not in before]
    if missing:
        run_step("loading images into the nodes", [HERE / "images", "load", *missing])
        loaded.write_text("\n".join(before + missing))


def in_store(name: str) -> bool:
    return subprocess.run([HERE / "have-image", name], check=False).returncode == 0
