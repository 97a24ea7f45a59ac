"""Of a job that does not fit, `plan` names the one field that makes it fit, with its largest value that does."""

import json
import re

import pytest

from cli.planned import plan

FAR = ("--gpu", "h100-80g", "--set", "trainer.parallelism.tensor=1", "--set")


def test_what_needs_far_more_than_the_gpu_does_not_fit_and_the_value_that_does_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert plan(*FAR, "train.tokensPerMicroBatch=65536") == 1
    out = capsys.readouterr().out
    assert "Valid" not in out and "\nDoes not fit in " in out
    assert "\nspec.train.tokensPerMicroBatch = 65536\n    the job does not fit into GPUs of 79.1 GiB in " in out
    assert "that is more than 4 times the GPU\n" in out
    most = int(re.findall(r"fix: (\d+) is the most that fits by the estimate, in multiples of 1024; `plan --", out)[0])
    assert plan(*FAR, f"train.tokensPerMicroBatch={most}") == 0
    assert capsys.readouterr().out.endswith("\nValid.\n")
    plan(*FAR, f"train.tokensPerMicroBatch={most + 1024}", "-o", "json")
    (found,) = json.loads(capsys.readouterr().out)
    assert found["violations"] or found["mayNotFit"]


def test_the_value_is_named_where_the_job_may_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    gpu = ("--gpu", "64Gi", "--set")
    assert plan(*gpu, "train.tokensPerMicroBatch=16384") == 0
    last = capsys.readouterr().out.rpartition("\n\n")[2]
    most = re.findall(
        r" \(spec.train.tokensPerMicroBatch: (\d+) is the most .* `plan --suggest` searches layouts\)\.$", last
    )
    assert plan(*gpu, f"train.tokensPerMicroBatch={most[0]}") == 0 and capsys.readouterr().out.endswith("\nValid.\n")


def test_activations_in_host_memory_are_not_counted_on_the_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """They are offloaded for such micro-batches."""
    away = "trainer.transformerConfig={cpu_offloading: true, cpu_offloading_num_layers: 27}"
    needed = []
    for settings in ((), ("--set", away)):
        assert plan(*FAR, "train.tokensPerMicroBatch=32768", *settings, "-o", "json") == 0
        (found,) = json.loads(capsys.readouterr().out)
        needed.append(found["memory"]["trainer"]["activations"])
    assert needed[1] < 0.6 * needed[0]


def test_the_value_that_is_named_fits_into_every_phase(capsys: pytest.CaptureFixture[str]) -> None:
    """Also into one that does not fit for another reason: then no value of this field is named."""
    share = ("--set", "rollout.vllmArgs.gpu-memory-utilization=0.75")
    assert plan(*FAR, "train.tokensPerMicroBatch=65536", *share) == 1
    assert "is the most that fits" not in capsys.readouterr().out


def test_a_server_with_too_large_a_share_is_named_with_the_largest_that_fits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    share = "rollout.vllmArgs.gpu-memory-utilization"
    assert plan("--gpu", "h100-80g", "--set", f"{share}=0.95") == 1
    out = capsys.readouterr().out
    assert f"\nspec.{share} = 0.95\n    the job does not fit into GPUs of 79.1 GiB in " in out
    most = float(re.findall(r"fix: ([\d.]+) is the most that fits by the estimate; `plan --suggest`", out)[0])
    assert plan("--gpu", "h100-80g", "--set", f"{share}={most}") == 0 and "\nValid." in capsys.readouterr().out
    assert plan("--gpu", "h100-80g", "--set", f"{share}={most + 0.01:.2f}", "-o", "json") in (0, 1)
    (found,) = json.loads(capsys.readouterr().out)
    assert found["violations"] or found["mayNotFit"]


def test_what_no_change_of_one_field_makes_fit_is_said_of_the_whole_trainer(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--gpu", "20Gi") == 1
    out = capsys.readouterr().out
    assert "\nspec.trainer = GPUs of 20.0 GiB\n" in out
    assert "fix: docs/sizing.md has what to change, by its cost; `plan --suggest` searches layouts\n" in out
