"""`plan` says nothing of what a task does not have: no servers of a task that learns from given data, no step of a job that trains none."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.planned import RECIPE, plan
from kubectl_rljob.__main__ import main

OF_SERVERS = r"(?i)\b(generate|generation|sync|buckets|update|servers?|rollouts?|kv cache|responses?)\b"
GIVEN: dict[str, Any] = {
    "image": "trainer:test",
    "model": {"path": "/data/model", "dtype": "bfloat16"},
    "data": {"train": ["/data/train.parquet"], "validation": ["/data/held-out.parquet"], "maxTokens": 2048},
    "train": {"steps": 10, "samplesPerStep": 8, "tokensPerMicroBatch": 8192},
    "checkpoint": {"path": "/data/run"},
    "trainer": {"processesPerNode": 8, "parallelism": {"tensor": 2}},
    "volumes": [{"name": "data", "mountPath": "/data", "source": {"persistentVolumeClaim": {"claimName": "data"}}}],
}
CACHES = "rollout.vllmArgs={kv-cache-memory-bytes: 8589934592}"
SUPERVISED = ("sft", "dpo", "rewardModel", "pretrain")


def job(directory: Path, task: str, **sections: Any) -> list[str]:
    spec = GIVEN | {"task": task} | sections
    manifest = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "given"}, "spec": spec}
    (directory / "job.yaml").write_text(yaml.safe_dump(manifest))
    return ["plan", "-f", str(directory / "job.yaml"), "--model", str(RECIPE), "--offline", "--gpu", "h100"]


@pytest.mark.parametrize("task", SUPERVISED)
@pytest.mark.parametrize("further", [[], ["--network", "8x400g"], ["--suggest"], ["--set", "trainer.nodes=2"]])
def test_a_task_without_servers_has_nothing_of_them(
    task: str, further: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = job(tmp_path, task)
    assert main([*given, *further]) == 0
    page = capsys.readouterr().out
    assert "TOKENS/S" in page and re.findall(OF_SERVERS, page) == []
    assert main([*given, *further, "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    steps = found["suggestions"] if "suggestions" in found else [found["modelledStep"]]
    assert steps and not {name for step in steps for name in ("generate", "sync") if name in step}
    assert not {"kvCache", "serverWays", "rolloutHostMemory"} & {*found}


@pytest.mark.parametrize(
    ("task", "evaluation", "phases"),
    [
        ("sft", {}, "train save"),
        ("sft", {"everySteps": 5}, "score train save"),
        ("sft", {"only": True}, "score"),
        ("dpo", {}, "score train save"),
        ("rewardModel", {}, "train save"),
        ("pretrain", {"everySteps": 5}, "score train save"),
    ],
)
def test_phases_are_those_that_a_job_on_given_data_has(
    task: str, evaluation: dict[str, Any], phases: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*job(tmp_path, task, evaluation=evaluation), "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert [*found["phases"]] == phases.split()
    assert ("modelledStep" in found) == ("train" in found["phases"])


@pytest.mark.parametrize(
    ("settings", "phases"),
    [
        (["evaluation.everySteps=0"], "generate score train sync save"),
        (["rollout.placement=separate", "rollout.vllmArgs={}"], "generate score train sync save"),
        (["evaluation.only=true"], "generate sync"),
        (
            ["train.batches={replay: /data/batches}", "rollout={placement: separate, replicas: 0, sampling: {maxTokens: 1024}}"],
            "score train save",
        ),
    ],
)  # fmt: skip
def test_phases_are_those_that_a_job_with_rollouts_has(
    settings: list[str], phases: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--gpu", "h100", *(word for setting in settings for word in ("--set", setting))]
    assert plan(*words, "-o", "json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert [*found["phases"]] == phases.split()
    assert {*found.get("modelledStep", {})} & {"generate", "sync"} == (
        {"generate", "sync"} & {*found["phases"]} if "train" in phases else set()
    )
    assert ("kvCache" in found) == ("generate" in phases)


@pytest.mark.parametrize(
    ("task", "tokens"),
    [
        ("sft", "at most 2,048 per conversation\n         at most 8,192 per micro-batch and data-parallel rank"),
        ("pretrain", "at most 2,048 per sequence\n         at most 8,192 per micro-batch and data-parallel rank"),
    ],
)
def test_a_job_that_only_evaluates_has_no_batch(
    task: str, tokens: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(job(tmp_path, task, evaluation={"only": True})) == 0
    page = capsys.readouterr().out
    assert f"\nBatch:   nothing is trained, with spec.evaluation.only\nTokens:  {tokens}\nModel:" in page


def test_a_job_that_only_answers_held_out_prompts_has_no_batch(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--set", "evaluation.only=true") == 0
    page = capsys.readouterr().out
    assert "\nBatch:   nothing is trained, with spec.evaluation.only\nTokens:  at most 1,536 per sample\nModel:" in page


def test_an_evaluation_counts_no_gpus_of_gangs_that_it_does_not_start(capsys: pytest.CaptureFixture[str]) -> None:
    gang = ("--set", "algorithm.kl.coefficient=0.01", "--set", "reference.processesPerNode=8")
    assert plan("--set", "evaluation.only=true", *gang, "--gpu", "h100") == 0
    page = capsys.readouterr().out
    batch, counted = "with spec.evaluation.only\n         not started: reference\n", "\nreference  "
    assert batch in page and counted not in page
    assert plan(*gang, "--gpu", "h100") == 0
    page = capsys.readouterr().out
    assert batch not in page and counted in page


def test_what_training_would_generate_does_not_count_in_an_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    longer = ("--set", "rollout.sampling.maxTokens=4096", "--set", "train.tokensPerMicroBatch=8192")
    assert plan("--set", "evaluation.only=true", *longer) == 0
    assert "\nTokens:  at most 1,536 per sample\nModel:" in capsys.readouterr().out


@pytest.mark.parametrize(("gpu", "seconds"), [("h100", True), ("a100-40g", False), ("l40s", False)])
def test_a_job_that_does_not_fit_has_no_seconds(gpu: str, seconds: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither of a step, nor of what a node that is left loses."""
    large = ("--set", "trainer.offload={}", "--set", "trainer.parallelism.tensor=1") if not seconds else ()
    assert plan("--gpu", gpu, "--network", "400g", *large) == int(not seconds)
    page = capsys.readouterr().out
    assert ("BY THE MODEL" in page) == seconds
    plan("--gpu", gpu, "--network", "400g", *large, "-o", "json")
    (found,) = json.loads(capsys.readouterr().out)
    assert ("modelledStep" in found) == seconds == (found["leaving"]["step"] is not None)


@pytest.mark.parametrize(
    ("settings", "row"),
    [
        ([], "rollout (colocated) 0 - 0"),
        (["rollout.serversPerGpu=2", CACHES], "rollout (colocated, 2 servers on each GPU) 0 - 0"),
        (["rollout.serversPerGpu=3", "trainer.device=cpu"], "rollout (colocated, 3 servers of each rank) 0 - 0"),
        (["rollout={placement: separate, replicas: 2, sampling: {maxTokens: 64}}"], "rollout 2 1 2"),
        (["rollout={placement: separate, replicas: 0, sampling: {maxTokens: 64}}", "train.batches={replay: /data/b}"], "rollout 0 - 0"),
    ],
)  # fmt: skip
def test_servers_without_pods_of_their_own_are_said_to_be_where_they_are(
    settings: list[str], row: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(*(word for setting in settings for word in ("--set", setting))) == 0
    lines = capsys.readouterr().out.partition("\nROLE ")[2].splitlines()
    assert row in [" ".join(line.split()) for line in lines]
