"""What `plan` says of the memory of GPUs and hosts, and of a volume's space."""

import json
import re

import pytest

from cli.planned import ON_80_GB, plan
from rljob_api.sizing.devices import GIB


def test_each_phase_of_a_step_is_held_against_the_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """A colocated server's share of the GPU is in it, and what its cache would want is in no sum."""
    assert plan("--gpu", "H100-80g") == 0
    assert ON_80_GB in capsys.readouterr().out


def test_a_phase_that_cannot_fit_or_may_not_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--gpu", "40Gi", "--set", "rollout.vllmArgs={gpu-memory-utilization: 0.6}") == 1
    out = capsys.readouterr().out
    assert "\nDoes not fit in save, and by the estimate not in train\n" in out
    assert out.endswith(
        "Every rule holds, and the job does not fit:\n\nspec.trainer = GPUs of 40.0 GiB\n"
        "    the job does not fit in save (47.7 GiB), and by the estimate not in train (47.8 GiB): ranks would refuse to start\n"
        "    fix: docs/sizing.md has what to change, by its cost; `plan --suggest` searches layouts\n"
    )
    assert plan("--gpu", "64Gi") == 0
    assert "\nFits, by the estimate\n" in capsys.readouterr().out
    assert plan("--gpu", "64Gi", "--set", "train.tokensPerMicroBatch=16384") == 0
    assert "\nMay not fit in train, by the estimate\n" in capsys.readouterr().out


