"""What `plan` says of the memory of servers, pools and gangs of other models, by the arguments of vLLM."""

import json
import re
from pathlib import Path

import pytest

from cli.planned import RECIPE, plan
from rljob_api.rules.key_tables import OWNED_VLLM_ARGUMENTS, VLLM_ARGUMENTS
from rljob_api.sizing.devices import GIB
from rljob_api.sizing.server_arguments import COUNTED, NOT_COUNTED


def test_a_server_whose_share_is_smaller_than_its_weights_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """14.2 GiB of weights in a fifth of 40 GiB, or 8.1 of quantized ones; these fit in a quarter."""
    small = ("--gpu", "40Gi", "--set", "rollout.vllmArgs={gpu-memory-utilization: 0.2}")
    assert plan(*small) == 1
    out = capsys.readouterr().out
    assert "\nNo KV cache of a server: its weights take 6.2 GiB per GPU more than vLLM may have\n" in out
    assert "\nspec.rollout.tensorParallel = 1\n    the weights of a server take 6.2 GiB per GPU more" in out
    quantized = ("--gpu", "40Gi", "--set", "rollout.vllmArgs.quantization=fp8", "--set")
    assert plan(*quantized, "rollout.vllmArgs.gpu-memory-utilization=0.2") == 1
    assert "the weights of a server take 0.1 GiB per GPU more" in capsys.readouterr().out
    assert plan(*quantized, "rollout.vllmArgs.gpu-memory-utilization=0.25") == 0


def test_a_gang_that_does_not_fit_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    critic = ("--set", "critic={processesPerNode: 1}", "--set", "algorithm={advantage: gae}")
    assert plan("--gpu", "80Gi", *critic) == 1
    assert "\nspec.critic = GPUs of 80.0 GiB\n    its weights, gradients and optimizer take 127.7 GiB" in (
        capsys.readouterr().out
    )


def test_a_server_in_a_pod_of_its_own_has_what_vllm_takes(capsys: pytest.CaptureFixture[str]) -> None:
    apart = ("rollout.placement=separate", "rollout.replicas=8", "rollout.vllmArgs={}")
    assert plan("--gpu", "h100-80g", "-o", "json", *(part for s in apart for part in ("--set", s))) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["kvCache"]["there"] == pytest.approx(79.1 * 0.92 * GIB - found["memory"]["rollout"]["weights"], abs=1)


JUDGED = [
    "pools=[{name: judge, model: /judge, tensorParallel: 2, vllmArgs: {runner: pooling}}]",
    "rewards=[{vllm: {pool: judge}}]",
    "algorithm.kl.coefficient=0.1",
    "reference={processesPerNode: 1}",
]
"""The policy's colocated servers are there, too."""


LAYER = 2 * 3584 * 128 * (28 + 4) + 3 * 3584 * 18944
"""Parameters of the recipe's model in its matrices: attention and feed-forward."""


JUDGED_BY_ITSELF = """\
GIB PER GPU   WEIGHTS   ACTIVATIONS   LOGITS   OUTSIDE   TOTAL
reference     14.2      1.2           7.0      4.0       26.4
judge         7.1       -             -        -         7.1
"""


def judged(*arguments: str) -> int:
    return plan(*(part for setting in JUDGED for part in ("--set", setting)), *arguments)


def test_a_pools_memory_is_that_of_its_own_model(capsys: pytest.CaptureFixture[str]) -> None:
    """7.6 B parameters of 2 bytes over two GPUs, and 0.92 of 79.1 GiB for vLLM."""
    assert judged("--gpu", "h100-80g", "--model-of", f"judge={RECIPE}") == 0
    out = capsys.readouterr().out
    assert JUDGED_BY_ITSELF in out
    assert "\nKV cache of pool judge: at most 65.7 GiB per GPU\n" in out
    assert judged("--gpu", "6Gi", "--model-of", f"judge={RECIPE}") == 1
    out = capsys.readouterr().out
    assert "\nNo KV cache of pool judge: its weights take 1.6 GiB per GPU more than vLLM may have" in out
    assert "\nspec.pools[0].tensorParallel = 2\n    the weights of a server take 1.6 GiB per GPU more" in out
    assert judged() == 0
    assert "\njudge " not in capsys.readouterr().out.partition("GIB PER GPU")[2], "its model was not given"


