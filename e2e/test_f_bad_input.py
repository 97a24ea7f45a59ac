"""What a user did wrong comes back as one message with field, value, rule and fix: from plan, from the API server, or in the status."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.conftest import Lab
from e2e.job import Job, example
from e2e.kube import CommandFailed, wait_for


def test_plan_lists_every_violation_at_once(lab: Lab, tmp_path: Path) -> None:
    file = tmp_path / "rljob.yaml"
    spec: dict[str, Any] = {"trainer": {"nodes": 3, "transformerConfig": {"recompute_granularty": "full"}}}
    file.write_text(yaml.safe_dump(example(**spec)))
    with pytest.raises(CommandFailed) as failed:
        lab.kube.plugin("plan", "-f", str(file))
    assert "nodes x processesPerNode = 3 is not divisible by tensor x pipeline x context = 2" in str(failed.value)
    assert "did you mean recompute_granularity?" in str(failed.value)


def test_the_api_server_refuses_a_world_size_that_does_not_divide(lab: Lab) -> None:
    with pytest.raises(CommandFailed, match="nodes x processesPerNode is not divisible by tensor x pipeline x context"):
        lab.start("indivisible", trainer={"nodes": 3})


def test_an_unknown_megatron_key_fails_the_job_before_it_has_a_pod(lab: Lab) -> None:
    job = lab.start("unknown-key", trainer={"transformerConfig": {"recompute_granularty": "full"}})
    status = failed(job, 300)
    assert "spec.trainer.transformerConfig.recompute_granularty" in status
    assert "did you mean recompute_granularity?" in status
    assert job.pods() == []


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        (
            "missing-data",
            {"data": {"train": ["/data/data/nowhere.parquet"]}},
            ("spec.data.train[0]", "/data/data/nowhere.parquet"),
        ),
        pytest.param(
            "heads",
            {"trainer": {"nodes": 3, "parallelism": {"tensor": 3}}},
            ("spec.trainer.parallelism.tensor", "num_attention_heads"),
            marks=pytest.mark.extra,
        ),
    ],
)
def test_what_only_the_volume_knows_fails_the_job_with_its_field(
    lab: Lab, name: str, changes: dict, expected: tuple[str, str]
) -> None:
    job = lab.start(name, rollout={"replicas": 1}, **changes)
    message = failed(job, 300)
    job.delete()
    for part in expected:
        assert part in message


def test_a_reward_file_that_raises_fails_the_job_with_its_line(lab: Lab) -> None:
    lab.python(
        "import pathlib; pathlib.Path('/data/raises.py').write_text('def reward(prompt, response, answer):\\n    return 1 / 0\\n')"
    )
    job = lab.start("bad-reward", rewards=[{"dataSource": "arithmetic", "python": {"path": "/data/raises.py"}}])
    message = failed(job, 400)
    job.delete()
    assert "spec.rewards[0].python.path" in message
    assert "ZeroDivisionError" in message


@pytest.mark.extra  # tests/apiserver/test_hostile_specs.py has the same without pods
def test_specs_that_no_operator_should_have_to_read_disturb_no_job_that_trains(lab: Lab) -> None:
    """The API server refuses the largest numbers. What passes it are 512 keys in each map, as near to a known one as names can be."""
    job = lab.start("undisturbed", of="sft", train={"steps": 100_000, "epochs": None}, evaluation={"everySteps": 0})
    step = job.wait_for_step(3, timeout=400).progress.step
    operator = restarts_of_operator(lab)
    keys = {f"moe_router_topk_scaling_{i}": 1 for i in range(2_500)}
    with pytest.raises(CommandFailed, match="512 items"):
        lab.start("many-keys", trainer={"transformerConfig": keys})
    with pytest.raises(CommandFailed, match="less than or equal to 1024"):
        lab.start("many-nodes", trainer={"nodes": 100_000})

    most = dict(list(keys.items())[:512])
    hostile = lab.start("wrong-keys", trainer={"transformerConfig": most}, rollout={"vllmArgs": most})
    assert "moe_router_topk_scaling_0" in failed(hostile, 60)
    renewed = lease(lab)
    wait_for("the lease's renewal", lambda: lease(lab) != renewed, 15, describe=job.describe)
    assert restarts_of_operator(lab) == operator
    status = job.wait_for_step(job.status().progress.step + 5, timeout=60)
    assert status.attempt and status.attempt.number == 1 and status.progress.step > step
    job.delete()
    hostile.delete()


def restarts_of_operator(lab: Lab) -> dict[str, int]:
    """By pod."""
    pods = lab.system.list("pod", "app.kubernetes.io/name=rljob-operator")
    return {p["metadata"]["name"]: p["status"]["containerStatuses"][0]["restartCount"] for p in pods}


def lease(lab: Lab) -> str:
    """When the operator last renewed it."""
    return str(lab.system.get("lease", "rljob-operator")["spec"]["renewTime"])


def failed(job: Job, timeout: float) -> str:
    return job.wait("its failure", lambda s: s.state == "Failed", timeout).message
