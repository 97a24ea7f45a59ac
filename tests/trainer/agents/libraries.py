"""Libraries of environments that do not go together with vLLM's packages, each in a virtual environment of its own, which is made once."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rljob_trainer.machine import free_port

CACHE = Path(os.environ.get("RLJOB_LIBRARIES", "~/.cache/rljob-libraries")).expanduser()


def virtual_environment(requirement: str) -> Path:
    """With this requirement and what it needs. Skips the test where the package index cannot be reached."""
    made = CACHE / requirement.replace("==", "-")
    if not (made / "complete").exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        uv, python = Path(sys.executable).with_name("uv"), made / "bin/python"
        subprocess.run((uv, "venv", "-q", "--clear", "--python", sys.executable, made), check=True)
        install = (uv, "pip", "install", "-q", "--python", python, requirement)
        found = subprocess.run(install, capture_output=True, text=True, check=False)
        if found.returncode:
            pytest.skip(f"{requirement} cannot be installed here: {found.stderr.strip().splitlines()[-1]}")
        (made / "complete").touch()
    return made


def site_packages(made: Path) -> Path:
    return made / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def packages(*requirements: str) -> Path:
    """A folder with these, and nothing that they need: for PYTHONPATH, before what is installed. Skips the test as above."""
    made = CACHE / "-".join(requirements).replace("==", "-")
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        uv, scratch = Path(sys.executable).with_name("uv"), made.with_name(f".{made.name}.{os.getpid()}")
        install = (
            uv,
            "pip",
            "install",
            "-q",
            "--python",
            sys.executable,
            "--no-deps",
            "--target",
            scratch,
            *requirements,
        )
        found = subprocess.run(install, capture_output=True, text=True, check=False)
        if found.returncode:
            pytest.skip(f"{', '.join(requirements)} cannot be installed here: {found.stderr.strip().splitlines()[-1]}")
        scratch.rename(made)
    return made


@asynccontextmanager
async def served_by(requirement: str, script: Path) -> AsyncIterator[str]:
    """The address of a server: a script that has this requirement, and gets a port of loopback."""
    made, port = await asyncio.to_thread(virtual_environment, requirement), free_port()
    process = await asyncio.create_subprocess_exec(made / "bin/python", script, str(port))
    try:
        await asyncio.wait_for(_answers(port), 300)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()


async def _answers(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            await asyncio.sleep(0.2)
        else:
            writer.close()
            return