def test_a_gang_that_does_not_fit_by_the_estimate_is_doubted(capsys: pytest.CaptureFixture[str]) -> None:
    """It has 14.2 GiB of weights, and logits of 65,536 tokens."""
    gang = "reference={processesPerNode: 1, tokensPerMicroBatch: 65536}"
    assert plan("--set", "algorithm.kl.coefficient=0.1", "--set", gang, "--gpu", "h100") == 0
    last = capsys.readouterr().out.rstrip().splitlines()[-1]
    assert re.fullmatch(
        r"Valid, and by the estimate it may not fit in the gang of reference \(83.\d GiB\) of GPUs of 79.1 GiB.", last
    )


def test_a_model_on_a_gang_of_its_own_may_have_another_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((RECIPE / "config.json").read_text())
    half = tmp_path / "half.json"
    half.write_text(json.dumps(config | {"num_hidden_layers": config["num_hidden_layers"] // 2}))
    found = {}
    for model in (RECIPE, half):
        assert judged("-o", "json", "--model-of", f"reference={model}") == 0
        (found[model],) = (one["memory"] for one in json.loads(capsys.readouterr().out))
    assert found[half]["trainer"] == found[RECIPE]["trainer"]
    less = found[RECIPE]["reference"]["weights"] - found[half]["reference"]["weights"]
    assert less == pytest.approx(14 * LAYER * 2, rel=1e-3), "parameters of two bytes"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("judge", "write ROLE=MODEL"),
        (f"critic={RECIPE}", "there is no pool and no gang of that name, only judge, reference"),
        ("judge={empty}", "does not have the sizes"),
    ],
)
def test_a_model_of_a_role_that_cannot_be_counted_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: str, message: str
) -> None:
    (tmp_path / "empty.json").write_text("{}")
    assert judged("--model-of", given.format(empty=tmp_path / "empty.json")) == 1
    assert message in capsys.readouterr().err


SMALL = ("--gpu", "40Gi", "--set")


MEMORY = "memory|cache|offload|dtype|quant|graph|eager|batched|seqs|ubatch|dbo|mamba|num-gpu|override|mm-enc|limit-mm"


WITHOUT_BYTES = (
    *("allow-deprecated-quantization", "cp-kv-cache-interleave-size", "cudagraph-metrics", "disable-hybrid-kv-cache-manager"),
    *("dbo-decode-token-threshold", "dbo-prefill-token-threshold", "dcp-kv-cache-interleave-size", "kv-cache-metrics"),
    *("enable-mamba-cache-stochastic-rounding", "kv-cache-metrics-sample", "kv-offloading-backend", "mm-processor-cache-type"),
    *("mm-encoder-attn-backend", "mm-encoder-attn-dtype", "mm-shm-cache-max-object-size-mb", "mamba-cache-philox-rounds"),
    *("mm-encoder-fp8-scale-path", "mm-encoder-fp8-scale-save-margin", "mm-encoder-fp8-scale-save-path", "mamba-backend"),
    *("mamba-ssu-algorithm", "enable-mamba-shared-prefix-checkpoint"),
    *("enable-prefix-caching", "prefix-cache-retention-interval", "lora-dtype", "max-num-partial-prefills"),
)  # fmt: skip


def test_every_argument_of_vllm_that_changes_memory_is_counted_or_said_not_to_be() -> None:
    known = {*COUNTED, *NOT_COUNTED, *WITHOUT_BYTES, *OWNED_VLLM_ARGUMENTS}
    assert {key for key in VLLM_ARGUMENTS if re.search(MEMORY, key)} <= known
    assert {*COUNTED, *NOT_COUNTED} <= VLLM_ARGUMENTS and not {*COUNTED} & {*NOT_COUNTED}


