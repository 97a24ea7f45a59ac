"""Make the images that the cluster runs from the machine itself, without a builder: what it has in /usr, and this repository's source.

    python -m benchmarks.gpu_cluster.images       # see settings.sh for the environment

Writes IMAGES/project.tar (operator and trainer, of one layer) and IMAGES/system.tar (pause and CoreDNS). Left out are libraries that
pods get from a mounted directory with torch, and static ones of more than 16 MB; the others stay, because gcc links libc_nonshared.a.
"""

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from e2e.cluster.lifecycle import SYSTEM_IMAGES

SOURCES = Path(__file__).resolve().parents[2]
USERLAND = "bin lib lib64 sbin usr/bin usr/sbin usr/lib usr/lib64 usr/libexec usr/include"
LEFT_OUT = (
    "libcudnn*",
    "libnccl*",
    "libcublas*",
    "libcusparse*",
    "libnpp*",
    "libLLVM*",
    "libcu*_static*",
    "__pycache__",
)
ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ssl", "nsswitch.conf", "alternatives")
USER = "65532:65532"
APPLICATION = "/opt/rljob"


def main() -> None:
    images, tools = Path(os.environ["IMAGES"]), Path(os.environ["TOOLS"])
    images.mkdir(parents=True, exist_ok=True)
    python = os.environ["IMAGE_PYTHON"]
    layer = project_layer(images / "root", python, tools / "packages")
    archive(images / "project.tar", {name: (layer, config) for name, config in project_images(python).items()})
    pause, coredns = SYSTEM_IMAGES
    programs = {pause: tools / "bin/pause", coredns: tools / "bin/coredns"}
    archive(
        images / "system.tar",
        {name: (one_file_layer(images, file), {"Entrypoint": [f"/{file.name}"]}) for name, file in programs.items()},
    )


def project_images(python: str) -> dict[str, dict[str, Any]]:
    """Names and their settings. A trainer's environment is the machine's to say: settings.sh."""
    common = {"PYTHONUNBUFFERED": "1", "HOME": "/tmp", "USER": "rljob", "LANG": "C.UTF-8"}
    path = "/usr/local/bin:/usr/bin:/bin"
    trainer = dict(line.split("=", 1) for line in os.environ["TRAINER_ENV"].split())
    operator = {"PATH": path, "PYTHONPATH": f"{APPLICATION}/operator:{APPLICATION}/packages"}
    return {
        "rljob.dev/operator:gpu": settings(common | operator) | {"Entrypoint": [python, "-m", "rljob_operator"]},
        "rljob.dev/trainer:gpu": settings(common | {"PATH": path} | trainer),
    }


def settings(environment: dict[str, str]) -> dict[str, Any]:
    return {"Env": [f"{k}={v}" for k, v in environment.items()], "User": USER, "WorkingDir": "/tmp"}


def project_layer(root: Path, python: str, packages: Path) -> Path:
    """Our source and the operator's packages, then the machine's own directories. Returns the layer, uncompressed."""
    shutil.rmtree(root, ignore_errors=True)
    for directory in ("etc", "tmp", "home/rljob", "data", "usr/local/bin"):
        (root / directory).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    for source, name in ((SOURCES / "operator", "operator"), (SOURCES / "trainer", "trainer"), (packages, "packages")):
        shutil.copytree(source, root / f"opt/rljob/{name}")
    subprocess.run([python, "-m", "compileall", "-q", root / "opt"], check=False)  # pods cannot write bytecode
    for name in ("python", "python3"):
        (root / "usr/local/bin" / name).symlink_to(python)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nrljob:x:65532:65532::/home/rljob:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nrljob:x:65532:\n")
    for name in ETC:
        subprocess.run(["cp", "-a", f"/etc/{name}", root / "etc"], check=False)
    layer = root.with_name("layer.tar")
    subprocess.run(["tar", "cf", layer, "-C", root, "."], check=True)
    add_userland(layer, root.with_name("excluded"))
    return layer


def add_userland(layer: Path, excluded: Path) -> None:
    directories = [d for d in os.environ.get("USERLAND", USERLAND).split() if Path("/", d).exists()]
    large = subprocess.run(
        ["find", *directories, "-name", "*.a", "-size", "+16M"], cwd="/", capture_output=True, text=True, check=False
    )
    excluded.write_text("\n".join((*LEFT_OUT, *large.stdout.split())))
    append = ("tar", "rf", layer, "--hard-dereference", "-C", "/", "-X", excluded)
    subprocess.run([*append, *directories], check=True)


def one_file_layer(directory: Path, file: Path) -> Path:
    layer = directory / f"{file.name}.layer.tar"
    with tarfile.open(layer, "w") as tar:
        tar.add(file, arcname=file.name)
    return layer


def archive(out: Path, images: dict[str, tuple[Path, dict[str, Any]]]) -> None:
    """Images of one layer each, as `docker save` writes them."""
    digests = {layer: digest_of(layer) for layer in {layer for layer, _ in images.values()}}
    manifest = []
    with tarfile.open(out, "w") as tar:
        for layer, digest in digests.items():
            tar.add(layer, arcname=f"{digest}/layer.tar")
        for name, (layer, config) in images.items():
            text = image_config(config, digests[layer])
            key = f"{hashlib.sha256(text).hexdigest()}.json"
            add(tar, key, text)
            manifest.append({"Config": key, "RepoTags": [name], "Layers": [f"{digests[layer]}/layer.tar"]})
        add(tar, "manifest.json", json.dumps(manifest).encode())


def image_config(config: dict[str, Any], digest: str) -> bytes:
    layers = {"type": "layers", "diff_ids": [f"sha256:{digest}"]}
    whole = {
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": layers,
        "history": [{"created_by": "images.py"}],
    }
    return json.dumps(whole).encode()


def digest_of(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


if __name__ == "__main__":
    main()
