"""What `plan` says of a GPU's memory, and where it finds the model that it counts with."""

import json
import re
from pathlib import Path

import pytest

from cli.planned import ON_80_GB, RECIPE, plan
from kubectl_rljob.__main__ import main
from rljob_api.rules.key_tables import OWNED_VLLM_ARGUMENTS, VLLM_ARGUMENTS
from rljob_api.sizing.devices import GIB
from rljob_api.sizing.server_arguments import COUNTED, NOT_COUNTED


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


def test_what_offload_moves_is_held_against_the_limit_of_the_pod(capsys: pytest.CaptureFixture[str]) -> None:
    resources = "trainer.template.resources"
    assert plan("--set", f"{resources}.limits.memory=256Gi", "--set", f"{resources}.requests.memory=200Gi") == 1
    out = capsys.readouterr().out
    assert "limits.memory: 256.0 GiB: more than it has, so the pod would end with OOMKilled\n" in out
    assert f"spec.{resources}.limits.memory = 256Gi\n    the job keeps 297.8 GiB in the host memory" in out
    assert "Valid." not in out
    stays = ("checkpoint.everySteps=0", "trainer.offload={}", "reference.offload=false")
    assert plan(*(word for value in stays for word in ("--set", value))) == 0
    assert "Host memory of a trainer pod: 99.3 GiB (99.3 for a checkpoint), " in capsys.readouterr().out, "the last one"


def test_what_a_rollout_pod_holds_in_host_memory_is_held_against_its_limit(capsys: pytest.CaptureFixture[str]) -> None:
    """15.2 GB of the next policy, and what vLLM moves there."""
    apart = ("--gpu", "h100", "--set", "rollout.placement=separate", "--set", "rollout.vllmArgs={}")
    assert plan(*apart) == 0
    line = "Host memory of a rollout pod: 14.2 GiB (14.2 for the next policy), and what its processes need in any case; limits"
    assert f"\n{line}.memory is not set\n" in capsys.readouterr().out
    limit = ("--set", "rollout.template.resources={limits: {memory: 64Gi}, requests: {memory: 32Gi}}")
    assert plan(*apart, *limit, "--set", "rollout.vllmArgs={cpu-offload-gb: 65}", "-o", "json") == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert found["rolloutHostMemory"] == {"arriving": 0, "offloaded": 65 * GIB, "nextPolicy": "in place"}
    (broken,) = found["violations"]
    assert broken["field"] == "spec.rollout.template.resources.limits.memory" and broken["value"] == "64Gi"
    assert broken["rule"].startswith("the job keeps 65.0 GiB in the host memory of a rollout pod")


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


def test_a_limit_without_its_unit_is_shown_as_it_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--set", "trainer.template.resources={limits: {memory: 512}}") == 1
    out = capsys.readouterr().out
    assert "limits.memory: 512 bytes: more than it has" in out
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
        (("critic={}", "algorithm={advantage: gae}"), "4 checkpoints of 213.2 GB"),
        (("model.lora={rank: 8}",), "4 checkpoints of 0.2 GB"),
    ],
)
def test_the_space_of_the_volume_is_said(
    settings: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """14 bytes for each of 7.6 B parameters that learn, and 2 for each that is exported."""
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
    assert "\ntrainer       7.1       14.2        -           17.0          3.5      -              41.8\n" in out
    assert "\nA trainer's GPU holds 6.0 more outside of tensors; --gpu shows every phase of a step\n" in out
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
GIB PER GPU   WEIGHTS   GRADIENTS   OPTIMIZER   ACTIVATIONS   LOGITS   OTHER MODELS   TOTAL
reference     14.2      -           -           1.2           7.0      -              22.4
judge         7.1       -           -           -             -        -              7.1
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
    assert last == "Valid, and by the estimate it may not fit in train (68.2 GiB) of GPUs of 64.0 GiB.\n"


def test_a_steps_seconds_are_those_by_which_suggestions_are_ranked_and_called_modelled(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert plan("--gpu", "h100") == 0
    page = capsys.readouterr().out
    row = re.findall(r"\ngenerate, train and sync +([\d,.]+) +([\d,.]+) +([\d,.]+) +([\d,.]+) +([\d,]+)\n", page)
    assert len(row) == 1 and "\nModelled and never measured for this job, with 8x400g a node, " in page
    generate, train, sync, whole = (float(seconds.replace(",", "")) for seconds in row[0][:4])
    assert whole == pytest.approx(generate + train + sync, abs=0.2)
    assert "within 15 % for training and 25 % for generation" in page
    plan("--gpu", "h100", "-o", "json", "--network", "400g")
    (found,) = json.loads(capsys.readouterr().out)
    plan("--gpu", "h100", "-o", "json", "--network", "400g", "--suggest")
    (suggested,) = json.loads(capsys.readouterr().out)
    fastest = min(one["generate"] + one["train"] + one["sync"] for one in suggested["suggestions"])
    assert fastest <= found["modelledStep"]["seconds"] + 0.01


@pytest.mark.parametrize("gpu", ["80Gi", None])
def test_a_gpu_of_unknown_rates_has_no_modelled_step(gpu: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(*(("--gpu", gpu) if gpu else ())) == 0
    assert "MODEL   GENERATE" not in capsys.readouterr().out


def test_ahead_of_the_policy_a_step_takes_the_longer_part(capsys: pytest.CaptureFixture[str]) -> None:
    ahead = RECIPE.parent / "deepseek-v3"
    main(["plan", "-f", str(ahead / "rljob.yaml"), "--model", str(ahead), "--offline", "--gpu", "h100", "-o", "json"])
    (found,) = json.loads(capsys.readouterr().out)
    step = found["modelledStep"]
    assert step["seconds"] == pytest.approx(max(step["generate"], step["train"]) + step["sync"], abs=0.01)
