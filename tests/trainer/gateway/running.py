"""A service on this machine, as `python -m rljob_trainer run` starts it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import yaml

from api.specs import raw_spec
from rljob_api import names
from rljob_api.protocol import Control
from trainer.pod.gang import wait_for

SECONDS = 300


@dataclass
class RunningService:
    """`python -m rljob_trainer run` of a service."""

    process: subprocess.Popen[bytes]
    output: Path
    url: str
    model: str

    @property
    def generated(self) -> int:
        """Tokens that its server has generated."""
        files = self.output.parent.glob(f"work/**/{names.CONTROL_KEY}")
        servers = [server for file in files for server in Control.model_validate_json(file.read_text()).rollouts]
        with urlopen(f"{servers[0].url}/metrics") as found:
            said = re.search(r"^vllm:generation_tokens_total{.*} (\S+)", found.read().decode(), re.MULTILINE)
        assert said, "no tokens are counted"
        return int(float(said[1]))

    def kill(self, what: str) -> None:
        """SIGKILL the oldest process in whose command line this stands."""
        found = [p for p in psutil.Process(self.process.pid).children(recursive=True) if what in " ".join(_command(p))]
        assert found, what
        min(found, key=lambda p: p.create_time()).kill()


@contextlib.contextmanager
def running(root: Path, model: Path, **spec: Any) -> Iterator[RunningService]:
    """A service of the model. `spec`: further sections of the spec."""
    output = root / "output"
    given = {
        "task": "service",
        "model": {"path": str(model), "dtype": "float32"},
        "checkpoint": {"path": str(root / "run")},
    }
    manifest = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "loops"}}
    (root / "service.yaml").write_text(yaml.safe_dump(manifest | {"spec": raw_spec(**given | spec)}))
    command = [sys.executable, "-u", "-m", "rljob_trainer", "run", str(root / "service.yaml"), "--port", "0"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}
    with output.open("wb") as log:
        process = subprocess.Popen([*command, "--work", str(root / "work")], env=environment, stdout=log, stderr=log)
    try:
        found = wait_for("address", lambda: re.search(r"TINKER_BASE_URL=(\S+)", output.read_text()), SECONDS)
        yield RunningService(process, output, found[1], str(model))
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130, output.read_text()


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
