"""Servers in the trainer's own process tree: begun, put to sleep, updated and ended with the attempt."""

import json
from pathlib import Path

import psutil
import pytest
import yaml

from trainer.loop.test_ahead import SECONDS, Run, manifest

pytestmark = pytest.mark.slow


def test_a_job_trains_with_the_servers_of_all_its_pods_and_leaves_none_behind(tmp_path: Path) -> None:
    job, run = manifest(), Run(tmp_path)
    job["spec"] |= {"algorithm": {}, "rollout": {"placement": "colocated"}}
    job["spec"]["rollout"] |= {"sampling": {"maxTokens": 1}}
    job["spec"]["trainer"] |= {"nodes": 2, "parallelism": {"tensor": 2}}
    job["spec"]["train"] |= {"staleness": 0, "steps": 3, "batches": {}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    assert run.start().wait(SECONDS) == 0
    metrics = run.metrics()
    assert sorted(metrics) == [1, 2, 3]
    assert [m["rollout/replicas"] for m in metrics.values()] == [2.0, 2.0, 2.0]
    assert max(m["train_rollout/log_prob_diff_max"] for m in metrics.values()) < 1e-3
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in json.dumps(p.info["cmdline"])]
