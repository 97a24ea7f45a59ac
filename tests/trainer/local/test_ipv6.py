"""A whole job on a machine without IPv4: real vLLM, real Megatron on two nodes, weights sent between them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ipv6 import WITHOUT_IPV4, needs_namespaces

pytestmark = [pytest.mark.slow, pytest.mark.extra, needs_namespaces]
EXAMPLE = Path(__file__).parents[3] / "examples" / "arithmetic"
STEPS = 2


def test_the_arithmetic_example_trains_without_ipv4(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}
    data = tmp_path / "data"
    data.mkdir()
    subprocess.run(
        [sys.executable, EXAMPLE / "prepare.py", data, "--set", "train.steps=2"],
        check=True,
        env=environment,
        timeout=300,
    )
    manifest = yaml.safe_load((EXAMPLE / "rljob.yaml").read_text())
    manifest["spec"]["train"] |= {"steps": STEPS, "promptsPerStep": 4, "samplesPerPrompt": 4}
    manifest["spec"]["rollout"] |= {"replicas": 1}
    (tmp_path / "rljob.yaml").write_text(yaml.safe_dump(manifest))
    run = [sys.executable, "-m", "rljob_trainer", "run", tmp_path / "rljob.yaml", "--mount", f"/data={data}"]
    done = subprocess.run(
        [*WITHOUT_IPV4, *run, "--work", tmp_path / "work"], capture_output=True, text=True, env=environment, timeout=600
    )
    logs = "\n".join(log.read_text()[-3000:] for log in sorted((tmp_path / "work").glob("*.log")))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
    lines = [json.loads(line) for line in (data / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "train/loss" in line] == [1, STEPS]