@pytest.mark.parametrize(
    ("given", "weights", "token"),
    [
        ("{}", 15.23, 57344),
        ("{quantization: fp8}", 8.70, 57344),
        ("{quantization: mxfp8}", 8.91, 57344),
        ("{quantization: awq}", 15.23, 57344),
        ("{kv-cache-dtype: fp8}", 15.23, 28672),
        ("{kv-cache-dtype: auto}", 15.23, 57344),
        ("{cpu-offload-gb: 10}", 4.49, 57344),
        ("{cpu-offload-gb: 99}", 0.0, 57344),
    ],
)
def test_weights_and_cache_are_counted_in_the_bytes_that_vllm_keeps_them_in(
    given: str, weights: float, token: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """GB of the 7 B model's weights, of which embeddings and the output layer, 1.1 B parameters, keep two bytes; bytes of keys and values."""
    plan("--set", f"rollout.vllmArgs={given}", "-o", "json", "--gpu", "h200")
    (found,) = json.loads(capsys.readouterr().out)
    assert found["memory"]["rollout"]["weights"] / 1e9 == pytest.approx(weights, abs=0.01)
    samples = 256
    assert found["kvCache"]["wanted"] / (1536 * samples) == pytest.approx(token)
    assert found["phases"]["sync"]["server"] == found["memory"]["rollout"]["weights"]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("max-num-batched-tokens: 8192", "max-num-batched-tokens: activations of a pass"),
        ("enforce-eager: true", "enforce-eager: captured graphs"),
        ("kv-cache-dtype: nvfp4", "kv-cache-dtype: a cache in nvfp4: it is counted in the model's type"),
        ("quantization: awq", "quantization: weights in awq: they are counted as if they were not quantized"),
    ],
)
def test_what_is_not_counted_is_said(given: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--set", f"rollout.vllmArgs={{{given}}}") == 0
    assert f"\nNot counted:\n    spec.rollout.vllmArgs.{line}" in capsys.readouterr().out


def test_whether_the_spec_is_valid_and_whether_the_job_fits_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    """And what cannot fit is never called valid, nor what may not simply so."""
    assert plan(*SMALL, "rollout.vllmArgs={gpu-memory-utilization: 0.2, quantization: awq}") == 0
    last = capsys.readouterr().out.rpartition("\n\n")[2]
    said = "in servers of spec.rollout, whose weights are counted without quantization = awq"
    assert last.startswith("Valid, and by the estimate it may not fit ") and last.endswith(f"{said}.\n")
    assert plan(*SMALL, "rollout.vllmArgs={gpu-memory-utilization: 0.1, quantization: fp8}") == 1
    assert "Valid" not in capsys.readouterr().out
    assert plan("--gpu", "64Gi", "--set", "train.tokensPerMicroBatch=16384") == 0
    last = capsys.readouterr().out.rpartition("\n\n")[2]
    assert last.startswith("Valid, and by the estimate it may not fit in train (68.2 GiB) of GPUs of 64.0 GiB (")


def test_a_broken_rule_does_not_hide_that_the_job_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """Unless sizes depend on what is wrong: then nobody knows what fits."""
    small = ("--gpu", "40Gi", "--set", "rollout.vllmArgs={gpu-memory-utilization: 0.2}", "--set")
    assert plan(*small, "scheduling.queue=research") == 1
    out = capsys.readouterr().out
    assert "1 rule is broken, and the job does not fit:\n\nspec.scheduling.queue" in out
    assert "\nspec.rollout.tensorParallel = 1\n    the weights of a server take 6.2 GiB per GPU more" in out
    assert plan(*small, "train.miniBatches=7") == 1
    out = capsys.readouterr().out
    assert "1 rule is broken:\n" in out and "more than vLLM may have" not in out