@pytest.mark.parametrize(("gpu", "spare"), [("60Gi", ""), ("56Gi", ", with less than 5 % of the GPU to spare in save")])
def test_a_gpu_that_is_nearly_full_is_named(gpu: str, spare: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A save takes 53.9 GiB, the server with a cache of 16 included."""
    assert plan("--gpu", gpu, "--set", "rollout.vllmArgs.kv-cache-memory-bytes=17179869184") == 0
    assert f"\nFits, by the estimate{spare}\n" in capsys.readouterr().out


def test_what_offload_moves_is_held_against_the_limit_of_the_pod(capsys: pytest.CaptureFixture[str]) -> None:
    resources = "trainer.template.resources"
    assert plan("--set", f"{resources}.limits.memory=256Gi", "--set", f"{resources}.requests.memory=200Gi") == 1
    out = capsys.readouterr().out
    assert "limits.memory: 256.0 GiB, which is less: the pod would end with OOMKilled\n" in out
    assert f"spec.{resources}.limits.memory = 256Gi\n    the job keeps 349.8 GiB in the host memory" in out
    assert "    fix: raise it to 350Gi or more, or lower what is kept there: docs/sizing.md#host-memory\n" in out
    assert "Valid." not in out
    stays = ("checkpoint.everySteps=0", "trainer.offload={}", "reference.offload=false")
    assert plan(*(word for value in stays for word in ("--set", value))) == 0
    assert (
        "Host memory of a trainer pod: 151.3 GiB (99.3 for a checkpoint, 52.0 for ranks and servers)"
        in capsys.readouterr().out
    ), "the last one"


def test_what_a_rollout_pod_holds_in_host_memory_is_held_against_its_limit(capsys: pytest.CaptureFixture[str]) -> None:
    """15.2 GB of the next policy, and what vLLM moves there."""
    apart = ("--gpu", "h100", "--set", "rollout.placement=separate", "--set", "rollout.vllmArgs={}")
    assert plan(*apart) == 0
    line = "Host memory of a rollout pod: 14.2 GiB (14.2 for the next policy), and what its processes need in any case"
    assert (
        f"\n{line}; spec.rollout.template.resources.limits.memory is not set: a node has to have that much\n"
        in capsys.readouterr().out
    )
    limit = ("--set", "rollout.template.resources={limits: {memory: 64Gi}, requests: {memory: 32Gi}}")
    assert plan(*apart, *limit, "--set", "rollout.vllmArgs={cpu-offload-gb: 65}", "-o", "json") == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert found["rolloutHostMemory"] == {
        "arriving": 0,
        "snapshots": 0,
        "offloaded": 65 * GIB,
        "nextPolicy": "in place",
    }
    (broken,) = found["violations"]
    assert broken["field"] == "spec.rollout.template.resources.limits.memory" and broken["value"] == "64Gi"
    assert broken["rule"].startswith("the job keeps 65.0 GiB in the host memory of a rollout pod")


def test_a_limit_without_its_unit_is_shown_as_it_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--set", "trainer.template.resources={limits: {memory: 512}}") == 1
    out = capsys.readouterr().out
    assert "limits.memory: 512 bytes, which is less" in out
    assert "\nspec.trainer.template.resources.limits.memory = 512\n" in out
    assert "    fix: write its unit, for example 512Gi: without one it is bytes\n" in out


def test_a_job_without_any_volume_is_told_what_the_image_has_to_hold_and_what_is_lost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert plan("--set", "volumes=[]") == 0
    out = capsys.readouterr().out
    outside = "On none of spec.volumes, so that the image has to hold it: spec.model.path = /data/Qwen2.5-7B-Instruct, "
    assert outside in out
    assert "    spec.checkpoint.path = /data/runs/qwen2-7b-gsm8k: is on no volume, since spec.volumes is empty" in out


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ((), "4 checkpoints of 106.6 GB, 1 export of 15.2 GB; 441.7 GB in all"),
        (("train.steps=20", "checkpoint.everySteps=10"), "2 checkpoints of 106.6 GB, 1 export of 15.2 GB"),
        (("checkpoint.exportEverySteps=5", "checkpoint.keepExports=2"), "4 checkpoints of 106.6 GB, 4 exports of 15.2"),
        (
            ("checkpoint.everySteps=0", "checkpoint.exportHuggingFace=false"),
            "1 checkpoint of 106.6 GB; 106.6 GB in all",
        ),
        (("critic={}", "algorithm={advantage: gae}"), "4 checkpoints of 205.6 GB"),
        (("evaluation.only=true",), "no checkpoint and no model is written to it\n"),
        (("model.lora={rank: 8}",), "4 checkpoints of 0.2 GB"),
    ],
)
def test_the_space_of_the_volume_is_said(
    settings: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """14 bytes for each of 7.6 B parameters that learn, of which a critic has no output layer, and 2 for each that is exported."""
    plan(*(word for setting in settings for word in ("--set", setting)))
    assert f"\nVolume: {line}" in capsys.readouterr().out


def test_stages_are_shown_with_their_layers_and_with_what_the_busiest_computes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """28 layers, and an output layer that computes as much as 2.2 of them at 2,048 tokens."""
    four, first = "trainer.parallelism.pipeline=4", "trainer.transformerConfig.num_layers_in_first_pipeline_stage"
    assert plan("--set", four) == 0
    assert "\n         stages of 4 x 7 layers; the busiest computes 1.23 of the mean\n" in capsys.readouterr().out
    assert plan("--set", four, "--set", f"{first}=10") == 0
    assert "\n         stages of 10, 3 x 6 layers; the busiest computes 1.32 of the mean\n" in capsys.readouterr().out
    assert plan("--set", four, "--set", f"{first}=9") == 1
    assert (
        "    leaves 19 of 28 layers for 3 other stages, which must share them equally\n    fix: choose a divisor of 28\n"
        in (capsys.readouterr().out)
    )


def test_without_a_gpu_the_cache_is_what_the_batch_would_want(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan() == 0
    out = capsys.readouterr().out
    assert "BY PHASE" not in out
    assert "\ntrainer       7.1       14.2        17.0          3.5      6.0       47.8\n" in out
    assert "\n--gpu shows every phase of a step on a trainer's GPU\n" in out
    assert "KV cache of a server: 21.0 GiB per GPU would hold all samples in flight at their longest; --gpu says" in out


def test_the_numbers_are_there_in_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--gpu", "h200-141g", "-o", "json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["kvCache"]["there"] == pytest.approx(139.8 * 0.4 * GIB - found["memory"]["rollout"]["weights"], abs=1)
    assert found["phases"]["generate"]["server"] == pytest.approx(139.8 * 0.4 * GIB, abs=1)
    for phase in found["phases"].values():
        assert phase["total"] == pytest.approx(phase["state"] + phase["estimate"] + phase["server"], abs=2)
        parts = ("weights", "gradients", "optimizer", "activations", "logits", "buckets", "outside", "server")
        assert phase["total"] == pytest.approx(sum(phase[part] for part in parts), abs=4)


def test_the_cache_is_said_of_each_server_of_a_gpu_and_the_phases_count_all(capsys: pytest.CaptureFixture[str]) -> None:
    """14.2 GiB of weights and 8 for the cache, twice; a checkpoint is written meanwhile."""
    sharing = ("rollout.serversPerGpu=2", "rollout.vllmArgs={kv-cache-memory-bytes: 8589934592}")
    settings = [word for setting in sharing for word in ("--set", setting)]
    assert plan("--gpu", "H100-80g", *settings) == 0
    out = capsys.readouterr().out
    line = (
        "KV cache of each of the 2 servers on a GPU: at most 8.0 GiB, 149,797 tokens; 10.5 GiB would hold all samples"
    )
    assert f"\n{line} in flight at their longest\n" in out
    assert re.search(r"\nsave .* 44\.4 +\d", out) and re.search(r"\nsync .* 28\.4 +\d", out)
    assert plan(*settings) == 0
    out = capsys.readouterr().out
    assert (
        "\nKV cache of each of the 2 servers on a GPU: 10.5 GiB would hold all samples in flight at their longest; --gpu"
        in out
    )
    assert re.search(r"\nrollout +28.\d ", out), "weights of both"


def test_a_cache_that_several_servers_need_cannot_be_removed(capsys: pytest.CaptureFixture[str]) -> None:
    small = "rollout.vllmArgs={kv-cache-memory-bytes: 1048576}"
    for servers, removable in ((1, True), (2, False)):
        assert plan("--gpu", "H100-80g", "--set", f"rollout.serversPerGpu={servers}", "--set", small) == 1
        assert (", or remove it" in capsys.readouterr().out.partition("fix: set at least ")[2]) == removable
