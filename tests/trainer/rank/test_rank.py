"""The end of a rank that fails."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rljob_api import names
from rljob_api.protocol import Control, Resume
from rljob_trainer.machine import free_port
from trainer.megatron.models import job

pytestmark = pytest.mark.slow

WAITING = """
import time, torch.distributed
torch.distributed.destroy_process_group = lambda: time.sleep(3600)
from rljob_trainer.rank.main import main
main()
"""
"""With NCCL, whoever leaves the process group waits for its peers (ncclCommFinalize); those who are in a collective do not come."""


def test_a_rank_that_fails_says_why_and_ends_though_its_peers_do_not_come(tmp_path: Path) -> None:
    spec = job(tmp_path / "missing")
    spec = spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"path": str(tmp_path / "c")})})
    control = Control(name="demo", namespace="ns", job_uid="uid", attempt=1, resume=Resume(policy="auto"), spec=spec)
    (tmp_path / names.CONTROL_KEY).write_text(control.dump_json())
    meeting = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    environment = os.environ | meeting | {names.ENV_ATTEMPT_DIR: str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", WAITING], env=environment, timeout=300, check=False)
    assert ended.returncode == 1
    assert "config.json" in json.loads((tmp_path / "error-0.json").read_text())["message"]
